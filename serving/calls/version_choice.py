"""The version that answers a request: the one of its token if that is resident, else the current one, unless the request is pinned. It waits until the
version's rows include the offsets that the request names: consistency "at least (topic, partition, offset)".
"""

import asyncio
from collections.abc import Mapping, Sequence

from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.requests import AtLeast
from schemas.token import VersionToken
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine

_POLL_S = 0.002  # a poll reads a snapshot in memory, so it is cheap


def check_consistency(consistency: str | AtLeast, token: VersionToken | None) -> bool:
    """Whether the request is pinned to its token. Raises RejectedInput (`no_version_token`) if it is pinned and has no token."""
    if consistency == "pinned" and token is None:
        raise RejectedInput(
            "no_version_token", 'consistency "pinned" needs the version_token of an earlier answer; send it, or ask for "latest"'
        )
    return consistency == "pinned"


def choose_version(engine: PacedEngine, token: VersionToken | None, pinned: bool) -> VersionToken:
    """The version that answers: the token's if it is resident, else the current one.

    Raises Unavailable (`no_version`) if nothing is live yet, Incompatible (`version_gone`) if the request is pinned to a version that is not resident.
    That of another index is not.
    """
    current = engine.current
    if current is None:
        raise Unavailable("no_version", f"no version is live yet; {engine.why_none()}")
    if token is None:
        return current
    resident = engine.find_token(token.version)
    if resident is not None and token.is_compatible(resident):
        return resident
    if pinned:
        raise Incompatible("version_gone", f"the version of {token} is not resident (any more); the current version token is {current}")
    return current


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
