"""Ranking metrics against plain loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

from streams.training.metrics import gauc, hit_rate, ndcg, recall_at_k, top_k_hits


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_gauc_is_sklearns_auc_per_user_weighted_by_impressions(rows: list[tuple[int, int, bool]]) -> None:
    user, score, clicked = (np.array(column) for column in zip(*rows, strict=True))
    parts = [(np.sum(user == u), user == u) for u in np.unique(user) if 0 < clicked[user == u].sum() < np.sum(user == u)]
    found = gauc(user, score.astype(float), clicked)
    if not parts:
        assert np.isnan(found)
    else:
        expected = sum(n * roc_auc_score(clicked[at], score[at]) for n, at in parts) / sum(n for n, _ in parts)
        assert found == pytest.approx(expected, abs=1e-12)


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
    assert hit_rate(scores, relevant, k) == pytest.approx(np.mean(shares) if shares else 0.0)
    assert recall_at_k(scores, relevant, k) == pytest.approx(np.mean(recalls) if recalls else 0.0)


def test_ndcg_is_sklearns() -> None:
    chance = np.random.default_rng(0)
    scores, gains = chance.random((5, 20)), chance.random((5, 20))
    assert ndcg(scores, gains, 7) == pytest.approx(ndcg_score(gains, scores, k=7))
