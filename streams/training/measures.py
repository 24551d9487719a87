"""How good a ranking is: HR@K, recall@K, GAUC, expected GAUC and calibration, vectorised over users.

Here: pure NumPy functions of scores and labels. A measure has a value per user (`UserValues`), from which intervals are drawn (bootstrap.py). Not here:
scores (questions.py). In HR and recall, the order of the columns breaks ties, so pass candidates in ascending id order, as answers have them. In GAUC a tie
counts one half.

Arrays: U users, C candidates, X impressions of all users, G users that occur in X. Source: AIF, section 5.1
(HR@K with the ranking model's ten best as relevant, GAUC); oracles in the tests: sklearn per user.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UserValues:
    """A measure of each user and what the user counts in the mean; weight 0 = the measure says nothing of this user."""

    value_U: np.ndarray
    weight_U: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["UserValues"]) -> "UserValues":
        """Of the users of all parts, one part after the other."""
        return cls(np.concatenate([p.value_U for p in parts]), np.concatenate([p.weight_U for p in parts]))

    def by_user(self, user_X: np.ndarray) -> "UserValues":
        """The mean of each user, where `user_X` (from 0 on) says whose each value is: a user who is asked twice is one user."""
        weight_U = np.bincount(user_X, self.weight_U)
        return UserValues(np.bincount(user_X, np.nan_to_num(self.value_U) * self.weight_U) / np.maximum(weight_U, 1e-12), weight_U)

    def mean(self) -> float:
        """The weighted mean; NaN if no user counts."""
        return float(np.average(self.value_U, weights=self.weight_U)) if self.weight_U.sum() > 0 else float("nan")


def top_k_hits(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> np.ndarray:
    """How many relevant candidates are among each user's k best, [U] int64."""
    return np.take_along_axis(relevant_UC, best_columns(scores_UC, k), 1).sum(1)


def best_columns(scores_UC: np.ndarray, k: int) -> np.ndarray:
    """The columns of each user's k best candidates, best first, ties in the order of the columns: int64 [U, min(k, C)]."""
    return np.argsort(-scores_UC, axis=1, kind="stable")[:, :k]


def teachers_choice(ecpm_UC: np.ndarray, chosen: int) -> np.ndarray:
    """The `chosen` candidates of highest eCPM of each user, bool [U, C]: the relevant ones of HR@K."""
    relevant_UC = np.zeros(ecpm_UC.shape, bool)
    np.put_along_axis(relevant_UC, best_columns(ecpm_UC, chosen), True, 1)
    return relevant_UC


