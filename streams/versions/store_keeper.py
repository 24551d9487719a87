"""Retention: old versions are dropped, and files that nothing needs any more are removed from the index store.

Invariants: first comes the `drop` entry, and the files go a grace period later. Only the owner of a shard removes its files, because the owner knows
which parts the shard still uses. Files of no shard may be removed by any worker, also by several at once.
"""

from collections.abc import Sequence

from infra.clock import Clock
from infra.index.control_folds import remove_folded
from infra.index.control_log import ControlLog, append_entry
from infra.index.removal import read_store_content, remove_due
from infra.index.store import IndexStore
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from schemas.index.retention import RetentionRules, plan_drops, plan_removals
from streams.builders.running_jobs import OwnedShard, on_shard
from streams.shard.shard import Shard

_EVERY_S_MAX = 600.0


class StoreKeeper:
    """One per reconciler, called by its thread."""

    def __init__(self, control_log: ControlLog, store: IndexStore, clock: Clock, rules: RetentionRules, by: str) -> None:
        self._control_log, self._store, self._clock, self._rules, self._by = control_log, store, clock, rules, by
        self._next_at = float("-inf")

    def drop(self) -> list[int]:
        """Drops the versions beyond the newest K, with one entry each. Returns those it dropped."""
        dropped = []
        while (entry := append_entry(self._control_log, self._make_drop)) is not None:
            dropped.append(entry.version)
        return dropped

    def _make_drop(self, state: ControlState) -> Entry | None:
        due = plan_drops(state, self._rules)
        return Entry(EntryKind.DROP, self._clock.now_ms(), self._by, due[0], reason="beyond the versions to keep") if due else None

    def remove(self, tasks: Sequence[OwnedShard]) -> int:
        """Removes the files that are due, at most every few minutes; how many. Raises what the store raises, and Corrupted for a damaged manifest."""
        if self._clock.monotonic() < self._next_at:
            return 0
        self._next_at = self._clock.monotonic() + min(_EVERY_S_MAX, self._rules.grace_ms / 2_000)
        folded = remove_folded(self._store, self._clock.now_ms(), self._rules.grace_ms)
        # The shards first, then the store: a part that a shard takes in between is younger than the grace period.
        used = {directory for task in tasks for directory in on_shard(task, _used_directories)}
        content = read_store_content(self._store, self._control_log.state, used)
        removals = plan_removals(self._control_log.state, content, self._rules)
        removed = remove_due(self._store, removals, self._clock.now_ms(), self._rules, {task.number for task in tasks})
        return folded + len(removed)


def _used_directories(shard: Shard) -> list[str]:
    return [v.full.directory for v in shard.versions.values() if v.full is not None]
