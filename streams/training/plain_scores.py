"""Scores that need no learnt network: what a model has to beat before it is worth serving.

    popularity, popularity_28d, ...   positives of the last days that the mapping names, of each window that fits the log, and of all of it
    popularity_decayed                positives, each worth half as much for each shortest such window that has passed
    repeats                           how often the user met the item before; among equals, popularity
    item_knn                          cosine between items by their users, summed over the user's history
    ease                              EASE (arXiv 1905.03375), ridge 100, of the 3,000 items that most users took; among equals, popularity
    last_item                         how often the item followed the user's last one directly, in all histories; among equals, popularity
    item_rate                         clicks over shown, smoothed; where the log says what was shown

Here: scores of candidates from a log. Not here: of shown items by their features (shown_scores.py), what a model gains over them (comparison.py).
No leak: a log is read up to its `now_ms` alone, and a history is what the caller gives.
Arrays: U users, P users of the log, C candidates, I items, K of them.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array, diags_array

from infra.data.interactions import Interactions, Log
from schemas.statistics import fit_windows, smoothed_rates

_LOG_ROWS_MAX = 5_000_000  # the latest of a longer log
_EASE_ITEMS_MAX, _EASE_RIDGE = 3_000, 100.0
_TIE = 1e-6  # of popularity, which decides among equals
_CELLS_MAX = 20_000_000  # scores of all items for some users, in memory at once
RATE = "item_rate"


def simple_scores(popularity_UC: np.ndarray, met_UC: np.ndarray) -> dict[str, np.ndarray]:
    """Popularity and repeats, float64 [U, C] by name."""
    return {"popularity": popularity_UC, "repeats": met_UC + share_of(popularity_UC)}


def share_of(popularity_UC: np.ndarray) -> np.ndarray:
    """Popularity below 1, to decide among equals."""
    return popularity_UC / (popularity_UC.max(initial=0.0) + 1)


def log_windows(log: Log) -> dict[str, int]:
    """The windows of popularity in ms, by name, that fit a log up to its `now_ms`."""
    return fit_windows(_span_ms(log))


def _span_ms(log: Log) -> int:
    return log.now_ms - int(log.positives.time_X[0]) if len(log.positives) else 0


def log_scores(
    log: Log, windows: Mapping[str, int], rows: Sequence[Sequence[int]], place_UC: np.ndarray, share_UC: np.ndarray
) -> dict[str, np.ndarray]:
    """The plain scores of candidates that read the log, float64 [U, C] by name. Scores of padding are undefined. The `rows` are places of each user's
    history, oldest first. Candidates have the places `place_UC`; one that the catalogue does not have is placed behind its items. Their popularity below 1 is
    `share_UC`. Popularity is counted in `windows` (`log_windows`): scores of several times of one log have the same ones, so that they can be joined."""
    items, now_ms = len(log.item_ids), log.now_ms

    def spread(value_I: np.ndarray) -> np.ndarray:
        return np.append(value_I, 0.0)[place_UC]

    found = dict[str, np.ndarray]()
    for name, window_ms in windows.items():
        found[f"popularity_{name}"] = spread(log.positives.counts(items, now_ms - window_ms, now_ms).astype(float))
    found["popularity_all"] = spread(log.positives.counts(items, 0, now_ms).astype(float))
    found["popularity_decayed"] = spread(_decayed(log.positives, items, now_ms, min(windows.values(), default=max(1, _span_ms(log) // 10))))
    user_X, item_X = _latest(log.history, items, now_ms)
    taken_PI = _taken(user_X, item_X, items)
    found["item_knn"] = _of_users(_knn(taken_PI), rows, place_UC, items)
    found["ease"] = _of_users(_ease(taken_PI), rows, place_UC, items) + _TIE * share_UC
    found["last_item"] = _of_users(_followers(user_X, item_X, items), rows, place_UC, items) + share_UC
    if log.shown is not None:
        found[RATE] = spread(smoothed_rates(_clicks(log.shown, items, now_ms), log.shown.counts(items, 0, now_ms)))
    return found


_ByHistory = Callable[[Sequence[Sequence[int]]], np.ndarray]  # scores of all items [U, I] from histories


def _of_users(score: _ByHistory, rows: Sequence[Sequence[int]], place_UC: np.ndarray, items: int) -> np.ndarray:
    """Scores of the candidates from those of all items; 0 for one that is not in the catalogue. So many users at a time that all items fit in memory."""
    at_once = max(1, _CELLS_MAX // max(1, items))
    found = [_take(score(rows[first : first + at_once]), place_UC[first : first + at_once]) for first in range(0, len(rows), at_once)]
    return np.concatenate(found)


def _take(score_UI: np.ndarray, place_UC: np.ndarray) -> np.ndarray:
    return np.take_along_axis(np.pad(score_UI, ((0, 0), (0, 1))), place_UC, axis=1)


def _decayed(positives: Interactions, items: int, now_ms: int, half_life_ms: int) -> np.ndarray:
    value_I = np.zeros(items)
    for block in positives.blocks(0, positives.before(now_ms)):
        known = block.item_X < items
        value_I += np.bincount(block.item_X[known], np.exp2((block.time_X[known] - now_ms) / half_life_ms), items)
    return value_I


def _clicks(shown: Interactions, items: int, now_ms: int) -> np.ndarray:
    count_I = np.zeros(items, np.int64)
    for block in shown.blocks(0, shown.before(now_ms)):
        count_I += np.bincount(block.item_X[(block.item_X < items) & (block.kind_X & 1 > 0)], minlength=items)
    return count_I


def _latest(history: Interactions, items: int, now_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, items) of the latest behaviours with the catalogue before a time, in order of time."""
    end = history.before(now_ms)
    part = slice(max(0, end - _LOG_ROWS_MAX), end)
    user_X, item_X = history.user_X[part], history.item_X[part]
    known = item_X < items
    return user_X[known], item_X[known]


