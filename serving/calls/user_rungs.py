"""Where call 2 gets its user half from: the best rung of the ladder that can be taken.

If a state is kept, call 2 never reads the disk (protocol C7). It compares the state with the history in memory. Without a history in memory, any state
within the pool's TTL will do. Only the rungs that compute a user half read the history.
"""

import time
from dataclasses import dataclass

from schemas.errors import AifError, Unavailable
from schemas.token import VersionToken
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.state_pool import Lease, StateKey, prior_key
from serving.calls.user_halves import Asked, Flight, FoundUser, Users
from serving.core.ladder import DEGRADED, Rung, Situation, choose_rung
from serving.engine.work import UserState, UserWork
from serving.users.user_store import KnownUser

_RANKING_SHARE = 0.2  # share of the request's time that a wait leaves for ranking, unless ranking is known to take longer


@dataclass(frozen=True, slots=True)
class Half:
    """A user half, or the work that makes it together with the ranking. `found`: the history, if the new state is worth keeping."""

    rung: Rung
    state: UserState | None = None
    work: UserWork | None = None
    found: FoundUser | None = None
    lease: Lease | None = None

    @property
    def history(self) -> KnownUser | None:
        """The whole history, if the half is made from it and nothing else."""
        return self.found.history if self.found is not None and self.work is not None and self.work.base is None else None

    def end(self) -> None:
        """Lets the state be evicted again."""
        if self.lease is not None:
            self.lease.end()


class UserRungs:
    """Takes call 2 down the ladder."""

    def __init__(self, engine: PacedEngine, users: Users) -> None:
        self._engine, self._users = engine, users

    async def find(self, asked: Asked, version: VersionToken, candidates: int, deadline: Deadline, pinned: bool = False) -> Half:
        """The user half on `version`. The caller must call `end` on it."""
        if asked.given is not None:  # a request with its own history makes its user half itself
            found = await self._users.find(asked, deadline)
            return Half(Rung.INLINE, work=found.work(version.version), found=found)
        if asked.carried is not None and asked.carried.token.is_compatible(version):
            return Half(Rung.CARRIED, asked.carried.state)
        lease = self._kept(asked, version.version)
        if lease is not None:
            return Half(Rung.CACHED, lease.state, lease=lease)
        flight = self._users.flights.find(asked.key(version.version)) or self._users.flights.find(self._own_key(asked, version.version))
        while True:
            situation = self._situation(asked, version, candidates, deadline, flight, pinned)
            rung = choose_rung(situation)
            if rung in DEGRADED:
                self._engine.doubt(self._inline_work(asked, version.version))
            half = await self._take(rung, asked, version, flight, situation, deadline, pinned)
            if half is not None:
                return half
            flight = None

    async def _take(
        self, rung: Rung, asked: Asked, version: VersionToken, flight: Flight | None, situation: Situation, deadline: Deadline, pinned: bool
    ) -> Half | None:
        """The half from one rung; None if the rung failed."""
        number = version.version
        if rung is Rung.WAITED:
            assert flight is not None
            return await _wait(flight, deadline, situation.rank_ms)
        if rung is Rung.INLINE:
            found = await self._users.find(asked, deadline)
            return Half(rung, work=self._users.work(asked, found, number), found=found)
        if rung is Rung.LAST_CACHED:
            lease = self._users.pool.find_last(asked.user, self._versions(version, pinned))
            return None if lease is None else Half(rung, lease.state, lease=lease)
        if rung is Rung.PROFILE_ONLY:
            found = await self._users.find(asked, deadline)
            return Half(rung, work=found.profile_work(number))
        return self._prior(number)

    def _kept(self, asked: Asked, version: int) -> Lease | None:
        """Call 1's state: under the request id if call 1 brought the history, else from the server's own view if it is still fresh."""
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
        """The empty user's half, which is shared by all; made when it is first needed."""
        lease = self._users.pool.find(prior_key(version))
        if lease is not None:
            return Half(Rung.ITEM_PRIOR, lease.state, lease=lease)
        return Half(Rung.ITEM_PRIOR, work=UserWork(version=version))

    def _versions(self, version: VersionToken, pinned: bool) -> set[int]:
        return {version.version} if pinned else {report.token.version for report in self._engine.status().residents}

    def _inline_work(self, asked: Asked, version: int) -> UserWork:
        """What the half takes if it is made here; without behaviours if the user is not in memory."""
        known = self._users.store.find_in_memory(asked.user)
        return UserWork(version=version) if known is None else self._users.work(asked, FoundUser(known, known.offsets), version)

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
            rank_ms=engine.predict_rank_ms(candidates),
            inline_ms=engine.predict_user_ms(self._inline_work(asked, version.version)),
            profile_ms=engine.predict_user_ms(UserWork(version=version.version)),
            flight_ms=None if flight is None else max(0.0, (flight.due_s - time.monotonic()) * 1000),
            has_last=last is not None,
        )


async def _wait(flight: Flight, deadline: Deadline, rank_ms: float) -> Half | None:
    """The result of a running call 1; None if it takes so long that no time would be left to rank, or if it failed."""
    left_s = deadline.left_s() - max(rank_ms, _RANKING_SHARE * deadline.budget_ms) / 1000
    try:
        result = await flight.wait(deadline, max(0.0, left_s))
    except Unavailable as error:
        if error.code != "deadline_passed":
            raise
        return None
    except AifError:  # call 1 was answered with this error; call 2 tries by itself
        return None
    return Half(Rung.WAITED, result.state)
