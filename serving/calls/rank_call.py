"""Call 2: candidates in, top-k out, all from one version. And prerank, which is both calls in one.

    plan the request -> choose the version (version_choice.py) -> find the user half (user_rungs.py) -> rank in the engine -> describe the answer

Version: the one of the request's token if it is resident. If not, the current one, and the answer says `version_changed`; a pinned request is refused.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from infra.metrics import Metrics
from schemas.allocation import Facts
from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.ids import Id
from schemas.limits import TOP_K_MAX
from schemas.requests import AtLeast, FinalReport, PrerankRequest, RankRequest
from schemas.token import VersionToken, decode_token
from serving.allocation.allocator import Allocator
from serving.allocation.decisions import Choice
from serving.allocation.outcomes import Given, Probe
from serving.allocation.score_cache import Kept, give_again
from serving.calls.deadline import Deadline
from serving.calls.final_call import FinalCall, cut
from serving.calls.paced_engine import PacedEngine, Timed
from serving.calls.request_ids import decode_candidates
from serving.calls.state_pool import prior_key
from serving.calls.user_halves import Asked, Users
from serving.calls.user_rungs import Half, UserRungs
from serving.calls.version_choice import check_consistency, choose_version, is_reached, wait_for_watermark
from serving.core.choice import DEFAULT_CLASS, Ask, Mode
from serving.core.final_order import logits_of
from serving.core.ladder import DEGRADED, Rung, take_first
from serving.core.relay_rungs import DEGRADED_RUNGS, FinalRung
from serving.core.row_ages import UNKNOWN, RowAges
from serving.engine.work import RankResult, RankWork
from serving.users.user_store import KnownUser

Request = RankRequest | PrerankRequest
_WORTHLESS_RETRY_S = 1.0
_GIVEN = 64  # items of a cached answer in its outcome
_TOP = 100  # scores of retrieval whose mean says what the request may be worth


@dataclass(frozen=True, slots=True)
class _Plan:
    """One request, decoded: what the engine is asked for, before the version and the user half are chosen."""

    request: Request
    asked: Asked
    item_ids: Sequence[Id] | np.ndarray
    token: VersionToken | None
    pinned: bool

    def work(self, half: Half, choice: Choice) -> RankWork:
        """The engine's work on this user half, and so on its version; of the best candidates by retrieval, or of all."""
        item_ids = take_first(self.item_ids, choice.candidates, self.request.retrieval_scores)
        return RankWork(item_ids, self.request.top_k, half.state, half.work, self.request.context, choice.passes)

    def facts(self, half: Half, kept: Kept | None, with_scores: bool) -> Facts:
        """What the allocator knows of the request; of retrieval's scores where it asks for them, because that takes 0.1 ms."""
        behaviours = half.state.behaviours if half.state is not None else len(half.work.behaviours) if half.work is not None else 0
        scores = self.request.retrieval_scores if with_scores else None
        best = None if scores is None else np.partition(scores, -min(_TOP, len(scores)))[-_TOP:]
        top = None if best is None else float((best / len(best)).sum())  # finite, as the sum of the best need not be
        return Facts(len(self.item_ids), behaviours, half.state is None, self.request.user_value, top, None if kept is None else kept.age_s)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A ranking before it takes the form of a protocol: the engine's result, and what the answer says about itself.

    - final: the inputs of the ranker's order, if the request asked for it
    - receipt: schemas.requests.Receipt, as it travels
    - history: of a user half that was made for this ranking alone; None if the half was kept, carried, or continued from a kept one
    """

    request_id: str
    result: RankResult
    rung: Rung
    degraded: list[str]
    receipt: Mapping[str, Any]
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
        allocator: Allocator,
        sample: Callable[[RankWork, RankResult], None] = lambda work, result: None,
        stale: Callable[[], Iterable[str]] = tuple,
        ages: Callable[[Sequence[Mapping[str, int]]], RowAges] = lambda watermark: UNKNOWN,
    ) -> None:
        """Functions that the answer needs or feeds.

        - sample: called with every answer and its work
        - stale: returns the reasons why answers of this server may be out of date
        - ages: returns how old the rows of a watermark are now
        """
        self._engine, self._users, self._candidates_max, self._metrics = engine, users, candidates_max, metrics
        self._allocator = allocator
        self._sample, self._stale, self._ages = sample, stale, ages
        self._rungs = UserRungs(engine, users)
        self.final: FinalCall | None = None  # None: AIF's order is the answer

    async def rank(self, request: Request, deadline: Deadline) -> Ranked:
        """The top-k of the request's candidates. Raises RejectedInput, Incompatible (`version_gone`), Unavailable."""
        try:
            return await self._answer(request, deadline)
        except Unavailable as error:
            if error.receipt is None:
                error.receipt = self._allocator.refusal(error.retry_after_s, error.code)
            raise

    async def _answer(self, request: Request, deadline: Deadline) -> Ranked:
        plan = await self._plan(request)
        least = self._allocator.least(len(plan.item_ids), request.top_k)
        self._engine.check_work(self._engine.predict_rank_ms(least), deadline.left_s())
        while True:
            if isinstance(request.consistency, AtLeast):
                await wait_for_watermark(self._engine, request.consistency, plan.token.version if plan.token else None, deadline)
            result, half, choice = await self._rank(plan, least, deadline)
            # A flip between the wait and the ranking may give the answer of another version; then wait for that one.
            if not isinstance(request.consistency, AtLeast) or is_reached(result.watermark, request.consistency):
                return await self._finish(self._describe(plan, result, half, choice), plan, deadline)

    async def _plan(self, request: Request) -> _Plan:
        asked = await self._users.identify(request)
        token = None if asked.carried is None else asked.carried.token
        if request.version_token:
            token = decode_token(request.version_token)
        pinned = check_consistency(request.consistency, token)
        item_ids = decode_candidates(request.item_ids, self._users.id_kind, self._candidates_max)
        if request.retrieval_scores is not None and len(request.retrieval_scores) != len(item_ids):
            raise RejectedInput(
                "bad_retrieval_scores",
                f"retrieval_scores has {len(request.retrieval_scores)} numbers for {len(item_ids)} candidates; send one for each, or none",
            )
        return _Plan(request, asked, item_ids, token, pinned)

    async def _rank(self, plan: _Plan, least: int, deadline: Deadline) -> tuple[RankResult, Half, Choice]:
        version = choose_version(self._engine, plan.token, plan.pinned)
        half = await self._rungs.find(plan.asked, version, least, deadline, plan.pinned)
        try:
            result, work, choice = await self._score(plan, half, version.version, deadline)
        except Incompatible as error:
            if error.code != "version_gone" or plan.pinned:
                raise
            found = await self._users.find(plan.asked, deadline)  # the version was dropped in between: again, on the current one
            half = Half(Rung.INLINE, work=found.work(None), found=found)
            result, work, choice = await self._score(plan, half, version.version, deadline)
        if not choice.cached:
            self._keep(plan, half, result, choice)
            asyncio.get_running_loop().call_soon(self._sample, work, result)  # when the answer is on its way, as all counting
        return result, half, choice

    async def _score(self, plan: _Plan, half: Half, version: int, deadline: Deadline) -> tuple[RankResult, RankWork, Choice]:
        """The engine's answer on one user half, its work, and how much of the request that was; the half is given back in any case."""
        request, choice, timed, state, probe, given = plan.request, None, Timed(), "failed", None, None
        try:
            by_value, kept = self._allocator.mode is Mode.VALUE, self._find_kept(plan, version)
            ask = Ask(
                plan.asked.request_id,
                version,
                plan.facts(half, kept, by_value),
                request.top_k,
                deadline.left_s() * 1000,
                request.request_class or DEFAULT_CLASS,
                by_value and self._is_drop_due(plan.asked, version),
            )
            choice = self._allocator.decide(ask)  # and submitted before any other request is decided
            if choice.shed:
                raise _worthless(choice.receipt())
            work = plan.work(half, choice)
            if choice.cached and kept is not None:
                state, given = "cached", Given(kept.result.ids[:_GIVEN], logits_of(kept.result.probabilities_AT[:_GIVEN, 0]).tolist())
                return give_again(kept, self._allocator.ages(version), request.top_k), work, choice
            timed.expected_ms = choice.expected_ms
            probed = self._allocator.is_probe(choice) and len(work.item_ids) <= TOP_K_MAX
            asked = replace(work, top_k=len(work.item_ids), passes=2) if probed else work  # the second pass ranks all too
            result = await deadline.wait_for(self._engine.submit_rank(asked, deadline.received_s, timed))
            state = "ranked"
            if probed:  # its time is not logged: it has sorted all candidates
                probe, timed.took_ms = Probe(work.item_ids, request.retrieval_scores, result.ids, result.scores_A, result.first_A), None
                result = cut(result, request.top_k)
            return result, work, choice
        except Unavailable as error:
            state = "dropped" if choice is not None and choice.shed else "late" if error.code == "deadline_passed" else "refused"
            raise
        finally:
            half.end()
            if choice is not None:
                self._allocator.end(choice, plan.asked.user, state, timed.took_ms, probe, given)

    def _is_drop_due(self, asked: Asked, version: int) -> bool:
        offsets = None if asked.given is not None else self._users.store.offsets_in_memory(asked.user)
        return offsets is not None and self._allocator.is_drop_due(version, asked.user, offsets[1])

    def _key(self, plan: _Plan, version: int) -> Hashable:
        """Of the answers that may be given again to this request; None: of none, because it says what its answer must depend on."""
        request = plan.request
        if plan.asked.given is not None or request.final is not None or isinstance(request.consistency, AtLeast):
            return None
        return self._allocator.scores.key(plan.asked.user, version, request.request_class or DEFAULT_CLASS, request.context)

    def _find_kept(self, plan: _Plan, version: int) -> Kept | None:
        key = None if self._allocator.mode is Mode.OFF else self._key(plan, version)
        return None if key is None else self._allocator.scores.find(key, plan.item_ids, plan.request.top_k)

    def _keep(self, plan: _Plan, half: Half, result: RankResult, choice: Choice) -> None:
        """Keeps an answer of full work, and a state that this ranking made: for the user's next request, or for everybody if it is the empty user's."""
        key = self._key(plan, result.token.version) if choice.is_full and half.rung not in DEGRADED else None
        if key is not None:
            self._allocator.scores.keep(key, result)
        if half.rung is Rung.INLINE and half.found is not None and half.found.offsets is not None:
            self._users.keep(plan.asked, half.found, result.state)
        elif half.rung is Rung.ITEM_PRIOR and half.state is None:
            self._users.pool.put(prior_key(result.state.version), result.state)

    def _describe(self, plan: _Plan, result: RankResult, half: Half, choice: Choice) -> Ranked:
        rung = half.rung
        fewer = ["cached_answer"] if choice.cached else ["fewer_candidates"] if choice.candidates is not None else []
        fewer += ["two_passes"] if choice.passes == 2 else []
        degraded = [*_degraded(plan, result, rung), *fewer, *self._stale()]
        asyncio.get_running_loop().call_soon(self._count, result, rung, degraded)
        return Ranked(plan.asked.request_id, result, rung, degraded, choice.receipt(), self._ages(result.watermark), half.history)

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


def _worthless(receipt: Mapping[str, Any]) -> Unavailable:
    message = f"dropped under load: {receipt['reason']}; send it again after retry_after_s, or show what you have"
    error = Unavailable("overloaded", message, _WORTHLESS_RETRY_S)
    error.receipt = {**receipt, "retry_after_s": _WORTHLESS_RETRY_S}
    return error


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
