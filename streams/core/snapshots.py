"""When a shard takes a snapshot, and the job that makes one. Pure.

Not here: the files (streams/shard/snapshot.py), the start (streams/shard/start.py), removal (schemas/index/retention.py).
Invariants: between two snapshots of a shard that gets updates lie at most `interval_ms`, which is at most half of the shortest retention of its topics
(A6, A8), so the log always completes the last two snapshots; and at most about `updates_max` updates, so a new owner is ready in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """Put the checkpoint of a shard into the store as a snapshot. The other fields are what the checkpoint says of itself."""

    shard: int
    identity: str
    next_offsets: Mapping[str, int]
    updates: int
    parts: tuple[str, ...]
    checkpoint_directory: str


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """The newest snapshot of a shard: when it was put, and how many updates it had consumed."""

    put_ms: int
    updates: int


def plan_snapshot(newest: SnapshotFacts | None, updates: int, now_ms: int, interval_ms: int, updates_max: int) -> bool:
    """Whether a shard that has consumed `updates` takes a snapshot now. Without new updates since the newest snapshot it does not."""
    if newest is None:
        return updates > 0
    if updates <= newest.updates:
        return False
    return now_ms - newest.put_ms >= interval_ms or updates - newest.updates >= updates_max
