"""The time that a request has, counted from its arrival.

Invariant: only the monotonic clock is read; the difference of two wall clocks may be wrong.
The wait uses one future, which the engine's thread wakes with one call. By asyncio's own means, `wrap_future` inside `wait_for`, it takes three futures,
three calls and two more turns of the loop. That costs 20 us per request with warm caches, and 60 us after the engine has emptied them.
"""

import asyncio
import concurrent.futures
import time
from dataclasses import dataclass
from typing import TypeVar

from schemas.errors import RejectedInput, Unavailable
from schemas.limits import DEADLINE_MS_MAX
from schemas.requests import DEADLINE_HEADER

T = TypeVar("T")
_WITHDRAWN = (
    "many more requests came while it waited, and its turn would come too late; send it again after retry_after_s, or to another server"
)
_WITHDRAWN_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Deadline:
    """`received_s`: arrival on the monotonic clock; `budget_ms`: the time from there."""

    received_s: float
    budget_ms: int

    def took_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return (time.monotonic() - self.received_s) * 1000

    def left_s(self) -> float:
        """Seconds that are left. Raises Unavailable (`deadline_passed`) if none are."""
        left = self.received_s + self.budget_ms / 1000 - time.monotonic()
        if left <= 0:
            raise self.passed("the request was not answered")
        return left

    def require_time(self) -> None:
        """Raises Unavailable (`deadline_passed`) if no time is left."""
        self.left_s()

    def passed(self, what: str) -> Unavailable:
        """The error that says that the deadline has passed; `what` begins its message."""
        return Unavailable(
            "deadline_passed",
            f"{what} within its deadline of {self.budget_ms} ms; allow more with deadline_ms or x-aif-deadline-ms, or send less",
            retry_after_s=0.0,
        )

    async def wait_for(self, future: "concurrent.futures.Future[T]") -> T:
        """The result of an engine future. Raises Unavailable (`deadline_passed`) after the deadline; then work that has not begun is cancelled.

        Raises Unavailable (`overloaded`) if the paced engine withdrew the work meanwhile (paced_engine.py), and whatever error the future has.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake(done: "concurrent.futures.Future[T]") -> None:
            if not loop.is_closed():  # the waiting request is gone with its loop
                loop.call_soon_threadsafe(end)

        timer = loop.call_later((self.budget_ms - self.took_ms()) / 1000, end)  # at once where no time is left
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


def decode_deadline_header(header: str | None) -> int | None:
    """Milliseconds in the header of a request over HTTP, or in the metadata of one over gRPC; None without it. Raises RejectedInput (`bad_deadline`)."""
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= 9 and 1 <= int(header) <= DEADLINE_MS_MAX):
        raise RejectedInput(
            "bad_deadline", f"header {DEADLINE_HEADER} is {header[:40]!r}, expected milliseconds from 1 to {DEADLINE_MS_MAX}"
        )
    return int(header)
