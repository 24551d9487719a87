"""Two passes: the engine's answer is that of the specification, the sampler and the audit know it, and a wrong first pass or selection is seen.

The specification's first pass reads a history whose behaviours have no signatures. So it shares nothing with `without_long`, by which engine and audit leave
the long history out.
"""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.actions import SECOND_PASS
from schemas.ids import Id, encode_index_key, encode_wire_id
from schemas.model.inputs import candidate_rows
from schemas.requests import InlineBehaviour, PrerankRequest, RankAnswer, RankedItem
from schemas.users import BehaviourEvent
from serving.audit import parity
from serving.audit.parity import _Auditor, _DecodedIds
from serving.audit.parity_sampler import ParitySampler
from serving.audit.recorded_answers import RecordedAnswer
from serving.audit.version_rows import VersionRows
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.devices.cuda import CudaScorer
from serving.engine.loop import resident
from serving.engine.work import RankResult, RankWork, UserWork
from tests.schemas.model.samples import SPECS, rank_reference
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version, reference_inputs, running_engine

ITEMS, TOP_K = 200, 8


def version_with_long(name: str, gain: float = 500.0) -> Version:
    """A version in which the long history matters, so that the passes disagree."""
    version = make_version(SPECS[name], ITEMS)
    with torch.no_grad():
        if version.spec.schema.multimodal:
            version.network.head.din_gain.mul_(gain)
    return version


@torch.inference_mode()
def specify(version: Version, behaviours: list[BehaviourEvent]) -> list[tuple[Id, float, tuple[float, ...]]]:
    """The answer of two passes, in plain steps."""
    inputs = reference_inputs(version, PROFILE, behaviours)
    unsigned = dataclasses.replace(
        inputs.behaviours,
        has_signature_BL=torch.zeros_like(inputs.behaviours.has_signature_BL),
        signatures_BLW=torch.zeros_like(inputs.behaviours.signatures_BLW),
    )

    def best(which: Any, ids: list[Id], count: int) -> list[tuple[Id, float, tuple[float, ...]]]:
        states = version.network.user_states(dataclasses.replace(inputs, behaviours=which))
        rows = candidate_rows(version.spec, version.rows[[version.ids.index(one) for one in ids]], CONTEXT)
        return rank_reference(version.network, states, rows, ids, count)

    kept = [one for one, *_ in best(unsigned, version.ids, max(TOP_K, ITEMS // SECOND_PASS))]
    return best(inputs.behaviours, kept, TOP_K)


def rank_twice(version: Version, behaviours: list[BehaviourEvent], passes: int = 2) -> tuple[RankWork, RankResult]:
    served, work = version.resident(), RankWork(version.ids, TOP_K, context=CONTEXT, passes=passes)
    return work, resident.rank(served, served.scorer.user_state(UserWork(PROFILE, behaviours)), work)


@pytest.mark.parametrize("name", SPECS)
def test_an_answer_of_two_passes_is_that_of_the_specification(name: str) -> None:
    version = version_with_long(name)
    for length in (0, 30):
        history = make_behaviours(version, length)
        _, result = rank_twice(version, history)
        expected = specify(version, history)
        assert result.ids == [one for one, *_ in expected] and result.candidates == ITEMS
        assert np.allclose(result.scores_A, [score for _, score, _ in expected], rtol=1e-4)
        if not length or not version.spec.schema.multimodal:
            assert result.first_A is None and result.ids == rank_twice(version, history, passes=1)[1].ids, "there is one pass only"


def test_the_passes_disagree_and_each_says_its_scores() -> None:
    version = version_with_long("full")
    history = make_behaviours(version, 30)
    (_, two), (_, one) = rank_twice(version, history), rank_twice(version, history, passes=1)
    assert two.ids != one.ids and set(two.ids) - set(one.ids), "or the tests below see nothing"
    assert two.first_A is not None and not np.allclose(two.first_A, two.scores_A, rtol=1e-3) and one.first_A is None


def test_a_state_without_a_long_history_ranks_as_one_of_unsigned_behaviours_for_a_carried_state_too() -> None:
    version = version_with_long("raw_din_two_tasks")
    scorer = version.scorer()
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 30)))
    assert isinstance(state, EngineUserState)
    carried = dataclasses.replace(state, tables=None)
    light, light_carried = state.without_long(), carried.without_long()
    assert light is not None and light_carried is not None and light.without_long() is None
    scores = [scorer.score(one, version.row_numbers, CONTEXT)[0] for one in (light, light_carried, state, carried)]
    assert np.array_equal(scores[0], scores[1]) and np.array_equal(scores[2], scores[3]) and not np.allclose(scores[0], scores[2])
    on_device = CudaScorer(version.parameters, 1, version.tables, "cpu").score(light, version.row_numbers, CONTEXT)[0]
    assert np.allclose(on_device, scores[0], rtol=1e-4)


