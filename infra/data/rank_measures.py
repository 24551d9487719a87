"""How two columns go together by their ranks: a partial correlation, and Goodman and Kruskal's gamma. Pure functions of arrays.

Arrays: N rows, P columns that are given, V values of a category, G groups.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_LEAST = 50  # numbers of a column that is looked at; fewer tell nothing
_SEED = 0


def strongest_correlation(values: Sequence[Any], given_PN: np.ndarray, after_N: np.ndarray) -> float:
    """The partial rank correlation with after_N of a column as numbers, as categories or as cells that are there or not: the one that is farthest from 0."""
    there = [value is not None for value in values]
    found = [category_correlation(there, after_N, given_PN)]
    if all(isinstance(value, float) for value in values if value is not None):
        known_N = np.array(there)
        number_N = np.array([value for value in values if value is not None], np.float64)
        if known_N.sum() >= _LEAST:
            found.append(partial_rank_correlation(number_N, after_N[known_N], given_PN[:, known_N]))
    else:
        found.append(category_correlation(values, after_N, given_PN))
    return max(found, key=abs)


def category_correlation(values: Sequence[Any], after_N: np.ndarray, given_PN: np.ndarray) -> float:
    """The partial rank correlation of a column of categories. Each category stands for the mean of after_N in one half of the rows, and is measured on the
    other. `values`: N cells, of which None is a category, too; after_N and given_PN as in `partial_rank_correlation`."""
    rank_N = _ranks(after_N)
    _, code_N = np.unique(np.array([str(value) for value in values]), return_inverse=True)
    half_N = np.random.default_rng(_SEED).permutation(len(values)) % 2 == 0
    found = []
    for learnt_N in (half_N, ~half_N):
        rows_V = np.bincount(code_N[learnt_N], minlength=code_N.max() + 1)
        sum_V = np.bincount(code_N[learnt_N], rank_N[learnt_N], minlength=len(rows_V))
        mean_V = (sum_V + rank_N[learnt_N].mean()) / (rows_V + 1)  # a category without rows in the other half has the mean of all
        found.append(partial_rank_correlation(mean_V[code_N[~learnt_N]], after_N[~learnt_N], given_PN[:, ~learnt_N]))
    return float(np.mean(found))


def partial_rank_correlation(one_N: np.ndarray, other_N: np.ndarray, given_PN: np.ndarray) -> float:
    """The correlation of the ranks of one_N and other_N, both without the part that the ranks of given_PN explain (least squares).
    It is from -1 to 1, and 0 if one of them is constant."""
    given_NP = _explained(given_PN, len(one_N))
    left = [_rest(values_N, given_NP) for values_N in (one_N, other_N)]
    size = float(np.linalg.norm(left[0]) * np.linalg.norm(left[1]))
    return float(left[0] @ left[1]) / size if size > 1e-9 * len(one_N) else 0.0


def _explained(given_PN: np.ndarray, owners: int) -> np.ndarray:
    return np.stack([_ranks(given_N) for given_N in (*given_PN, np.zeros(owners))], axis=1)


def _rest(values_N: np.ndarray, given_NP: np.ndarray) -> np.ndarray:
    """The ranks of some values without the part that is explained."""
    rank_N = _ranks(values_N)
    return np.asarray(rank_N - given_NP @ np.linalg.lstsq(given_NP, rank_N, rcond=None)[0])


def _ranks(values_N: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, equal values the mean of theirs."""
    _, place_N, count_V = np.unique(values_N, return_inverse=True, return_counts=True)
    return np.asarray(((np.cumsum(count_V) - (count_V + 1) / 2) / len(values_N))[place_N])


def gamma(one_G: np.ndarray, other_G: np.ndarray) -> float:
    """Of the pairs that differ in both: those in the same order minus those in the other, as a share of all. -1 to 1, 0 if absent."""
    sign_GG = (np.sign(values_G[:, None] - values_G).astype(np.int8) for values_G in (one_G, other_G))
    agrees_GG = np.multiply(*sign_GG)
    return float(agrees_GG.sum(dtype=np.int64) / max(1, np.count_nonzero(agrees_GG)))