def hit_rates(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> UserValues:
    """HR@K: share of the relevant candidates found in the top k; users without any count nothing."""
    total_U = relevant_UC.sum(1)
    return UserValues(top_k_hits(scores_UC, relevant_UC, k) / np.maximum(total_U, 1), (total_U > 0).astype(float))


def recalls_at_k(scores_UC: np.ndarray, relevant_UC: np.ndarray, k: int) -> UserValues:
    """Hits in the top k over min(k, relevant); users without any count nothing."""
    total_U = relevant_UC.sum(1)
    return UserValues(top_k_hits(scores_UC, relevant_UC, k) / np.clip(total_U, 1, k), (total_U > 0).astype(float))


def gauc(user_X: np.ndarray, scores_X: np.ndarray, clicked_X: np.ndarray) -> float:
    """AUC per user, mean weighted by the user's impressions; users with only clicks or no click are left out. NaN if none is left."""
    return user_aucs(user_X, scores_X, clicked_X).mean()


def user_aucs(user_X: np.ndarray, scores_X: np.ndarray, clicked_X: np.ndarray) -> UserValues:
    """The AUC of each user that occurs, in ascending order of the user, weighted by impressions (0 with only clicks or no click).

    One sort for all users: the AUC of a user is (sum of the ranks of their clicks - P(P+1)/2) / (P N), ranks within the user.
    """
    _, group_X = np.unique(user_X, return_inverse=True)
    _, dense_X = np.unique(scores_X, return_inverse=True)
    _, place_X, ties_R = np.unique(group_X * len(scores_X) + dense_X, return_inverse=True, return_counts=True)
    rank_X = (np.cumsum(ties_R) - (ties_R - 1) / 2)[place_X]  # ranks over all, users sequentially, ties averaged
    if np.isnan(scores_X).any():
        rank_X[:] = np.nan  # sorted they would all be the best
    size_G = np.bincount(group_X)
    before_G = np.cumsum(size_G) - size_G
    clicks_G = np.bincount(group_X, weights=clicked_X)
    rank_sum_G = np.bincount(group_X, weights=(rank_X - before_G[group_X]) * clicked_X)
    pairs_G = clicks_G * (size_G - clicks_G)
    auc_G = (rank_sum_G - clicks_G * (clicks_G + 1) / 2) / np.maximum(pairs_G, 1)
    return UserValues(auc_G, np.where(pairs_G > 0, size_G, 0).astype(float))


def group_aucs(user_X: np.ndarray, group_X: np.ndarray, scores_X: np.ndarray, clicked_X: np.ndarray) -> UserValues:
    """The same within groups (whole numbers from 0) of a user's impressions, like those of one scenario: the mean over the user's groups, weighted alike."""
    _, user_X = np.unique(user_X, return_inverse=True)
    code_X = user_X * (int(group_X.max(initial=0)) + 1) + group_X
    found = user_aucs(code_X, scores_X, clicked_X)
    user_G = np.unique(code_X) // (int(group_X.max(initial=0)) + 1)
    weight_U = np.bincount(user_G, found.weight_U)
    return UserValues(np.bincount(user_G, np.nan_to_num(found.value_U) * found.weight_U) / np.maximum(weight_U, 1), weight_U)


def expected_aucs(scores_UC: np.ndarray, probability_UC: np.ndarray, counted_UC: np.ndarray | None = None) -> UserValues:
    """The AUC that a user's clicks would give on average, from the true probability of each: no noise of drawn clicks. Weight: expected clicks.

    A candidate counts as positive with weight p and as negative with weight 1 - p, never against itself; a tie counts one half. Where
    `counted_UC` is false a candidate counts as neither.
    """
    counted_UC = np.ones(scores_UC.shape, bool) if counted_UC is None else counted_UC
    order_UC = np.argsort(scores_UC, axis=1, kind="stable")
    by_column = (scores_UC, probability_UC * counted_UC, (1 - probability_UC) * counted_UC)
    scores_UC, p_UC, negative_UC = (np.take_along_axis(values, order_UC, 1).astype(np.float64) for values in by_column)
    below_UC = np.cumsum(negative_UC, 1) - negative_UC
    first_UC, last_UC = _tie_bounds(scores_UC)
    worse_UC = np.take_along_axis(below_UC, first_UC, 1)
    tied_UC = np.take_along_axis(below_UC + negative_UC, last_UC, 1) - worse_UC - negative_UC
    pairs_U = p_UC.sum(1) * negative_UC.sum(1) - (p_UC * negative_UC).sum(1)
    won_U = (p_UC * (worse_UC + tied_UC / 2)).sum(1)
    return UserValues(won_U / np.where(pairs_U > 0, pairs_U, 1), np.where(pairs_U > 0, p_UC.sum(1), 0.0))


def _tie_bounds(sorted_UC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each place of ascending rows: the first and the last column with the same value."""
    place_C = np.broadcast_to(np.arange(sorted_UC.shape[1]), sorted_UC.shape)
    starts_UC = np.diff(sorted_UC, axis=1, prepend=-np.inf) != 0
    ends_UC = np.diff(sorted_UC, axis=1, append=np.inf) != 0
    first_UC = np.maximum.accumulate(np.where(starts_UC, place_C, 0), axis=1)
    last_UC = np.minimum.accumulate(np.where(ends_UC, place_C, place_C.max(initial=0))[:, ::-1], axis=1)[:, ::-1]
    return first_UC, last_UC


def calibration(probability_X: np.ndarray, clicked_X: np.ndarray) -> float:
    """Predicted clicks over clicks: 1 is calibrated, above 1 is too high. NaN without a click."""
    return float(np.sum(probability_X) / np.sum(clicked_X)) if np.sum(clicked_X) else float("nan")
