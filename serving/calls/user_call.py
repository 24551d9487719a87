"""Call 1: the user half of a request, made while retrieval still runs, kept for call 2.

Here: finding the user (what the request carries, else the server's own view), running the user half on one version once for all who ask, keeping its
state. Not here: the arithmetic (engine), the ladder when a state is missing (user_rungs.py).
A request that carries features or behaviours is answered from these alone; then the state is kept under its request id as well.
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
    """Whose half a request needs. `given`: the history that came in the request, with offsets None; `carried`: the half itself came."""

    user: Id
    request_id: str
    given: "FoundUser | None" = None
    carried: Carried | None = None

    def key(self, version: int) -> StateKey:
        """Where its state is kept."""
        return StateKey(self.user, version, None if self.given is None else self.request_id)


@dataclass(frozen=True, slots=True)
class FoundUser:
    """A user's history. `offsets` None: it came in the request."""

    history: KnownUser
    offsets: HistoryOffsets | None

    def work(self, version: int | None, base: UserState | None = None) -> UserWork:
        """For the engine, on `version` (None = the current one); `base`: an earlier state of this history to go on from."""
        return UserWork(self.history.profile, self.history.behaviours, version, base)

    def profile_work(self, version: int | None) -> UserWork:
        """The same without the behaviours."""
        return UserWork(self.history.profile, (), version)


class Users:
    """Finds users and their kept states. Shared by both calls; runs in the event loop."""

    def __init__(self, store: UserStore, pool: StatePool, id_kind: IdKind, metrics: Metrics, carried: CarriedStates | None = None) -> None:
        """`carried` None: no states are handed out or taken."""
        self.store, self.pool, self.id_kind, self.metrics = store, pool, id_kind, metrics
        self.carried = carried or CarriedStates(None, "", 0.0)
        self.flights = Flights()
        self._shown: Counter[str] = Counter()

    def identify(self, request: UserRequest | PrerankRequest | RankRequest) -> Asked:
        """Who is asked for. Raises RejectedInput (`bad_id`, `bad_user_state`, `user_state_off`)."""
        user, request_id = decode_id(request.user_id, self.id_kind), request.request_id or uuid.uuid4().hex
        if isinstance(request, RankRequest):
            return Asked(user, request_id, carried=None if request.user_state is None else self.carried.open(request.user_state, user))
        if request.features is None and request.behaviours is None:
            return Asked(user, request_id)
        history = KnownUser(request.features or {}, decode_behaviours(request.behaviours or [], self.id_kind), (-1, -1))
        return Asked(user, request_id, FoundUser(history, None))

    async def find(self, asked: Asked) -> FoundUser:
        """The history to use; where it is not in memory, it is read beside the event loop."""
        if asked.given is not None:
            return asked.given
        known = self.store.find_in_memory(asked.user) or await asyncio.to_thread(self.store.find, asked.user)
        return FoundUser(known, known.offsets)

    def keep(self, asked: Asked, found: FoundUser, state: UserState) -> None:
        """Keeps a state for later calls."""
        self.pool.put(asked.key(state.version), state, found.offsets)

    def work(self, asked: Asked, found: FoundUser, version: int) -> UserWork:
        """The work of a user half; a kept state of the same user's own history is what it goes on from: new behaviours are all that is read."""
        lease = self.pool.find_last(asked.user, {version}) if found.offsets is not None else None
        if lease is None:
            return found.work(version)
        with lease:
            return found.work(version, lease.state)

    def fly(self, engine: PacedEngine, asked: Asked, found: FoundUser, version: int) -> Flight:
        """The user half on `version`, under way; its state will be kept."""
        expected_ms = engine.queue_ms() + engine.predict_ms("user", len(found.history.behaviours))
        key = (asked.key(version), found.offsets)
        return self.flights.join_or_start(
            key, lambda: engine.submit_user(self.work(asked, found, version)), expected_ms, lambda state: self.keep(asked, found, state)
        )

    def show(self) -> None:
        """Puts the pool's counts into the metrics."""
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
    """POST /v1/user."""

    def __init__(self, engine: PacedEngine, users: Users) -> None:
        self._engine, self._users = engine, users

    async def answer(self, request: UserRequest, deadline: Deadline) -> UserAnswer:
        """The user half on the version of the request's token if it names one that is resident, else on the current one."""
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
        """(state, token of its version): the kept one if it is fresh, else a new one."""
        version = choose_version(self._engine, token, pinned)
        if version is None:  # nothing is live: the engine says so
            result = await deadline.wait_for(self._engine.submit_user(found.work(None)))
            return result.state, str(result.token)
        lease = self._users.pool.find(asked.key(version.version), found.offsets) if asked.given is None else None
        if lease is not None:
            with lease:
                return lease.state, str(version)
        try:
            result = await self._users.fly(self._engine, asked, found, version.version).wait(deadline)
        except Incompatible as error:  # it went in this very moment
            if error.code != "version_gone" or pinned:
                raise
            result = await deadline.wait_for(self._engine.submit_user(found.work(None)))
            self._users.keep(asked, found, result.state)
        return result.state, str(result.token)


def check_consistency(consistency: str | AtLeast, token: VersionToken | None) -> bool:
    """Whether the request is pinned to its token. Raises RejectedInput (`no_version_token`) if it is pinned to nothing."""
    if consistency == "pinned" and token is None:
        raise RejectedInput(
            "no_version_token", 'consistency "pinned" needs the version_token of an earlier answer; send it, or ask for "latest"'
        )
    return consistency == "pinned"


def choose_version(engine: PacedEngine, token: VersionToken | None, pinned: bool) -> VersionToken | None:
    """The resident version that answers: the token's if it is resident, else the current one (None: nothing is live yet).

    Raises Incompatible (`version_gone`) where the request is pinned to a version that is not resident.
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
