"""The second stage: the signal for a prefix, and AIF's answer ordered by the ranker.

Here: requests to the relay's work and back. Not here: AIF's ranking (rank_call.py), prefixes (serving/relay).
The final logits are AIF's plus what the ranker adds, and the score is made of them as AIF's is of its own (`rank_by`). So an answer that the ranker could not
order in time is AIF's answer, and says so.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from schemas.errors import Unavailable
from schemas.requests import FinalReport, PrefixAnswer, PrefixRequest
from schemas.token import VersionToken, decode_token
from serving.calls.deadline import Deadline
from serving.calls.user_halves import Asked, Users
from serving.calls.version_choice import check_consistency
from serving.core.final_order import final_order, logits_of
from serving.core.relay_rungs import FinalRung
from serving.engine.work import RankResult
from serving.relay.final_work import FinalWork
from serving.relay.relay import Relay
from serving.users.user_store import KnownUser


class FinalCall:
    """Answers POST /v1/prefix, and orders rankings that ask for it. `choose`: the version that a token stands for."""

    def __init__(self, relay: Relay, users: Users, choose: Callable[[VersionToken | None, bool], VersionToken], candidates: int) -> None:
        self._relay, self._users, self._choose, self._candidates = relay, users, choose, candidates

    async def signal(self, request: PrefixRequest, deadline: Deadline) -> PrefixAnswer:
        """Decides about the prefix of a ranking that will come. Raises RejectedInput, Incompatible (`version_gone`), Unavailable (`no_version`)."""
        asked = await self._users.identify(request)
        token = decode_token(request.version_token) if request.version_token else None
        version = self._choose(token, check_consistency(request.consistency, token))
        found = await self._users.find(asked, deadline)
        wanted = asked.user, found.history, version.version, asked.request_id, request.candidates or self._candidates
        decision = await asyncio.to_thread(self._relay.signal, *wanted)
        return PrefixAnswer(request_id=asked.request_id, version_token=str(version), decision=decision.value, took_ms=deadline.took_ms())

    async def order(
        self, asked: Asked, history: KnownUser | None, result: RankResult, context: Mapping[str, Any], top_k: int, deadline: Deadline
    ) -> tuple[RankResult, FinalReport]:
        """AIF's answer in the ranker's order, and a report of its inputs. `history`: that of AIF's user half; None: the server's view now."""
        spec = self._relay.spec(result.token.version)
        if spec is None or not result.ids:
            return cut(result, top_k), _report(FinalRung.AIF_ORDER)
        due_s = deadline.received_s + deadline.budget_ms / 1000
        logits_CT = logits_of(result.probabilities_AT)
        try:
            known = history or (await self._users.find(asked, deadline)).history
            of_request = asked.user, known, result.token.version, asked.request_id
            work = FinalWork(*of_request, result.ids, logits_CT, context, due_s)
            final = await deadline.wait_for(self._relay.submit_rank(work))
        except Unavailable:  # it took longer than predicted, or the server is stopping
            return cut(result, top_k), _report(FinalRung.AIF_ORDER)
        if final.rung is FinalRung.AIF_ORDER:
            return cut(result, top_k), _report(final.rung)
        places, scores, probabilities = final_order(spec.rank_terms, spec.tasks, result.ids, result.scores_A, logits_CT, final.logits_CT)
        kept = places[:top_k]
        ordered = dataclasses.replace(
            result,
            ids=[result.ids[place] for place in kept],
            scores_A=scores[kept].astype(np.float32),
            probabilities_AT=probabilities[kept].astype(np.float32),
        )
        return ordered, _report(final.rung, final.start, final.read, final.kept, final.offset)


def _report(rung: FinalRung, start: int = 0, read: int = 0, kept: int = 0, offset: int = -1) -> FinalReport:
    return FinalReport(rung=rung.value, history_start=start, history_read=read, history_kept=kept, behaviours_offset=offset)


def cut(result: RankResult, top_k: int) -> RankResult:
    """The first `top_k` of a result."""
    scores, probabilities = result.scores_A[:top_k], result.probabilities_AT[:top_k]
    return dataclasses.replace(result, ids=result.ids[:top_k], scores_A=scores, probabilities_AT=probabilities)
