"""Consistency "at least (topic, partition, offset)": waiting until the rows include every record before an offset.

Here: the test whether they do, and the wait. Not here: where watermarks come from (the engine takes them from delta headers).
"""

import asyncio
from collections.abc import Mapping, Sequence

from schemas.errors import RejectedInput, Unavailable
from schemas.requests import AtLeast
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine

_POLL_S = 0.002  # a poll reads a snapshot in memory, so it is cheap


def is_reached(watermark: Sequence[Mapping[str, int]], wish: AtLeast) -> bool:
    """Whether a version's watermark, one entry per shard, includes everything before the wished offset."""
    return wish.partition < len(watermark) and watermark[wish.partition].get(wish.topic, 0) >= wish.offset


async def wait_for_watermark(engine: PacedEngine, wish: AtLeast, version: int | None, deadline: Deadline) -> None:
    """Returns once `version` has reached the wish; None or a version that is gone means the current one.

    Raises RejectedInput (`no_such_partition`), and at the deadline Unavailable (`watermark_not_reached`), which says how far the version is.
    """
    while True:
        watermark = _watermark_of(engine, version)
        if watermark and wish.partition >= len(watermark):
            raise RejectedInput(
                "no_such_partition", f"partition {wish.partition} of {wish.topic}: the index has {len(watermark)} shards, numbered from 0"
            )
        if is_reached(watermark, wish):
            return
        if deadline.took_ms() >= deadline.budget_ms:
            raise _not_reached(watermark, wish, deadline)
        await asyncio.sleep(_POLL_S)


def _watermark_of(engine: PacedEngine, version: int | None) -> Sequence[Mapping[str, int]]:
    status = engine.status()
    by_version = {report.token.version: report.watermark for report in status.residents}
    if version is not None and version in by_version:
        return by_version[version]
    return () if status.current is None else by_version.get(status.current.version, ())


def _not_reached(watermark: Sequence[Mapping[str, int]], wish: AtLeast, deadline: Deadline) -> Unavailable:
    reached = watermark[wish.partition].get(wish.topic, 0) if watermark else None
    return Unavailable(
        "watermark_not_reached",
        f"{wish.topic} partition {wish.partition} is at offset {reached} after {deadline.budget_ms} ms, asked for at least {wish.offset};"
        " wait longer with deadline_ms, or look at the worker's lag",
        retry_after_s=0.1,
    )
