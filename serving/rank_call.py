"""Call 2: candidates in, top-k out, wholly from one version; and prerank, which is both calls in one.

Here: which version answers, whether call 1's state is used, and what the answer says of itself. Not here: scores (engine), HTTP.
Version: the token's if it is resident, else the current one with `version_changed`; consistency "pinned" refuses instead of changing.
A state that is missing is made in the same turn of the engine, on the same version (rung "inline").
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.metrics import Metrics
from schemas.errors import Incompatible
from schemas.ids import Id, encode_wire_id
from schemas.requests import AtLeast, Freshness, PrerankRequest, RankAnswer, RankedItem, RankRequest
from schemas.token import VersionToken, decode_token
from serving.bodies import decode_candidates
from serving.deadline import Deadline
from serving.engine.loop import Engine
from serving.engine.work import RankResult, RankWork, UserState
from serving.user_call import FoundUser, Users, check_consistency, version_gone
from serving.watermark_wait import is_reached, wait_for_watermark

Request = RankRequest | PrerankRequest


@dataclass(frozen=True, slots=True)
class _Plan:
    """One request, decoded: what the engine is asked for, whatever version ends up answering."""

    request: Request
    found: FoundUser
    item_ids: Sequence[Id] | np.ndarray
    token: VersionToken | None
    pinned: bool

    def work(self, version: int | None, state: UserState | None) -> RankWork:
        """On `version` (None = the current one). A pinned request with a state gives the engine no way to another version."""
        keeps_to_state = state is not None and self.pinned
        user = None if keeps_to_state else self.found.work(version if state is None else None)
        return RankWork(self.item_ids, self.request.top_k, state, user, self.request.context)


class RankCall:
    """POST /v1/rank and POST /v1/prerank."""

    def __init__(self, engine: Engine, users: Users, candidates_max: int, metrics: Metrics) -> None:
        self._engine, self._users, self._candidates_max, self._metrics = engine, users, candidates_max, metrics

    async def answer(self, request: Request, deadline: Deadline) -> RankAnswer:
        """The top-k of the request's candidates. Raises RejectedInput, Incompatible (`version_gone`), Unavailable."""
        plan = self._plan(request)
        while True:
            version = plan.token.version if plan.token else None
            if isinstance(request.consistency, AtLeast):
                await wait_for_watermark(self._engine, request.consistency, version, deadline)
            result, rung = await self._rank(plan, version, deadline)
            # A flip between the wait and the turn may answer from another slot; then wait for that one.
            if not isinstance(request.consistency, AtLeast) or is_reached(result.watermark, request.consistency):
                return self._encode(plan, result, rung, deadline)

    def _plan(self, request: Request) -> _Plan:
        token = decode_token(request.version_token) if request.version_token else None
        pinned = check_consistency(request.consistency, token)
        item_ids = decode_candidates(request.item_ids, self._users.id_kind, self._candidates_max)
        return _Plan(request, self._users.find(request), item_ids, token, pinned)

    async def _rank(self, plan: _Plan, version: int | None, deadline: Deadline) -> tuple[RankResult, str]:
        state = self._state(plan, version)
        try:
            result = await deadline.wait_for(self._engine.submit_rank(plan.work(version, state)))
        except Incompatible as error:
            if error.code != "version_gone":
                raise
            if plan.pinned:
                raise version_gone(error, self._engine) from error
            state = None
            result = await deadline.wait_for(self._engine.submit_rank(plan.work(None, None)))
        if state is None or result.recomputed:
            if plan.found.offsets is not None:  # made from the server's own view: good for this user's next request too
                self._users.keep(plan.found, result.state)
            return result, "inline"
        return result, "cached"

    def _state(self, plan: _Plan, version: int | None) -> UserState | None:
        """Call 1's state; never for a request that brings its own history, which is its own call 1."""
        if plan.found.offsets is None:
            return None
        if version is None:
            current = self._engine.status().current
            if current is None:
                return None
            version = current.version
        return self._users.find_state(plan.found, version)

    def _encode(self, plan: _Plan, result: RankResult, rung: str, deadline: Deadline) -> RankAnswer:
        degraded = _degraded(plan, result)
        self._count(result, degraded)
        ids = [encode_wire_id(one) for one in result.ids]
        items = [
            RankedItem.model_construct(item_id=one, score=score, probabilities=probabilities)
            for one, score, probabilities in zip(ids, result.scores_A.tolist(), result.probabilities_AT.tolist(), strict=True)
        ]
        age_s = max(0.0, time.time() - result.source_ms / 1000) if result.source_ms > 0 else None
        return RankAnswer.model_construct(
            request_id=plan.found.request_id,
            version_token=str(result.token),
            rung=rung,
            degraded=degraded,
            items=items,
            candidates=result.candidates,
            unknown_count=result.unknown_count,
            unknown_items=[encode_wire_id(one) for one in result.unknown],
            freshness=Freshness.model_construct(age_s=age_s, watermark=[dict(shard) for shard in result.watermark]),
            took_ms=deadline.took_ms(),
        )

    def _count(self, result: RankResult, degraded: Sequence[str]) -> None:
        self._metrics.counter("candidates").inc(result.candidates)
        self._metrics.counter("candidates_unknown").inc(result.unknown_count)
        for reason in degraded:
            self._metrics.counter("answers_degraded").labels(reason).inc()


def _degraded(plan: _Plan, result: RankResult) -> list[str]:
    """Why this answer is less than it could be."""
    reasons = {
        "unknown_items": result.unknown_count > 0,
        "cold_user": result.state.cold,
        "version_changed": plan.token is not None and not plan.token.is_compatible(result.token),
    }
    return [reason for reason, holds in reasons.items() if holds]
