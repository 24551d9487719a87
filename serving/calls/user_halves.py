"""Users for both calls: finding a user's history, computing the user half once for all requests that need it, keeping its state.

A request that brings features or behaviours is answered from these alone, and its state is kept under its request id.
Each user half (user, version, history) is computed at most once at a time, and every request that needs it waits for that computation. Work that has begun
is never cancelled: it costs the same whether a request waits or not, and call 2 may still come for its state. Everything runs in the server's event loop.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from structlog.contextvars import bind_contextvars

from infra.metrics import Metrics
from schemas.ids import Id, IdKind, decode_id
from schemas.requests import PrefixRequest, PrerankRequest, RankRequest, UserRequest
from serving.calls.carried_state import Carried, CarriedStates
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.request_ids import decode_behaviours
from serving.calls.state_pool import StateKey, StatePool
from serving.engine.work import UserResult, UserState, UserWork
from serving.users.user_store import HistoryOffsets, KnownUser, UserStore

FlightKey = tuple[StateKey, HistoryOffsets | None]
_READERS = 4  # threads that read users from disk
_AT_ONCE_MAX = 500  # behaviours of a request that the event loop reads itself: 1 ms


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose user half a request needs. `given`: the history, if it came in the request; `carried`: the half itself, if that came."""

    user: Id
    request_id: str
    given: "FoundUser | None" = None
    carried: Carried | None = None

    def key(self, version: int) -> StateKey:
        """The key under which its state is kept."""
        return StateKey(self.user, version, None if self.given is None else self.request_id)


@dataclass(frozen=True, slots=True)
class FoundUser:
    """A user's history. `offsets`: where it stands in the user topics; None if it came in the request."""

    history: KnownUser
    offsets: HistoryOffsets | None

    def work(self, version: int | None, base: UserState | None = None) -> UserWork:
        """The engine's work on `version` (None = the current one). `base`: an earlier state of this history to continue from."""
        return UserWork(self.history.profile, self.history.behaviours, version, base)

    def profile_work(self, version: int | None) -> UserWork:
        """The work on the profile alone, without behaviours."""
        return UserWork(self.history.profile, (), version)


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


class Users:
    """Finds users' histories, computes their halves and keeps the states. Shared by both calls; runs in the event loop."""

    def __init__(self, store: UserStore, pool: StatePool, id_kind: IdKind, metrics: Metrics, carried: CarriedStates | None = None) -> None:
        """`carried` None: states are never given to clients."""
        self.store, self.pool, self.id_kind, self.metrics = store, pool, id_kind, metrics
        self.carried = carried or CarriedStates(None, "", 0.0)
        self.flights = Flights()
        self._readers = ThreadPoolExecutor(_READERS, "user-readers")  # not the loop's own threads: a disk that stalls takes them all

    async def identify(self, request: UserRequest | PrerankRequest | RankRequest | PrefixRequest) -> Asked:
        """The user of a request, with the user's data that it brought. Every further log line of the request carries its id.

        Raises RejectedInput (`bad_id`, `bad_user_state`, `user_state_off`).
        """
        request_id = request.request_id or uuid.uuid4().hex
        bind_contextvars(request_id=request_id)
        user = decode_id(request.user_id, self.id_kind)
        if isinstance(request, RankRequest):
            return Asked(user, request_id, carried=None if request.user_state is None else self.carried.open(request.user_state, user))
        if isinstance(request, PrefixRequest) or (request.features is None and request.behaviours is None):
            return Asked(user, request_id)
        brought = request.behaviours or []
        many = len(brought) > _AT_ONCE_MAX
        behaviours = await asyncio.to_thread(decode_behaviours, brought, self.id_kind) if many else decode_behaviours(brought, self.id_kind)
        history = KnownUser(request.features or {}, behaviours, (-1, -1))
        return Asked(user, request_id, FoundUser(history, None))

    async def find(self, asked: Asked, deadline: Deadline) -> FoundUser:
        """The history to use. If it is not in memory it is read from disk, in a thread next to the event loop. Raises Unavailable (`deadline_passed`)."""
        if asked.given is not None:
            return asked.given
        known = self.store.find_in_memory(asked.user)
        if known is None:
            try:
                async with asyncio.timeout(left_s := deadline.left_s()):
                    known = await asyncio.get_running_loop().run_in_executor(self._readers, self.store.find, asked.user, left_s)
            except TimeoutError as error:
                raise deadline.passed("the user's history was not read from disk") from error
        return FoundUser(known, known.offsets)

    def keep(self, asked: Asked, found: FoundUser, state: UserState) -> None:
        """Keeps a state in the pool for later calls."""
        self.pool.put(asked.key(state.version), state, found.offsets)

    def work(self, asked: Asked, found: FoundUser, version: int) -> UserWork:
        """The work of a user half. It continues from a kept state of the server's own view, if there is one, so that only new behaviours are read."""
        lease = self.pool.find_last(asked.user, {version}) if found.offsets is not None else None
        if lease is None:
            return found.work(version)
        with lease:
            return found.work(version, lease.state)

    def fly(self, engine: PacedEngine, asked: Asked, found: FoundUser, version: int, deadline: Deadline) -> Flight:
        """The computation of the user half on `version`: the running one if there is one, else started here. Its state will be kept.

        Raises Unavailable (`overloaded`) if one that is not running yet would wait too long, or take longer than the deadline leaves.
        """
        work = self.work(asked, found, version)
        expected_ms = engine.wait_ms(work) + engine.predict_user_ms(work)
        key = (asked.key(version), found.offsets)

        def start() -> "Future[UserResult]":
            engine.check_user(work, deadline.left_s())
            return engine.submit_user(work, received_s=deadline.received_s)

        return self.flights.join_or_start(key, start, expected_ms, lambda state: self.keep(asked, found, state))

    def show(self) -> None:
        """Writes the counts of pool, flights and view into the metrics."""
        gauge = self.metrics.gauge
        gauge("user_states").set(len(self.pool))
        gauge("user_states_bytes").set(self.pool.size_bytes)
        carried = {f"carried_{event}": count for event, count in self.carried.events.items()}
        for event, count in {**self.pool.events, "joined": self.flights.joined, **carried}.items():
            self.metrics.count_to("user_state_events", count, event)
        users, behaviours = self.store.decoded
        gauge("users_known").set(len(self.store))
        gauge("users_decoded").set(users)
        gauge("behaviours_decoded").set(behaviours)
