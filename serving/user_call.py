"""Call 1: the user half of a request, made while retrieval still runs, kept for call 2.

Here: finding the user (what the request carries, else the server's own view), running the user half on one version, keeping its state.
Not here: the arithmetic (engine), the ladder when a state is missing (rank_call.py).
A request that carries features or behaviours is answered from these alone; then the state is kept under its request id as well.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.metrics import Metrics
from schemas.errors import Incompatible, RejectedInput
from schemas.ids import Id, IdKind, decode_id
from schemas.requests import AtLeast, PrerankRequest, RankRequest, UserAnswer, UserRequest
from schemas.token import VersionToken, decode_token
from schemas.users import BehaviourEvent
from serving.bodies import decode_behaviours
from serving.deadline import Deadline
from serving.engine.loop import Engine
from serving.engine.work import UserResult, UserState, UserWork
from serving.user_states import HistoryOffsets, StateKey, UserStates
from serving.user_store import UserStore


@dataclass(frozen=True, slots=True)
class FoundUser:
    """Whose half is needed and from what. `offsets` None and `request_id` set: the history came in the request."""

    user: Id
    request_id: str
    profile: Mapping[str, Any]
    behaviours: Sequence[BehaviourEvent]
    offsets: HistoryOffsets | None

    def work(self, version: int | None) -> UserWork:
        """For the engine, on `version` (None = the current one)."""
        return UserWork(self.profile, self.behaviours, version)

    def key(self, version: int) -> StateKey:
        """Where its state is kept."""
        return StateKey(self.user, version, self.request_id if self.offsets is None else None)


class Users:
    """Finds users and their kept states. Shared by both calls; runs in the event loop."""

    def __init__(self, store: UserStore, states: UserStates, id_kind: IdKind, metrics: Metrics) -> None:
        self.store, self.states, self.id_kind, self.metrics = store, states, id_kind, metrics

    def find(self, request: UserRequest | PrerankRequest | RankRequest) -> FoundUser:
        """The user of a request, with the history to use. Raises RejectedInput (`bad_id`)."""
        user, request_id = decode_id(request.user_id, self.id_kind), request.request_id or uuid.uuid4().hex
        if not isinstance(request, RankRequest) and (request.features is not None or request.behaviours is not None):
            return FoundUser(user, request_id, request.features or {}, decode_behaviours(request.behaviours or [], self.id_kind), None)
        known = self.store.find(user)
        return FoundUser(user, request_id, known.profile, known.behaviours, known.offsets)

    def find_state(self, found: FoundUser, version: int) -> UserState | None:
        """The kept state of call 1 on `version`: of this request if call 1 carried the history, else of the server's own view."""
        state, outcome = self.states.find(StateKey(found.user, version, found.request_id))
        if state is None and found.offsets is not None:
            state, outcome = self.states.find(found.key(version), found.offsets)
        self.metrics.counter("user_state_looks").labels(outcome).inc()
        return state

    def keep(self, found: FoundUser, state: UserState) -> None:
        """Keeps a state for later calls."""
        self.states.put(found.key(state.version), state, found.offsets)
        self.metrics.gauge("user_states").set(len(self.states))
        self.metrics.gauge("user_states_bytes").set(self.states.size_bytes)


class UserCall:
    """POST /v1/user."""

    def __init__(self, engine: Engine, users: Users) -> None:
        self._engine, self._users = engine, users

    async def answer(self, request: UserRequest, deadline: Deadline) -> UserAnswer:
        """The user half on the version of the request's token if it names one that is resident, else on the current one."""
        found = self._users.find(request)
        token = decode_token(request.version_token) if request.version_token else None
        result = await self._run(found, token, check_consistency(request.consistency, token), deadline)
        state = result.state
        self._users.keep(found, state)
        return UserAnswer(
            request_id=found.request_id,
            version_token=str(result.token),
            cold_user=state.cold,
            behaviours=state.behaviours,
            behaviours_without_row=state.behaviours_without_row,
            state_bytes=state.size_bytes,
            took_ms=deadline.took_ms(),
        )

    async def _run(self, found: FoundUser, token: VersionToken | None, pinned: bool, deadline: Deadline) -> UserResult:
        try:
            return await deadline.wait_for(self._engine.submit_user(found.work(token.version if token else None)))
        except Incompatible as error:
            if error.code != "version_gone":
                raise
            if pinned:
                raise version_gone(error, self._engine) from error
            return await deadline.wait_for(self._engine.submit_user(found.work(None)))


def check_consistency(consistency: str | AtLeast, token: VersionToken | None) -> bool:
    """Whether the request is pinned to its token. Raises RejectedInput (`no_version_token`) if it is pinned to nothing."""
    if consistency == "pinned" and token is None:
        raise RejectedInput(
            "no_version_token", 'consistency "pinned" needs the version_token of an earlier answer; send it, or ask for "latest"'
        )
    return consistency == "pinned"


def version_gone(error: Incompatible, engine: Engine) -> Incompatible:
    """The same refusal with the token that would be answered now."""
    return Incompatible("version_gone", f"{error.message}; the current version token is {engine.status().current}")
