"""Where call 2's user half comes from: the best rung of the ladder that holds.

Here: finding out the situation, taking a rung, the next one when it gives way. Not here: which rungs a situation allows (core/ladder.py), ranking
(rank_call.py).
Call 2 never reads the disk where a state is kept (protocol C7): then the history's age is checked in memory, and where it is not in memory any
age within the pool's will do. Only the rungs that compute a user half read the history.
"""

import time
from dataclasses import dataclass

from schemas.errors import AifError, Unavailable
from schemas.token import VersionToken
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.state_pool import Lease, StateKey, prior_key
from serving.calls.user_call import Asked, FoundUser, Users
from serving.calls.user_flights import Flight
from serving.core.ladder import DEGRADED, Rung, Situation, plan_rungs
from serving.engine.work import UserState, UserWork

_RANKING_SHARE = 0.2  # of a request's time that is kept for ranking while it waits, where ranking is not known to take longer


@dataclass(frozen=True, slots=True)
class Half:
    """A user half, or the work that makes it in call 2's own turn. `found` where the result is worth keeping."""

    rung: Rung
    state: UserState | None = None
    work: UserWork | None = None
    found: FoundUser | None = None
    lease: Lease | None = None

    def end(self) -> None:
        """The state may be evicted again."""
        if self.lease is not None:
            self.lease.end()


class UserRungs:
    """Call 2's way down the ladder."""

    def __init__(self, engine: PacedEngine, users: Users) -> None:
        self._engine, self._users = engine, users

    async def find(self, asked: Asked, version: VersionToken | None, candidates: int, deadline: Deadline, pinned: bool = False) -> Half:
        """The user half on `version` (None: nothing is live yet, which the engine will say). The caller ends it."""
        if version is None or asked.given is not None:  # a request that brings its own history is its own call 1
            found = await self._users.find(asked)
            return Half(Rung.INLINE, work=found.work(version and version.version), found=found)
        if asked.carried is not None and asked.carried.state.version == version.version:
            return Half(Rung.CARRIED, asked.carried.state)
        lease = self._kept(asked, version.version)
        if lease is not None:
            return Half(Rung.CACHED, lease.state, lease=lease)
        flight = self._users.flights.find(asked.key(version.version)) or self._users.flights.find(self._own_key(asked, version.version))
        while True:
            situation = self._situation(asked, version, candidates, deadline, flight, pinned)
            rungs = plan_rungs(situation)
            if rungs[0] in DEGRADED:
                self._engine.doubt("user", self._behaviours(asked))
            half = await self._take(rungs[0], asked, version, flight, situation, deadline, pinned)
            if half is not None:
                return half
            flight = None

    async def _take(
        self, rung: Rung, asked: Asked, version: VersionToken, flight: Flight | None, situation: Situation, deadline: Deadline, pinned: bool
    ) -> Half | None:
        """The half of one rung; None where the rung gave way."""
        number = version.version
        if rung is Rung.WAITED:
            assert flight is not None
            return await _wait(flight, deadline, situation.rank_ms)
        if rung is Rung.INLINE:
            found = await self._users.find(asked)
            return Half(rung, work=self._users.work(asked, found, number), found=found)
        if rung is Rung.LAST_CACHED:
            lease = self._users.pool.find_last(asked.user, self._versions(version, pinned))
            return None if lease is None else Half(rung, lease.state, lease=lease)
        if rung is Rung.PROFILE_ONLY:
            found = await self._users.find(asked)
            return Half(rung, work=found.profile_work(number))
        return self._prior(number)

    def _kept(self, asked: Asked, version: int) -> Lease | None:
        """Call 1's state: of this very request if call 1 carried the history, else of the server's own view and no older than it."""
        pool = self._users.pool
        own = self._own_key(asked, version)
        if own in pool:
            return pool.find(own)
        offsets = self._users.store.offsets_in_memory(asked.user)
        return pool.find(asked.key(version), offsets, checked=offsets is not None)

    @staticmethod
    def _own_key(asked: Asked, version: int) -> StateKey:
        return StateKey(asked.user, version, asked.request_id)

    def _prior(self, version: int) -> Half:
        """The empty user's half: one for all, made when it is needed first."""
        lease = self._users.pool.find(prior_key(version))
        if lease is not None:
            return Half(Rung.ITEM_PRIOR, lease.state, lease=lease)
        return Half(Rung.ITEM_PRIOR, work=UserWork(version=version))

    def _versions(self, version: VersionToken, pinned: bool) -> set[int]:
        return {version.version} if pinned else {report.token.version for report in self._engine.status().residents}

    def _behaviours(self, asked: Asked) -> int:
        """How many there are, as far as memory knows."""
        known = self._users.store.find_in_memory(asked.user)
        return 0 if known is None else len(known.behaviours)

    def _situation(
        self, asked: Asked, version: VersionToken, candidates: int, deadline: Deadline, flight: Flight | None, pinned: bool
    ) -> Situation:
        engine = self._engine
        last = self._users.pool.find_last(asked.user, self._versions(version, pinned))
        if last is not None:
            last.end()
        return Situation(
            left_ms=deadline.left_s() * 1000,
            queue_ms=engine.queue_ms(),
            rank_ms=engine.predict_ms("rank", candidates),
            inline_ms=engine.predict_ms("user", self._behaviours(asked)),
            profile_ms=engine.predict_ms("user", 0),
            flight_ms=None if flight is None else max(0.0, (flight.due_s - time.monotonic()) * 1000),
            has_last=last is not None,
        )


async def _wait(flight: Flight, deadline: Deadline, rank_ms: float) -> Half | None:
    """The result of a call 1 under way, as long as there is time to rank afterwards."""
    left_s = deadline.left_s() - max(rank_ms, _RANKING_SHARE * deadline.budget_ms) / 1000
    try:
        result = await flight.wait(deadline, max(0.0, left_s))
    except Unavailable as error:
        if error.code != "deadline_passed":
            raise
        return None
    except AifError:  # call 1 got its own answer; call 2 tries for itself
        return None
    return Half(Rung.WAITED, result.state)
