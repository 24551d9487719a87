"""The time a request has, from the moment its first byte was seen.

Here: what is left of it, and waiting for the engine no longer than that. Not here: which routes have a deadline (http_api.py).
Invariant: time is monotonic; nobody subtracts two wall clocks.
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
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.left_s())
        except TimeoutError as error:
            raise self.passed("the engine did not answer") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not future.cancelled() or (task is not None and task.cancelling()):
                raise
            raise Unavailable("overloaded", _WITHDRAWN, _WITHDRAWN_RETRY_S) from None
