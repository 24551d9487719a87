"""When a shard of this worker takes its next snapshot.

Invariants: the store is asked once after a shard was opened; from then on this worker is the only one that writes snapshots of it. Between two snapshots of
a shard that gets updates lie at most `every_s` and about `every_updates` updates. `every_s` is at most half of the shortest retention of its topics (A6, A8),
so the log always completes the last two snapshots. With `every_updates` a new owner is ready in seconds.
"""

from dataclasses import dataclass

from infra.clock import Clock
from infra.index.store import IndexStore
from schemas.index.snapshot import ShardSnapshot
from schemas.topics import SNAPSHOT_INTERVAL_HOURS
from streams.builders.running_jobs import OwnedShard, on_shard
from streams.shard.snapshot_files import FoundSnapshot, list_snapshots

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
