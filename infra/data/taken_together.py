"""Vectors that are near for items which the same users took: the feature that `taken_together` in a mapping derives from behaviours before a time.

Here: the vectors as of each time of a grid. Not here: which grid (mapped_sources.py), other statistics of behaviours (log_statistics.py).

    matrix    users x items, log1p(count)
    scaling   each row is divided by the fourth root of its number of items; each column by the root of its users plus the users of the average item
    axes      truncated SVD; each axis times the fourth root of its singular value; then length 1. An item without users has zeros

The average in the columns is a ridge. Without it an item of three users weighs as much as one of three hundred, and the first axes go to such items.
Low-rank EASE (arXiv 1905.03375) with a ridge of that size has nearly these axes, but inverts a matrix of the catalogue's square.
Invariants: a vector as of t does not depend on t or later. The axes of one time are turned onto those of the previous time (orthogonal Procrustes), so that
a model trained on one time reads the next.
Source: scikit-learn, scipy.

Arrays: I items, U users, E width.
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.sparse import csr_array, diags_array

from infra.data.interactions import Interactions

TAKEN_ROWS_MAX = 2_000_000  # only the latest behaviours before a time are used, because they are in memory
_ITERATIONS = 4
_DECIMALS = 4
_USER_POWER = 0.25
_SIZE_POWER = 0.25


class TogetherVectors:
    """Vectors [I, E] as of any time: those of the latest time of the grid `times_ms` (ascending) that is not after it; zeros before the first."""

    is_signed = False  # a negative number means unknown

    def __init__(self, positives: Interactions, items: int, width: int, times_ms: Sequence[int]) -> None:
        self._positives, self._items, self._width, self._times = positives, items, width, np.asarray(times_ms, np.int64)
        self._turned: list[np.ndarray] = []

    def at(self, time_ms: int) -> np.ndarray:
        """[I, E] float64, rounded. The times before it are made first: each is turned onto the one before."""
        place = int(np.searchsorted(self._times, time_ms, "right"))
        while len(self._turned) < place:
            made = together_vectors(self._positives, self._items, self._width, int(self._times[len(self._turned)]))
            self._turned.append(np.round(_turn(made, self._turned[-1]) if self._turned else made, _DECIMALS) + 0.0)
        return self._turned[place - 1] if place else np.zeros((self._items, self._width))


def together_vectors(positives: Interactions, items: int, width: int, time_ms: int) -> np.ndarray:
    """The vectors as of one time, on axes of their own: [I, E] float64."""
    from sklearn.utils.extmath import randomized_svd

    before = positives.before(time_ms)
    latest = slice(max(0, before - TAKEN_ROWS_MAX), before)
    user_X, item_X = positives.user_X[latest], positives.item_X[latest]
    known = item_X < items
    pairs, times = np.unique(np.stack([user_X[known], item_X[known]]), axis=1, return_counts=True)
    users, user_P = np.unique(pairs[0], return_inverse=True)
    taken_UI = csr_array((np.log1p(times), (user_P, pairs[1])), shape=(len(users), items))
    vectors_IE = np.zeros((items, width))
    rank = min(width, len(users), items)
    if not rank:
        return vectors_IE
    items_U, users_I = np.bincount(user_P, minlength=len(users)), np.bincount(pairs[1], minlength=items)
    ridge = len(pairs[1]) / np.count_nonzero(users_I)
    scaled_UI = diags_array(items_U**-_USER_POWER) @ taken_UI @ diags_array((users_I + ridge) ** -0.5)
    _, size_E, axes_EI = randomized_svd(scaled_UI, rank, n_iter=_ITERATIONS, random_state=0)
    vectors_IE[:, :rank] = axes_EI.T * size_E**_SIZE_POWER
    vectors_IE[users_I == 0] = 0.0
    return vectors_IE / np.maximum(np.linalg.norm(vectors_IE, axis=1, keepdims=True), 1e-9)


def _turn(vectors_IE: np.ndarray, onto_IE: np.ndarray) -> np.ndarray:
    """The same vectors, turned as near as can be to those of the time before."""
    rotation_EE, _ = orthogonal_procrustes(vectors_IE, onto_IE)
    return np.asarray(vectors_IE @ rotation_EE)
