"""Call 1: the user half of a request, computed while retrieval still runs and kept for call 2.

identify the user -> find the history -> choose the version -> take the kept state, or compute it and keep it -> describe it
"""

from schemas.errors import Incompatible
from schemas.requests import UserAnswer, UserRequest
from schemas.token import VersionToken, decode_token
from serving.allocation.allocator import Allocator
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.user_halves import Asked, FoundUser, Users
from serving.calls.version_choice import check_consistency, choose_version
from serving.engine.work import UserState


class UserCall:
    """Answers POST /v1/user."""

    def __init__(self, engine: PacedEngine, users: Users, allocator: Allocator) -> None:
        self._engine, self._users, self._allocator = engine, users, allocator

    async def answer(self, request: UserRequest, deadline: Deadline) -> UserAnswer:
        """Makes and keeps the user half, on the version of the request's token if it is resident, else on the current one.

        Raises RejectedInput, Incompatible (`version_gone`), Unavailable.
        """
        asked = await self._users.identify(request)
        token = decode_token(request.version_token) if request.version_token else None
        pinned = check_consistency(request.consistency, token)
        found = await self._users.find(asked, deadline)
        state, used = await self._state(asked, found, token, pinned, deadline)
        user_state = self._users.carried.seal(asked.user, used, state) if request.carry_state else None
        return UserAnswer(
            request_id=asked.request_id,
            version_token=str(used),
            cold_user=state.cold,
            behaviours=state.behaviours,
            behaviours_without_row=state.behaviours_without_row,
            state_bytes=state.size_bytes,
            user_state=user_state,
            candidates_max=self._allocator.suggest(used.version, state.behaviours),
            took_ms=deadline.took_ms(),
        )

    async def _state(
        self, asked: Asked, found: FoundUser, token: VersionToken | None, pinned: bool, deadline: Deadline
    ) -> tuple[UserState, VersionToken]:
        """(state, token of its version): the kept state if it is fresh, else a new one."""
        version = choose_version(self._engine, token, pinned)
        lease = self._users.pool.find(asked.key(version.version), found.offsets) if asked.given is None else None
        if lease is not None:
            with lease:
                return lease.state, version
        try:
            result = await self._users.fly(self._engine, asked, found, version.version, deadline).wait(deadline)
        except Incompatible as error:  # the version was dropped in between
            if error.code != "version_gone" or pinned:
                raise
            result = await deadline.wait_for(self._engine.submit_user(found.work(None), received_s=deadline.received_s))
            self._users.keep(asked, found, result.state)
        return result.state, result.token
