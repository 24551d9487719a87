"""The time a request has, from the moment its first byte was seen.

Here: what is left of it, and waiting for the engine no longer than that. Not here: which routes have a deadline (http_api.py).
Invariant: time is monotonic; nobody subtracts two wall clocks.
The wait is one future, woken from the engine's thread by one call: asyncio's own forms (`wrap_future` inside `wait_for`) are three of each and two turns
of the loop more, 20 us of every request where caches are warm and three times that where the engine has just emptied them.
"""

import asyncio
import concurrent.futures
import time
from dataclasses import dataclass
from typing import TypeVar

from schemas.errors import Unavailable

T = TypeVar("T")
_WITHDRAWN = (
    "many more requests came while it waited, and its turn would come too late; send it again after retry_after_s, or to another server"
)
_WITHDRAWN_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Deadline:
    """`received_s` on the monotonic clock, and the budget from there."""

    received_s: float
    budget_ms: int

    def took_ms(self) -> float:
        """Milliseconds since the request came."""
        return (time.monotonic() - self.received_s) * 1000

    def left_s(self) -> float:
        """Seconds that are left; raises Unavailable (`deadline_passed`) when none are."""
        left = self.received_s + self.budget_ms / 1000 - time.monotonic()
        if left <= 0:
            raise self.passed("the request was not answered")
        return left

    def passed(self, what: str) -> Unavailable:
        """The error that says so."""
        return Unavailable(
            "deadline_passed",
            f"{what} within its deadline of {self.budget_ms} ms; allow more with deadline_ms or x-aif-deadline-ms, or send less",
            retry_after_s=0.0,
        )

    async def wait_for(self, future: "concurrent.futures.Future[T]") -> T:
        """The result of an engine future, or `deadline_passed`; then the work is cancelled unless it has begun.

        Work that somebody else cancelled meanwhile was withdrawn (paced_engine.py): `overloaded`.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake(done: "concurrent.futures.Future[T]") -> None:
            if not loop.is_closed():  # whoever waited is gone with it
                loop.call_soon_threadsafe(end)

        timer = loop.call_later(self.left_s(), end)
        future.add_done_callback(wake)
        try:
            await ended
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            timer.cancel()
        return self._result(future)

    def _result(self, future: "concurrent.futures.Future[T]") -> T:
        if not future.done():
            future.cancel()
            raise self.passed("the engine did not answer")
        if future.cancelled():
            raise Unavailable("overloaded", _WITHDRAWN, _WITHDRAWN_RETRY_S)
        return future.result()
