"""How good a ranking is: HR@K, recall@K, GAUC and NDCG, vectorised over users.

Here: pure numpy functions of scores and labels. Not here: what is scored (evaluation.py). Ties are broken by the order of the
columns in HR, recall and NDCG (give candidates in ascending id order, as answers do) and count one half in GAUC.

Arrays: U users, C candidates, X impressions of all users. Source: design section 8; oracles in the tests: sklearn per user.
"""

import numpy as np
from scipy.stats import rankdata


def top_k_hits(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> np.ndarray:
    """How many relevant candidates are among each user's k best, [U] int64."""
    k = min(k, scores_UC.shape[1])
    best_UK = np.argsort(-scores_UC, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(relevant_UC, best_UK, 1).sum(1)


def hit_rate(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> float:
    """HR@K: share of the relevant candidates found in the top k, mean over users with any."""
    total_U = relevant_UC.sum(1)
    hits_U = top_k_hits(scores_UC, relevant_UC, k)
    return float(np.mean((hits_U / np.maximum(total_U, 1))[total_U > 0])) if (total_U > 0).any() else 0.0


def recall_at_k(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> float:
    """Hits in the top k over min(k, relevant), mean over users with any."""
    total_U = relevant_UC.sum(1)
    hits_U = top_k_hits(scores_UC, relevant_UC, k)
    return float(np.mean((hits_U / np.clip(total_U, 1, k))[total_U > 0])) if (total_U > 0).any() else 0.0


def ndcg(scores_UC: np.ndarray, gains_UC: np.ndarray, k: int) -> float:
    """NDCG@K with linear gains, mean over users with any gain."""
    k = min(k, scores_UC.shape[1])
    discount_K = 1 / np.log2(np.arange(k) + 2)
    order_UK = np.argsort(-scores_UC, axis=1, kind="stable")[:, :k]
    got_U = (np.take_along_axis(gains_UC, order_UK, 1) * discount_K).sum(1)
    best_U = (-np.sort(-gains_UC, axis=1)[:, :k] * discount_K).sum(1)
    return float(np.mean(got_U[best_U > 0] / best_U[best_U > 0])) if (best_U > 0).any() else 0.0


def gauc(user_X: np.ndarray, scores_X: np.ndarray, clicked_X: np.ndarray) -> float:
    """AUC per user, mean weighted by the user's impressions; users with only clicks or no click are left out. NaN if none is left.

    One sort for all users: the AUC of a user is (sum of the ranks of their clicks - P(P+1)/2) / (P N), ranks within the user.
    """
    _, group_X = np.unique(user_X, return_inverse=True)
    dense_X = rankdata(scores_X, method="dense").astype(np.float64)
    rank_X = rankdata(group_X * (dense_X.max(initial=0.0) + 1) + dense_X)  # ranks over all, users one after another, ties averaged
    size_G = np.bincount(group_X)
    before_G = np.cumsum(size_G) - size_G
    clicks_G = np.bincount(group_X, weights=clicked_X)
    rank_sum_G = np.bincount(group_X, weights=(rank_X - before_G[group_X]) * clicked_X)
    pairs_G = clicks_G * (size_G - clicks_G)
    usable_G = pairs_G > 0
    if not usable_G.any():
        return float("nan")
    auc_G = (rank_sum_G - clicks_G * (clicks_G + 1) / 2)[usable_G] / pairs_G[usable_G]
    return float(np.average(auc_G, weights=size_G[usable_G]))
