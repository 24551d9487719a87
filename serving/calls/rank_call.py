"""Call 2: candidates in, top-k out, all from one version. And prerank, which is both calls in one.

    plan the request -> choose the version (version_choice.py) -> find the user half (user_rungs.py) -> rank in the engine -> describe the answer

Version: the one of the request's token if it is resident. If not, the current one, and the answer says `version_changed`; a pinned request is refused.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from infra.metrics import Metrics
from schemas.errors import Incompatible
from schemas.ids import Id
from schemas.requests import AtLeast, FinalReport, PrerankRequest, RankRequest
from schemas.token import VersionToken, decode_token
from serving.calls.deadline import Deadline
from serving.calls.final_call import FinalCall
from serving.calls.paced_engine import PacedEngine
from serving.calls.request_ids import decode_candidates
from serving.calls.state_pool import prior_key
from serving.calls.user_halves import Asked, Users
from serving.calls.user_rungs import Half, UserRungs
from serving.calls.version_choice import check_consistency, choose_version, is_reached, wait_for_watermark
from serving.core.ladder import DEGRADED, Rung
from serving.core.relay_rungs import DEGRADED_RUNGS, FinalRung
from serving.core.row_ages import UNKNOWN, RowAges
from serving.engine.work import RankResult, RankWork
from serving.users.user_store import KnownUser

Request = RankRequest | PrerankRequest


@dataclass(frozen=True, slots=True)
class _Plan:
    """One request, decoded: what the engine is asked for, before the version and the user half are chosen."""

    request: Request
    asked: Asked
    item_ids: Sequence[Id] | np.ndarray
    token: VersionToken | None
    pinned: bool

    def work(self, half: Half) -> RankWork:
        """The engine's work on this user half, and so on its version."""
        return RankWork(self.item_ids, self.request.top_k, half.state, half.work, self.request.context)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A ranking before it takes the form of a protocol: the engine's result, and what the answer says about itself.

    final     what the ranker's order was computed from, if the request asked for it
    history   from which the user half was made for this ranking alone; None if the half was kept, carried, or continued from a kept one
    """

    request_id: str
    result: RankResult
    rung: Rung
    degraded: list[str]
    ages: RowAges = UNKNOWN
    history: KnownUser | None = None
    final: FinalReport | None = None


class RankCall:
    """Answers POST /v1/rank, POST /v1/prerank and the inferences of the Open Inference Protocol."""

    def __init__(
        self,
        engine: PacedEngine,
        users: Users,
        candidates_max: int,
        metrics: Metrics,
        sample: Callable[[RankWork, RankResult], None] = lambda work, result: None,
        stale: Callable[[], Iterable[str]] = tuple,
        ages: Callable[[Sequence[Mapping[str, int]]], RowAges] = lambda watermark: UNKNOWN,
    ) -> None:
        """`sample` is called with every answer and the work it came from; `stale` gives the reasons why answers of this server may be out of date;
        `ages`: how old the rows of a watermark are now."""
        self._engine, self._users, self._candidates_max, self._metrics = engine, users, candidates_max, metrics
        self._sample, self._stale, self._ages = sample, stale, ages
        self._rungs = UserRungs(engine, users)
        self.final: FinalCall | None = None  # None: AIF's order is the answer

    async def rank(self, request: Request, deadline: Deadline) -> Ranked:
        """The top-k of the request's candidates. Raises RejectedInput, Incompatible (`version_gone`), Unavailable."""
        plan = await self._plan(request)
        self._engine.check_work(self._engine.predict_rank_ms(len(plan.item_ids)), deadline.left_s())
        while True:
            if isinstance(request.consistency, AtLeast):
                await wait_for_watermark(self._engine, request.consistency, plan.token.version if plan.token else None, deadline)
            result, half = await self._rank(plan, deadline)
            # A flip between the wait and the ranking may give the answer of another version; then wait for that one.
            if not isinstance(request.consistency, AtLeast) or is_reached(result.watermark, request.consistency):
                return await self._finish(self._describe(plan, result, half), plan, deadline)

    async def _plan(self, request: Request) -> _Plan:
        asked = await self._users.identify(request)
        token = None if asked.carried is None else asked.carried.token
        if request.version_token:
            token = decode_token(request.version_token)
        pinned = check_consistency(request.consistency, token)
        item_ids = decode_candidates(request.item_ids, self._users.id_kind, self._candidates_max)
        return _Plan(request, asked, item_ids, token, pinned)

    async def _rank(self, plan: _Plan, deadline: Deadline) -> tuple[RankResult, Half]:
        version = choose_version(self._engine, plan.token, plan.pinned)
        half = await self._rungs.find(plan.asked, version, len(plan.item_ids), deadline, plan.pinned)
        try:
            result = await self._score(plan, half, deadline)
        except Incompatible as error:
            if error.code != "version_gone" or plan.pinned:
                raise
            found = await self._users.find(plan.asked)  # the version was dropped in between: again, on the current one
            half = Half(Rung.INLINE, work=found.work(None), found=found)
            result = await self._score(plan, half, deadline)
        self._keep(plan, half, result)
        asyncio.get_running_loop().call_soon(self._sample, plan.work(half), result)  # when the answer is on its way, as all counting
        return result, half

    async def _score(self, plan: _Plan, half: Half, deadline: Deadline) -> RankResult:
        """The engine's answer on one user half; the half is given back in any case."""
        try:
            return await deadline.wait_for(self._engine.submit_rank(plan.work(half), deadline.received_s))
        finally:
            half.end()

    def _keep(self, plan: _Plan, half: Half, result: RankResult) -> None:
        """Keeps a state that this ranking made: for the user's next request, or for everybody if it is the empty user's."""
        if half.rung is Rung.INLINE and half.found is not None and half.found.offsets is not None:
            self._users.keep(plan.asked, half.found, result.state)
        elif half.rung is Rung.ITEM_PRIOR and half.state is None:
            self._users.pool.put(prior_key(result.state.version), result.state)

    def _describe(self, plan: _Plan, result: RankResult, half: Half) -> Ranked:
        rung = half.rung
        degraded = [*_degraded(plan, result, rung), *self._stale()]
        asyncio.get_running_loop().call_soon(self._count, result, rung, degraded)
        return Ranked(plan.asked.request_id, result, rung, degraded, self._ages(result.watermark), half.history)

    async def _finish(self, ranked: Ranked, plan: _Plan, deadline: Deadline) -> Ranked:
        """In the ranker's order, if the request asks for it."""
        wanted = plan.request.final
        if wanted is None or self.final is None:
            return ranked
        result, report = await self.final.order(plan.asked, ranked.history, ranked.result, plan.request.context, wanted.top_k, deadline)
        degraded = [f"final_{report.rung}"] if FinalRung(report.rung) in DEGRADED_RUNGS else []
        return replace(ranked, result=result, final=report, degraded=[*ranked.degraded, *degraded])

    def _count(self, result: RankResult, rung: Rung, degraded: Sequence[str]) -> None:
        self._metrics.counter("answers").labels(rung.value).inc()
        self._metrics.counter("candidates").inc(result.candidates)
        self._metrics.counter("candidates_unknown").inc(result.unknown_count)
        for reason in degraded:
            self._metrics.counter("answers_degraded").labels(reason).inc()


def _degraded(plan: _Plan, result: RankResult, rung: Rung) -> list[str]:
    """The reasons why this answer is worse than it could be."""
    reasons = {
        "unknown_items": result.unknown_count > 0,
        "unsigned_items": result.unsigned_count > 0,
        "cold_user": result.state.cold and rung not in DEGRADED,
        DEGRADED.get(rung, ""): rung in DEGRADED,
        "version_changed": plan.token is not None and not plan.token.is_compatible(result.token),
    }
    return [reason for reason, holds in reasons.items() if holds]
