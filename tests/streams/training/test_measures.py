"""Ranking metrics against plain loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.training.measures import (
    calibration,
    expected_aucs,
    gauc,
    group_aucs,
    hit_rates,
    recalls_at_k,
    teachers_choice,
    top_k_hits,
    user_aucs,
)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_gauc_is_sklearns_auc_per_user_weighted_by_impressions(rows: list[tuple[int, int, bool]]) -> None:
    from sklearn.metrics import roc_auc_score

    user, score, clicked = (np.array(column) for column in zip(*rows, strict=True))
    parts = [(np.sum(user == u), user == u) for u in np.unique(user) if 0 < clicked[user == u].sum() < np.sum(user == u)]
    found = gauc(user, score.astype(float), clicked)
    if not parts:
        assert np.isnan(found)
    else:
        expected = sum(n * roc_auc_score(clicked[at], score[at]) for n, at in parts) / sum(n for n, _ in parts)
        assert found == pytest.approx(expected, abs=1e-12)


def test_within_groups_only_pairs_of_one_group_count() -> None:
    """User 5 has two scenarios: the score tells them apart rightly, and the items of each wrongly."""
    user, scenario = np.array([5, 5, 5, 5, 9, 9]), np.array([0, 0, 1, 1, 0, 1])
    scores, clicked = np.array([4.0, 3.0, 2.0, 1.0, 2.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    found = group_aucs(user, scenario, scores, clicked)
    assert found.value_U[0] == pytest.approx((0.0 * 2 + 1.0 * 2) / 4) and found.weight_U.tolist() == [4, 0]
    assert group_aucs(user, np.zeros(6, int), scores, clicked).value_U.tolist() == user_aucs(user, scores, clicked).value_U.tolist()


def test_users_with_one_kind_of_label_only_have_no_weight() -> None:
    values = user_aucs(np.array([7, 7, 8, 8, 9]), np.arange(5.0), np.array([1, 0, 1, 1, 0]))
    assert values.weight_U.tolist() == [2, 0, 0] and values.value_U[0] == 0.0


def test_scores_that_are_no_numbers_have_no_auc() -> None:
    assert np.isnan(gauc(np.array([7, 7, 8, 8]), np.array([0.1, np.nan, 0.3, 0.2]), np.array([0, 1, 0, 1])))


@given(st.integers(0, 1000), st.integers(1, 12))
def test_hits_and_recall_are_those_of_a_plain_loop(seed: int, k: int) -> None:
    chance = np.random.default_rng(seed)
    scores, relevant = chance.integers(0, 5, (4, 9)).astype(float), chance.random((4, 9)) < 0.3
    hits, shares, recalls = [], [], []
    for s, r in zip(scores, relevant, strict=True):
        best = sorted(range(9), key=lambda i: (-s[i], i))[:k]
        hits.append(sum(r[i] for i in best))
        if r.sum():
            shares.append(hits[-1] / r.sum())
            recalls.append(hits[-1] / min(k, r.sum()))
    assert top_k_hits(scores, relevant, k).tolist() == hits
    assert hit_rates(scores, relevant, k).mean() == pytest.approx(np.mean(shares) if shares else np.nan, nan_ok=True)
    assert recalls_at_k(scores, relevant, k).mean() == pytest.approx(np.mean(recalls) if recalls else np.nan, nan_ok=True)
    assert hit_rates(scores, relevant, k).weight_U.tolist() == relevant.any(1).tolist()


@given(st.integers(0, 10_000))
def test_expected_auc_counts_every_pair_of_two_candidates_by_its_probabilities(seed: int) -> None:
    chance = np.random.default_rng(seed)
    scores, p = chance.integers(0, 4, (2, 7)).astype(float), chance.random((2, 7))
    found = expected_aucs(scores, p)
    for u in range(2):
        pairs = [(p[u, i] * (1 - p[u, j]), scores[u, i] - scores[u, j]) for i in range(7) for j in range(7) if i != j]
        expected = sum(w * (1.0 if d > 0 else 0.5 if d == 0 else 0.0) for w, d in pairs) / sum(w for w, _ in pairs)
        assert found.value_U[u] == pytest.approx(expected)
        assert found.weight_U[u] == pytest.approx(p[u].sum())


def test_with_certain_clicks_expected_auc_is_sklearns_auc() -> None:
    from sklearn.metrics import roc_auc_score

    chance = np.random.default_rng(1)
    scores, clicked = chance.integers(0, 9, (4, 30)).astype(float), chance.random((4, 30)) < 0.3
    expected = [roc_auc_score(clicked[u], scores[u]) for u in range(4)]
    assert expected_aucs(scores, clicked.astype(float)).value_U.tolist() == pytest.approx(expected)


def test_what_is_not_counted_is_as_if_it_were_not_there() -> None:
    chance = np.random.default_rng(3)
    scores, p = chance.integers(0, 9, (3, 20)).astype(float), chance.random((3, 20))
    counted = np.broadcast_to(np.arange(20) < 15, scores.shape)
    found, expected = expected_aucs(scores, p, counted), expected_aucs(scores[:, :15], p[:, :15])
    assert found.value_U.tolist() == pytest.approx(expected.value_U.tolist())
    assert found.weight_U.tolist() == pytest.approx(expected.weight_U.tolist())


def test_calibration_is_the_ratio_of_predicted_to_seen_clicks() -> None:
    clicked = np.array([1, 0, 0, 1])
    assert calibration(np.full(4, 0.5), clicked) == 1.0 and calibration(np.full(4, 0.75), clicked) == 1.5
    assert np.isnan(calibration(np.full(2, 0.5), np.zeros(2)))


def test_the_teachers_choice_is_its_best() -> None:
    chosen = teachers_choice(np.array([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), 2)
    assert chosen.tolist() == [[False, True, True], [True, True, False]]
