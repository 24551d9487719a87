"""Before a version goes live, the kept user halves are computed on it too, so that its first requests find them.

A user half belongs to one version. Without this, each user's first request after a flip computes it again. With a flip every few seconds that is one answer
in ten, 3.5 ms later than the others. Here the same work is done while the former version still answers, one half at a time, and only while no request waits.
So a request waits for at most one of them.

Bounds: the most recently used halves come first. After MOVE_S_MAX the version goes live with those that are done; requests compute the rest. A half whose
history came in a request is not moved, because only that request knows the history.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from schemas.errors import AifError
from schemas.ids import Id
from serving.calls.paced_engine import PacedEngine
from serving.calls.state_pool import StateKey
from serving.calls.user_halves import FoundUser, Users
from serving.engine.work import UserResult

MOVE_S_MAX = 2.0
_BREATH_S = 0.002  # pause between two halves, for requests that came meanwhile
_ANSWER_S_MAX = 1.0  # the longest wait for one half

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.user_moves")


class UserMoves:
    """Moves halves. Must be created in the server's event loop."""

    def __init__(self, engine: PacedEngine, users: Users, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._users, self._clock, self._loop = engine, users, clock, asyncio.get_running_loop()

    def move_from_thread(self, version: int) -> None:
        """Runs `move` in the event loop and waits for it; for a caller in another thread. Raises nothing: a version can go live without it."""
        moving: Future[int] = asyncio.run_coroutine_threadsafe(self.move(version), self._loop)
        try:
            moved = moving.result(2 * MOVE_S_MAX)
        except Exception as error:
            moving.cancel()
            logger.warning("user_states_not_recomputed", version=version, error=repr(error))
        else:
            logger.info("user_states_recomputed", version=version, states=moved)

    async def move(self, version: int) -> int:
        """Computes the kept halves of the current version on `version` as well. Returns how many."""
        current = self._engine.status().current
        if current is None or current.version == version:
            return 0
        moved, end_s = 0, self._clock() + MOVE_S_MAX
        for user in self._users.pool.users_of(current.version):
            if not await self._wait_for_quiet(end_s):
                break
            moved += await self._move_one(user, version)
        return moved

    async def _wait_for_quiet(self, end_s: float) -> bool:
        """Waits for a moment without requests. False if there was none before `end_s`."""
        while self._clock() < end_s:
            await asyncio.sleep(_BREATH_S)
            if self._engine.queue_ms() == 0:
                return True
        return False

    async def _move_one(self, user: Id, version: int) -> bool:
        known = self._users.store.find_in_memory(user)
        key = StateKey(user, version)
        if known is None or key in self._users.pool:
            return False
        found = FoundUser(known, known.offsets)
        try:
            making: asyncio.Future[UserResult] = asyncio.wrap_future(self._engine.submit_user(found.work(version), asked_for=False))
            result = await asyncio.wait_for(making, _ANSWER_S_MAX)
        except (AifError, TimeoutError):  # the version or the engine is gone; the flip will report it
            return False
        self._users.pool.put(key, result.state, found.offsets)
        return True
