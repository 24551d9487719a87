"""Bodies of refused requests: read while no task waits for them, and cancelled if they never end. And packed bodies."""

import asyncio
import gzip
from typing import Any

import pytest

from schemas.errors import RejectedInput
from schemas.limits import BODY_BYTES_MAX
from serving.protocols import http_body
from serving.protocols.http_body import UnwantedBodies, unpack

PACKED = gzip.compress(b"{}")


class Body:
    """What Granian has a body in, and the protocol that gives it."""

    def __init__(self, whole: bool) -> None:
        self.whole, self.ended = whole, asyncio.Event()
        self.headers = {"content-length": "80000"}

    def __call__(self) -> "Body":
        return self

    def done(self) -> bool:
        return self.whole or self.cancelled

    @property
    def cancelled(self) -> bool:
        return self.ended.is_set()

    def cancel(self) -> None:
        self.ended.set()


def throw_away(unwanted: UnwantedBodies, bodies: list[Body]) -> None:
    async def all_of_them() -> None:
        for body in bodies:
            scope: Any = body
            await unwanted.throw_away(scope, body)

    asyncio.run(all_of_them())


def test_bodies_that_came_are_not_kept_whatever_is_still_on_its_way() -> None:
    unwanted = UnwantedBodies(lambda: 0.0)
    slow = [Body(whole=False) for _ in range(20)]
    throw_away(unwanted, slow)
    throw_away(unwanted, [Body(whole=True) for _ in range(1_000)])
    assert len(unwanted) <= 2 * len(slow) + 2
    assert not any(body.cancelled for body in slow)


def test_a_body_that_does_not_end_is_ended_by_whoever_comes_next() -> None:
    now_s = [0.0]
    unwanted, slow = UnwantedBodies(lambda: now_s[0]), Body(whole=False)
    throw_away(unwanted, [slow])
    now_s[0] = 9.9
    throw_away(unwanted, [Body(whole=True)])
    assert not slow.cancelled
    now_s[0] = 10.1
    throw_away(unwanted, [Body(whole=True), Body(whole=True)])
    assert slow.cancelled and len(unwanted) <= 2


def test_where_nobody_comes_any_more_a_timer_ends_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(http_body, "_LOOK_S", 0.001)
    now_s = [0.0]
    unwanted, slow = UnwantedBodies(lambda: now_s[0]), Body(whole=False)

    async def wait() -> None:
        scope: Any = slow
        await unwanted.throw_away(scope, slow)
        now_s[0] = 11.0
        await asyncio.wait_for(slow.ended.wait(), 20)

    asyncio.run(wait())
    assert len(unwanted) == 0


@pytest.mark.parametrize(
    ("raw", "code"),
    [(PACKED[:-1], "bad_encoding"), (PACKED + b"{", "bad_encoding"), (gzip.compress(bytes(BODY_BYTES_MAX + 1), 1), "body_too_large")],
    ids=["too early", "too late", "too large"],
)
def test_a_packed_body_is_one_complete_stream_of_a_body(raw: bytes, code: str) -> None:
    assert unpack(PACKED, "gzip") == b"{}" and len(unpack(gzip.compress(bytes(BODY_BYTES_MAX), 1), "gzip")) == BODY_BYTES_MAX
    with pytest.raises(RejectedInput) as refused:
        unpack(raw, "gzip")
    assert refused.value.code == code