# --- who checks answers ----------------------------------------------------------------------------------------------------


def audit(version: Version, behaviours: list[BehaviourEvent], result: RankResult, passes: int) -> tuple[str, float]:
    """The audit of an answer with this result."""
    rows = SimpleNamespace(
        places={encode_index_key(one): place for place, one in enumerate(version.ids)},
        now=SimpleNamespace(rows_R=version.rows, live_R=np.ones(ITEMS, bool), changes_R=np.zeros(ITEMS, np.int64)),
    )
    known = set(version.ids)
    request = PrerankRequest(
        user_id=1,
        item_ids=[encode_wire_id(one) for one in version.ids],
        top_k=TOP_K,
        context=CONTEXT,
        features=PROFILE,
        behaviours=[
            InlineBehaviour(item_id=encode_wire_id(b.item_id), kind=b.kind, time_ms=b.time_ms, features=dict(b.features))
            for b in behaviours
            if b.item_id in known
        ],
    )
    items = [
        RankedItem(item_id=encode_wire_id(one), score=float(score), probabilities=list(map(float, row)))
        for one, score, row in zip(result.ids, result.scores_A, result.probabilities_AT, strict=True)
    ]
    receipt = SimpleNamespace(candidates=ITEMS, passes=passes)
    answer = RankAnswer.model_construct(receipt=receipt, items=items, unknown_count=0)  # type: ignore[arg-type] # of these alone
    ids = _DecodedIds(version.spec.schema.id_kind)
    for wire in request.item_ids:
        ids[wire]
    return _Auditor(version.network, ids, cast(VersionRows, rows)).check(RecordedAnswer(request, answer))


def known_history(version: Version) -> list[BehaviourEvent]:
    known = set(version.ids)
    return [b for b in make_behaviours(version, 40) if b.item_id in known]


@pytest.mark.parametrize("name", ["full", "no_bid_text_ids"])
def test_the_audit_repeats_both_passes(name: str) -> None:
    version = version_with_long(name)
    history = known_history(version)
    (_, two), (_, one) = rank_twice(version, history), rank_twice(version, history, passes=1)
    wrong, off = audit(version, history, two, passes=2)
    assert wrong == "" and 0 < off <= 1
    assert audit(version, history, one, passes=1)[0] == ""
    assert "left out" in audit(version, history, two, passes=1)[0], "an answer of two passes that says one"
    assert "not a known candidate" in audit(version, history, one, passes=2)[0], "an answer of one pass that says two"


@pytest.mark.parametrize(
    "plant",
    [
        lambda patch: patch.setattr(EngineUserState, "without_long", lambda state: state),
        lambda patch: patch.setattr(resident, "count_second", lambda known, top_k: top_k),
        lambda patch: patch.setattr(resident, "_pass_first", lambda *args: -np.arange(ITEMS, dtype=np.float32)),
    ],
    ids=["the first pass reads the long history", "the second pass gets too few", "the order of arrival selects"],
)
def test_a_planted_fault_is_seen_by_the_audit(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    version = version_with_long("full")
    history = known_history(version)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        _, wrong = rank_twice(version, history)
    assert audit(version, history, wrong, passes=2)[0] != ""


def test_candidates_as_good_as_the_last_of_the_first_pass_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wide tolerance each of them may be missing, but none may be added whose first score is worse."""
    version = version_with_long("full")
    history = known_history(version)
    _, two = rank_twice(version, history)
    monkeypatch.setattr(parity, "_TOLERANCE_MIN", 0.01)
    assert audit(version, history, two, passes=2)[0] == ""


def test_the_sampler_repeats_both_passes() -> None:
    version, metrics = version_with_long("full"), Metrics()
    work = RankWork(version.ids, TOP_K, user=UserWork(PROFILE, make_behaviours(version, 30)), context=CONTEXT, passes=2)
    with running_engine(version) as engine:
        two, one = (engine.submit_rank(dataclasses.replace(work, passes=passes)).result(60) for passes in (2, 1))
        for number, (result, passes, whole) in enumerate(((two, 2, True), (two, 1, False), (one, 2, False)), 1):
            sampler = ParitySampler(engine, metrics, 1.0, 0.0)
            sampler.offer(dataclasses.replace(work, passes=passes), result)
            wait_until(lambda of=number: metrics.counter("parity_samples").labels("checked")._value.get() == of, 30, "the sample")  # type: ignore[misc]
            sampler.close()
            assert (metrics.gauge("parity_overlap_min")._value.get() == 1.0) is whole, (
                "an answer of the other number of passes has other items"
            )
