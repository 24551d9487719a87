"""The CPU scorer against the network's reference form, on the same stored rows, for every shape of schema."""

import dataclasses

import numpy as np
import pytest
import torch

from schemas.kernels.products import BLOCK
from schemas.model.inputs import candidate_rows
from schemas.model.score import rank_scores
from serving.engine.devices.workers import ROWS_PER_SHARE_MIN, Workers
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version, reference_inputs


def probability_tolerance(version: Version) -> float:
    """How far two orders of summation in fp32 may move a probability.

    A logit differs by at most (terms of the longest sum) x eps x (size of its partial sums, about 1 after the LayerNorms). A sigmoid's slope is at most
    1/4. The other three quarters are for the layers before it.
    """
    return float(np.finfo(np.float32).eps) * max(p.shape[-1] for p in version.network.head.parameters() if p.ndim == 2)


def rank_of(version: Version, probabilities_CT: np.ndarray) -> np.ndarray:
    """Scores by the spec's formula."""
    return np.asarray(rank_scores(version.spec.rank_terms, version.spec.tasks, probabilities_CT, version.rows["bid"]))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [0, 1, 40])
def test_probabilities_and_scores_are_those_of_the_reference_network_on_the_same_rows(name: str, length: int) -> None:
    version = make_version(SPECS[name])
    scorer, behaviours = version.scorer(), make_behaviours(version, length)
    profile = PROFILE if length else {}
    state = scorer.user_state(UserWork(profile, behaviours))
    scores, probabilities = scorer.score(state, version.row_numbers, CONTEXT)
    with torch.inference_mode():
        states = version.network.user_states(reference_inputs(version, profile, behaviours))
        rows = candidate_rows(version.spec, version.rows, CONTEXT)
        wanted_scores, wanted = version.network.scores(version.network.joint_logits(states, rows), rows.bid_BC)
    tolerance = probability_tolerance(version)
    assert np.abs(probabilities - wanted[0].numpy()).max() <= tolerance
    more, less = (np.asarray(rank_of(version, (wanted[0].numpy() + by).clip(0, None))) for by in (tolerance, -tolerance))
    assert (wanted_scores[0].numpy() <= more).all() and (wanted_scores[0].numpy() >= less).all()
    assert (scores <= more * (1 + 1e-6)).all() and (scores >= less * (1 - 1e-6)).all()


def test_a_candidates_score_does_not_depend_on_the_others_nor_on_the_cut_into_blocks() -> None:
    version = make_version(SPECS["full"])
    scorer, rows = version.scorer(), np.arange(300)[::-1].copy()
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 20)))
    whole, probabilities = scorer.score(state, rows, CONTEXT)
    cut = np.concatenate([scorer.score(state, rows[at : at + 37], CONTEXT)[0] for at in range(0, 300, 37)])
    assert np.allclose(whole, cut, rtol=1e-6) and probabilities.shape == (300, 1)


def test_candidates_of_the_users_own_categories_come_first_in_the_pass_and_keep_their_places_in_the_answer() -> None:
    version = make_version(SPECS["full"])
    scorer, rows = version.scorer(), np.arange(300)
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 3)))
    own = np.isin(version.tables.columns["category"][rows], state.arrays.categories_G)
    assert own.any() and not own[:BLOCK].all() and (~own).sum() > 2 * BLOCK, "blocks with sub-sequences and blocks without"
    whole = scorer.score(state, rows, CONTEXT)[0]
    for some in (own, ~own):
        assert np.allclose(whole[some], scorer.score(state, rows[some], CONTEXT)[0], rtol=1e-6)


def test_shares_of_several_threads_give_the_scores_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    version = make_version(SPECS["full"])
    rows = np.random.default_rng(1).integers(0, 300, 3 * ROWS_PER_SHARE_MIN + 5)
    answers = []
    for threads in (1, 3):
        monkeypatch.setattr("serving.engine.devices.cpu.WORKERS", Workers(threads, binds=False))
        scorer = version.scorer()
        answers.append(scorer.score(scorer.user_state(UserWork(PROFILE, make_behaviours(version, 20))), rows, CONTEXT)[0])
    assert np.allclose(*answers, rtol=1e-6)


def test_a_state_that_was_carried_without_its_folded_form_gives_the_same_scores() -> None:
    version = make_version(SPECS["full"])
    scorer, rows = version.scorer(), np.arange(300)
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 20)))
    carried = dataclasses.replace(state, tables=None)
    assert np.array_equal(scorer.score(state, rows, CONTEXT)[0], scorer.score(carried, rows, CONTEXT)[0])


def test_a_user_without_signed_behaviours_pays_for_no_long_history() -> None:
    version = make_version(SPECS["full"])
    scorer, rows = version.scorer(), np.arange(300)
    state = scorer.user_state(UserWork(PROFILE))
    poisoned = state.tables._replace(signs_KF=np.full_like(state.tables.signs_KF, np.nan))
    found, wanted = (scorer.score(one, rows, CONTEXT)[0] for one in (dataclasses.replace(state, tables=poisoned), state))
    assert np.array_equal(found, wanted), "DIN's sums were read"


def no_thread(part: object, rows: int) -> None:
    raise RuntimeError("can't start new thread")


def test_the_categories_of_one_user_do_not_reach_the_next_even_if_the_ranking_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    version = make_version(SPECS["full"])
    scorer, rows = version.scorer(), np.arange(300)
    cold, known = scorer.user_state(UserWork()), scorer.user_state(UserWork(PROFILE, make_behaviours(version, 40)))
    before, _ = scorer.score(cold, rows, CONTEXT)
    scorer.score(known, rows, CONTEXT)
    assert np.array_equal(scorer.score(cold, rows, CONTEXT)[0], before)
    with monkeypatch.context() as failing:
        failing.setattr("serving.engine.devices.cpu.WORKERS.run", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            scorer.score(known, rows, CONTEXT)
    assert np.array_equal(scorer.score(cold, rows, CONTEXT)[0], before)


def test_a_row_that_is_not_a_number_gives_a_score_that_is_not_one() -> None:
    version = make_version(SPECS["full"])
    version.tables.columns["vector"][7] = np.nan
    scorer = version.scorer()
    scores, _ = scorer.score(scorer.user_state(UserWork()), np.arange(300), CONTEXT)
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7]
