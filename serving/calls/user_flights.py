"""Single flight: each user half (user, version, history) is computed at most once at a time, and every request that needs it waits for that one.

Work that has begun is never cancelled: it costs the same whether a request waits or not, and call 2 may still come for its state.
Everything runs in the server's event loop.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from serving.calls.deadline import Deadline
from serving.calls.state_pool import StateKey
from serving.engine.work import UserResult, UserState
from serving.users.user_store import HistoryOffsets

FlightKey = tuple[StateKey, HistoryOffsets | None]


@dataclass
class Flight:
    """One user half being computed. `work`: the engine's future; `shared`: the same in the event loop; `due_s`: when it should be done, on the monotonic
    clock."""

    work: "Future[UserResult]"
    shared: "asyncio.Future[UserResult]"
    due_s: float
    waiters: int = field(default=0)

    async def wait(self, deadline: Deadline, left_s: float | None = None) -> UserResult:
        """Its result. Raises Unavailable (`deadline_passed`) after `left_s` (None: at the deadline). The last waiter to leave cancels unstarted work."""
        self.waiters += 1
        try:
            return await asyncio.wait_for(asyncio.shield(self.shared), deadline.left_s() if left_s is None else left_s)
        except TimeoutError as error:
            raise deadline.passed("the engine did not answer") from error
        finally:
            self.waiters -= 1
            if not self.waiters and self.work.cancel():
                self.shared.cancel()  # the work's cancellation would do it too, but one turn of the event loop later


class Flights:
    """All running flights. `joined` counts the requests that found theirs already running."""

    def __init__(self) -> None:
        self._flights: dict[FlightKey, Flight] = {}
        self.joined = 0

    def find(self, user_key: StateKey) -> Flight | None:
        """The newest flight of this user half, whatever the history was when it began."""
        found = [flight for (key, _), flight in self._flights.items() if key == user_key and not flight.shared.cancelled()]
        return found[-1] if found else None

    def join_or_start(
        self, key: FlightKey, start: Callable[[], "Future[UserResult]"], expected_ms: float, landed: Callable[[UserState], None]
    ) -> Flight:
        """The flight under `key`, started if absent. `landed` is called with the state of a flight that was started here."""
        flight = self._flights.get(key)
        if flight is not None and not flight.shared.cancelled():  # a cancelled one is still listed until the event loop's next turn
            self.joined += 1
            return flight
        work = start()
        flight = Flight(work, asyncio.wrap_future(work), time.monotonic() + expected_ms / 1000)
        self._flights[key] = flight
        flight.shared.add_done_callback(lambda done: self._end(key, done, landed))
        return flight

    def _end(self, key: FlightKey, done: "asyncio.Future[UserResult]", landed: Callable[[UserState], None]) -> None:
        if self._flights[key].shared is done:  # else the next one has begun instead of a cancelled one
            del self._flights[key]
        if not done.cancelled() and done.exception() is None:
            landed(done.result().state)
