"""What keeps the index store in shape: snapshots of this worker's shards when they are due, and retention.

Snapshots: the store is asked once after a shard was opened. From then on only this worker writes snapshots of it. Between two snapshots of a shard that gets
updates lie at most `every_s` and about `every_updates` updates. The setting `every_s` is at most half of the shortest retention of its topics (A6, A8). So
the log always completes the last two snapshots. With `every_updates` a new owner is ready in seconds.
Retention: first comes the `drop` entry, and the files go a grace period later. Only the owner of a shard removes its files, because the owner knows which
parts the shard still uses. Files of no shard may be removed by any worker, also by several at once. A step removes files for about a second, because an
object store takes minutes for thousands of them, and rollbacks and seals wait for the end of the step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.clock import Clock
from infra.index.control_folds import remove_folded
from infra.index.control_log import ControlLog, append_entry
from infra.index.removal import read_store_content, remove_due
from infra.index.store import IndexStore
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from schemas.index.retention import Removal, RetentionRules, plan_drops, plan_freezes, plan_removals
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.topics import SNAPSHOT_INTERVAL_HOURS
from streams.builders.running_jobs import OwnedShard, on_shard
from streams.shard.shard import Shard
from streams.shard.snapshot_files import FoundSnapshot, list_snapshots

_REMOVE_EVERY_S_MAX = 600.0
_REMOVE_S_MAX = 1.0  # in one step
SNAPSHOT = -1  # stands for the version in the key of a snapshot job


@dataclass(frozen=True, slots=True)
class SnapshotTimes:
    """A snapshot is taken after this time or this number of updates, whichever comes first."""

    every_s: float = SNAPSHOT_INTERVAL_HOURS * 3600.0
    every_updates: int = 1_000_000

    def is_due(self, newest: FoundSnapshot | None, updates: int, now_ms: int) -> bool:
        """Whether a shard that has consumed `updates` takes a snapshot now. Without new updates since the newest snapshot it does not."""
        if newest is None:
            return updates > 0
        new = updates - newest.snapshot.updates
        return new > 0 and (new >= self.every_updates or now_ms - newest.put_ms >= int(self.every_s * 1000))


class SnapshotKeeper:
    """Knows the newest snapshot of each owned shard. One thread."""

    def __init__(self, store: IndexStore, clock: Clock, times: SnapshotTimes) -> None:
        self._store, self._clock, self._times = store, clock, times
        self._newest: dict[int, tuple[OwnedShard, FoundSnapshot | None]] = {}

    def is_due(self, task: OwnedShard) -> bool:
        """Whether the shard takes one now. The first call for a task asks the store and raises its errors."""
        known = self._newest.get(task.number)
        if known is None or known[0] is not task:
            found, _ = list_snapshots(self._store, task.number)
            known = self._newest[task.number] = task, found[0] if found else None
        updates = on_shard(task, lambda shard: sum(c.consumed for c in shard.state.counters.values()))
        return self._times.is_due(known[1], updates, self._clock.now_ms())

    def taken(self, snapshot: ShardSnapshot) -> None:
        """Takes note of a finished snapshot."""
        task, _ = self._newest[snapshot.shard]
        self._newest[snapshot.shard] = task, FoundSnapshot(snapshot, self._clock.now_ms())


class StoreKeeper:
    """One per reconciler, called by its thread."""

    def __init__(self, control_log: ControlLog, store: IndexStore, clock: Clock, rules: RetentionRules, by: str) -> None:
        self._control_log, self._store, self._clock, self._rules, self._by = control_log, store, clock, rules, by
        self._next_at = float("-inf")
        self._planned: deque[Removal] = deque()
        self._planned_with: Sequence[OwnedShard] = ()  # whose used parts the plan leaves out

    def freeze(self) -> list[int]:
        """Freezes the published versions that newer ones make needless, with one entry each. Returns those it froze."""
        return self._append_each(EntryKind.FREEZE, "newer versions are published", plan_freezes)

    def drop(self) -> list[int]:
        """Drops the versions beyond the newest K, with one entry each. Returns those it dropped."""
        return self._append_each(EntryKind.DROP, "beyond the versions to keep", lambda state: plan_drops(state, self._rules))

    def _append_each(self, kind: EntryKind, reason: str, plan: Callable[[ControlState], list[int]]) -> list[int]:
        def make(state: ControlState) -> Entry | None:
            due = plan(state)
            return Entry(kind, self._clock.now_ms(), self._by, due[0], reason=reason) if due else None

        done = []
        while (entry := append_entry(self._control_log, make)) is not None:
            done.append(entry.version)
        return done

    def remove(self, tasks: Sequence[OwnedShard]) -> int:
        """Plans every few minutes which files are due, and removes some of them in each step; how many. Raises what the store raises, and Corrupted for a
        damaged manifest."""
        removed = self._plan(tasks) if self._clock.monotonic() >= self._next_at else 0
        until, shards = self._clock.monotonic() + _REMOVE_S_MAX, {task.number for task in tasks if task in self._planned_with}
        while self._planned and self._clock.monotonic() < until:  # one that fails stays the next one: a manifest goes before its files
            removed += len(remove_due(self._store, [self._planned[0]], self._clock.now_ms(), self._rules, shards))
            self._planned.popleft()
        return removed

    def _plan(self, tasks: Sequence[OwnedShard]) -> int:
        self._next_at = self._clock.monotonic() + min(_REMOVE_EVERY_S_MAX, self._rules.grace_ms / 2_000)
        folded = remove_folded(self._store, self._clock.now_ms(), self._rules.grace_ms)
        # The shards first, then the store: a part that a shard takes in between is younger than the grace period.
        used = {directory for task in tasks for directory in on_shard(task, _used_directories)}
        content = read_store_content(self._store, self._control_log.state, used)
        self._planned, self._planned_with = deque(plan_removals(self._control_log.state, content, self._rules)), tasks
        return folded


def _used_directories(shard: Shard) -> list[str]:
    return [v.full.directory for v in shard.versions.values() if v.full is not None]