def _taken(user_X: np.ndarray, item_X: np.ndarray, items: int) -> csr_array:
    """Which user took which item, [P, I] of zeros and ones."""
    users, user_P = np.unique(user_X, return_inverse=True)
    taken_PI = csr_array((np.ones(len(item_X)), (user_P, item_X)), shape=(len(users), items))
    taken_PI.data[:] = 1.0
    return taken_PI


def _ease(taken_PI: csr_array) -> _ByHistory:
    """0 for an item that is not among the most taken."""
    items = taken_PI.shape[1]
    most = np.sort(np.argsort(-np.asarray(taken_PI.sum(axis=0)).ravel(), kind="stable")[:_EASE_ITEMS_MAX])
    taken_PK = taken_PI[:, most]
    inverse_KK = np.linalg.inv((taken_PK.T @ taken_PK).toarray() + _EASE_RIDGE * np.eye(len(most)))
    weight_KK = inverse_KK / -np.diag(inverse_KK)
    np.fill_diagonal(weight_KK, 0.0)

    def score(rows: Sequence[Sequence[int]]) -> np.ndarray:
        found_UI = np.zeros((len(rows), items))
        found_UI[:, most] = _histories(rows, items)[:, most] @ weight_KK
        return found_UI

    return score


def _knn(taken_PI: csr_array) -> _ByHistory:
    """Cosines of each item with those of each history, without itself, summed."""
    scaled_PI = taken_PI @ diags_array(1.0 / np.sqrt(np.maximum(np.asarray(taken_PI.sum(axis=0)).ravel(), 1.0)))
    own_I = (scaled_PI.multiply(scaled_PI)).sum(axis=0)

    def score(rows: Sequence[Sequence[int]]) -> np.ndarray:
        asked_UI = csr_array(_histories(rows, taken_PI.shape[1]))
        return np.asarray(((asked_UI @ scaled_PI.T) @ scaled_PI - asked_UI.multiply(own_I)).toarray())

    return score


def _histories(rows: Sequence[Sequence[int]], items: int) -> csr_array:
    pairs = np.array([(user, item) for user, row in enumerate(rows) for item in set(row)], np.int64).reshape(-1, 2)
    return csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(rows), items))


def _followers(user_X: np.ndarray, item_X: np.ndarray, items: int) -> _ByHistory:
    """How often each item came directly after the last one of each history."""
    order = np.argsort(user_X, kind="stable")
    item_X, same_X = item_X[order], np.diff(user_X[order]) == 0
    pairs = (np.ones(int(same_X.sum())), (item_X[:-1][same_X], item_X[1:][same_X]))
    next_II = csr_array(pairs, shape=(items, items))

    def score(rows: Sequence[Sequence[int]]) -> np.ndarray:
        last_U = np.array([row[-1] if row else -1 for row in rows])
        found_UI = np.zeros((len(rows), items))
        found_UI[last_U >= 0] = next_II[last_U[last_U >= 0]].toarray()
        return found_UI

    return score
