"""Call 1: the user half of a request, computed while retrieval still runs and kept for call 2.

Here: finding the user's history (in the request, else in the server's own view), computing the user half on one version once for all requests that need
it, keeping its state. Not here: the arithmetic (engine), what call 2 does if a state is missing (user_rungs.py).
A request that brings features or behaviours is answered from these alone, and its state is kept under its request id.
"""

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass

from infra.metrics import Metrics
from schemas.errors import Incompatible, RejectedInput
from schemas.ids import Id, IdKind, decode_id
from schemas.requests import AtLeast, PrerankRequest, RankRequest, UserAnswer, UserRequest
from schemas.token import VersionToken, decode_token
from serving.calls.carried_state import Carried, CarriedStates
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.request_ids import decode_behaviours
from serving.calls.state_pool import StateKey, StatePool
from serving.calls.user_flights import Flight, Flights
from serving.engine.work import UserState, UserWork
from serving.users.user_store import HistoryOffsets, KnownUser, UserStore


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


class Users:
    """Finds users' histories, computes their halves and keeps the states. Shared by both calls; runs in the event loop."""

    def __init__(self, store: UserStore, pool: StatePool, id_kind: IdKind, metrics: Metrics, carried: CarriedStates | None = None) -> None:
        """`carried` None: states are never given to clients."""
        self.store, self.pool, self.id_kind, self.metrics = store, pool, id_kind, metrics
        self.carried = carried or CarriedStates(None, "", 0.0)
        self.flights = Flights()
        self._shown: Counter[str] = Counter()

    def identify(self, request: UserRequest | PrerankRequest | RankRequest) -> Asked:
        """The user of a request, with what it brought of the user. Raises RejectedInput (`bad_id`, `bad_user_state`, `user_state_off`)."""
        user, request_id = decode_id(request.user_id, self.id_kind), request.request_id or uuid.uuid4().hex
        if isinstance(request, RankRequest):
            return Asked(user, request_id, carried=None if request.user_state is None else self.carried.open(request.user_state, user))
        if request.features is None and request.behaviours is None:
            return Asked(user, request_id)
        history = KnownUser(request.features or {}, decode_behaviours(request.behaviours or [], self.id_kind), (-1, -1))
        return Asked(user, request_id, FoundUser(history, None))

    async def find(self, asked: Asked) -> FoundUser:
        """The history to use. If it is not in memory it is read from disk, in a thread beside the event loop."""
        if asked.given is not None:
            return asked.given
        known = self.store.find_in_memory(asked.user) or await asyncio.to_thread(self.store.find, asked.user)
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

    def fly(self, engine: PacedEngine, asked: Asked, found: FoundUser, version: int) -> Flight:
        """The computation of the user half on `version`: the running one if there is one, else started here. Its state will be kept."""
        expected_ms = engine.queue_ms() + engine.predict_ms("user", len(found.history.behaviours))
        key = (asked.key(version), found.offsets)
        return self.flights.join_or_start(
            key, lambda: engine.submit_user(self.work(asked, found, version)), expected_ms, lambda state: self.keep(asked, found, state)
        )

    def show(self) -> None:
        """Writes the counts of pool, flights and view into the metrics."""
        gauge, events = self.metrics.gauge, self.metrics.counter("user_state_events")
        gauge("user_states").set(len(self.pool))
        gauge("user_states_bytes").set(self.pool.size_bytes)
        carried = {f"carried_{event}": count for event, count in self.carried.events.items()}
        now = Counter({**self.pool.events, "joined": self.flights.joined, **carried})
        for event, count in (now - self._shown).items():
            events.labels(event).inc(count)
        self._shown = now
        users, behaviours = self.store.decoded
        gauge("users_decoded").set(users)
        gauge("behaviours_decoded").set(behaviours)


class UserCall:
    """Answers POST /v1/user."""

    def __init__(self, engine: PacedEngine, users: Users) -> None:
        self._engine, self._users = engine, users

    async def answer(self, request: UserRequest, deadline: Deadline) -> UserAnswer:
        """Makes and keeps the user half, on the version of the request's token if it is resident, else on the current one.

        Raises RejectedInput, Incompatible (`version_gone`), Unavailable.
        """
        asked = self._users.identify(request)
        token = decode_token(request.version_token) if request.version_token else None
        pinned = check_consistency(request.consistency, token)
        found = await self._users.find(asked)
        self._engine.check_work(self._engine.predict_ms("user", len(found.history.behaviours)), deadline.left_s())
        state, version_token = await self._state(asked, found, token, pinned, deadline)
        user_state = self._users.carried.seal(asked.user, version_token, state) if request.carry_state else None
        return UserAnswer(
            request_id=asked.request_id,
            version_token=version_token,
            cold_user=state.cold,
            behaviours=state.behaviours,
            behaviours_without_row=state.behaviours_without_row,
            state_bytes=state.size_bytes,
            user_state=user_state,
            took_ms=deadline.took_ms(),
        )

    async def _state(
        self, asked: Asked, found: FoundUser, token: VersionToken | None, pinned: bool, deadline: Deadline
    ) -> tuple[UserState, str]:
        """(state, token of its version): the kept state if it is fresh, else a new one."""
        version = choose_version(self._engine, token, pinned)
        if version is None:  # nothing is live, and the engine raises the error that says so
            result = await deadline.wait_for(self._engine.submit_user(found.work(None)))
            return result.state, str(result.token)
        lease = self._users.pool.find(asked.key(version.version), found.offsets) if asked.given is None else None
        if lease is not None:
            with lease:
                return lease.state, str(version)
        try:
            result = await self._users.fly(self._engine, asked, found, version.version).wait(deadline)
        except Incompatible as error:  # the version was dropped in between
            if error.code != "version_gone" or pinned:
                raise
            result = await deadline.wait_for(self._engine.submit_user(found.work(None)))
            self._users.keep(asked, found, result.state)
        return result.state, str(result.token)


def check_consistency(consistency: str | AtLeast, token: VersionToken | None) -> bool:
    """Whether the request is pinned to its token. Raises RejectedInput (`no_version_token`) if it is pinned and has no token."""
    if consistency == "pinned" and token is None:
        raise RejectedInput(
            "no_version_token", 'consistency "pinned" needs the version_token of an earlier answer; send it, or ask for "latest"'
        )
    return consistency == "pinned"


def choose_version(engine: PacedEngine, token: VersionToken | None, pinned: bool) -> VersionToken | None:
    """The version that answers: the token's if it is resident, else the current one. None: nothing is live yet.

    Raises Incompatible (`version_gone`) if the request is pinned to a version that is not resident.
    """
    status = engine.status()
    if token is None:
        return status.current
    for report in status.residents:
        if report.token.version == token.version:
            return report.token
    if pinned:
        raise Incompatible(
            "version_gone", f"version {token.version} is not resident any more; the current version token is {status.current}"
        )
    return status.current
