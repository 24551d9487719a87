"""When a shard of this worker takes its next snapshot, and the job for it.

Here: what is known of the newest snapshot of each shard. Not here: the plan (core/snapshots.py), the files (streams/shard/snapshot.py), removal
of old ones (infra/index/retention.py).
Invariant: the store is asked once after a shard was opened; from then on this worker is the only one that writes snapshots of it.
"""

from dataclasses import dataclass
from pathlib import Path

from infra.clock import Clock
from infra.index.store import IndexStore
from schemas.index.control import Init
from schemas.index.snapshot import ShardSnapshot
from schemas.topics import SNAPSHOT_INTERVAL_HOURS
from streams.builders.running_jobs import OwnedShard, create_checkpoint, on_shard
from streams.core.snapshots import SnapshotFacts, SnapshotJob, plan_snapshot
from streams.shard.snapshot import describe_checkpoint_job, list_snapshots

SNAPSHOT = -1  # stands for the version in the key of a snapshot job


@dataclass(frozen=True, slots=True)
class SnapshotTimes:
    """A snapshot is taken after this time or this number of updates, whichever comes first."""

    every_s: float = SNAPSHOT_INTERVAL_HOURS * 3600.0
    every_updates: int = 1_000_000


class SnapshotKeeper:
    """Knows the newest snapshot of each owned shard. One thread."""

    def __init__(self, store: IndexStore, clock: Clock, times: SnapshotTimes) -> None:
        self._store, self._clock, self._times = store, clock, times
        self._newest: dict[int, tuple[OwnedShard, SnapshotFacts | None]] = {}

    def is_due(self, task: OwnedShard) -> bool:
        """Whether the shard takes one now. The first call for a task asks the store and raises what it raises."""
        known = self._newest.get(task.number)
        if known is None or known[0] is not task:
            found, _ = list_snapshots(self._store, task.number)
            newest = SnapshotFacts(found[0].put_ms, found[0].snapshot.updates) if found else None
            known = self._newest[task.number] = task, newest
        updates = on_shard(task, lambda shard: sum(c.consumed for c in shard.state.counters.values()))
        return plan_snapshot(known[1], updates, self._clock.now_ms(), int(self._times.every_s * 1000), self._times.every_updates)

    def taken(self, snapshot: ShardSnapshot) -> None:
        """Takes note of a finished snapshot."""
        task, _ = self._newest[snapshot.shard]
        self._newest[snapshot.shard] = task, SnapshotFacts(self._clock.now_ms(), snapshot.updates)


def prepare_snapshot(task: OwnedShard, init: Init, directory: Path) -> SnapshotJob:
    """Takes a checkpoint of a shard in `directory`; the job that makes it a snapshot."""
    create_checkpoint(task, directory)
    return describe_checkpoint_job(directory, task.number, init)
