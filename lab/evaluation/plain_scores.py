"""Scores that need no learnt network: what a model has to beat before it is worth serving.

    popularity, popularity_28d, ...   positives of the last days that the mapping names, and of each window that fits the log
    popularity_decayed                positives, each worth half as much for each shortest such window that has passed
    repeats                           how often the user met the item before; among equals, popularity
    item_knn                          cosine between items by their users, summed over the user's history
    ease                              EASE (arXiv 1905.03375), ridge 100, of the 3,000 items that most users took; among equals, popularity
    last_item                         how often the item followed the user's last one directly, in all histories; among equals, popularity
    item_rate                         clicks over shown, smoothed; where the log says what was shown

Here: scores of candidates from the log before the evaluation. Not here: of shown items (shown_scores.py), measures and figures (mapped_data.py).
No leak: all of it reads what was known at the evaluation time alone.
Arrays: U users, P users of the log, C candidates, I items, K of them.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array

from infra.data.interactions import Interactions
from lab.catalogues.catalogue import Evaluation, Log
from schemas.statistics import fit_windows, smoothed_rates

_LOG_ROWS_MAX = 5_000_000  # the latest of a longer log
_EASE_ITEMS_MAX, _EASE_RIDGE = 3_000, 100.0
_TIE = 1e-6  # of popularity, which decides among equals
RATE = "item_rate"


@dataclass(frozen=True)
class Candidates:
    """The candidates of the held-out users, all [U, C]: ids (object, None where padded), which are relevant (bool), how often the user met each
    before, and its popularity (float64)."""

    ids_UC: np.ndarray
    relevant_UC: np.ndarray
    met_UC: np.ndarray
    popularity_UC: np.ndarray

    def present(self) -> np.ndarray:
        """Which places hold a candidate and are not padding, bool [U, C]."""
        return self.ids_UC != np.array(None)

    def of(self, users: slice) -> "Candidates":
        """Those of some of the users."""
        return Candidates(self.ids_UC[users], self.relevant_UC[users], self.met_UC[users], self.popularity_UC[users])


def collect_candidates(evaluation: Evaluation) -> Candidates:
    """The held-out users' candidates as matrices, padded to the longest list."""
    shape = (len(evaluation.users), max(len(user.candidates) for user in evaluation.users))
    ids_UC = np.full(shape, None, object)
    relevant_UC, met_UC, popularity_UC = np.zeros(shape, bool), np.zeros(shape), np.zeros(shape)
    for u, user in enumerate(evaluation.users):
        listed = user.candidates.tolist()
        times: dict[object, int] = {}
        for behaviour in user.behaviours:
            times[behaviour.item_id] = times.get(behaviour.item_id, 0) + 1
        ids_UC[u, : len(listed)] = listed
        relevant_UC[u, : len(listed)] = [item in user.relevant for item in listed]
        met_UC[u, : len(listed)] = [times.get(item, 0) for item in listed]
        popularity_UC[u, : len(listed)] = evaluation.popularity_of(user.candidates)
    return Candidates(ids_UC, relevant_UC, met_UC, popularity_UC)


def simple_scores(candidates: Candidates) -> dict[str, np.ndarray]:
    """Popularity and repeats, float64 [U, C] by name."""
    share_UC = candidates.popularity_UC / (candidates.popularity_UC.max(initial=0.0) + 1)
    return {"popularity": candidates.popularity_UC, "repeats": candidates.met_UC + share_UC}


def log_scores(log: Log, evaluation: Evaluation, ids_UC: np.ndarray, share_UC: np.ndarray) -> dict[str, np.ndarray]:
    """The plain scores of candidates that read the log, float64 [U, C] by name; undefined where a candidate is padding. `share_UC`: popularity below 1."""
    place = {item: number for number, item in enumerate(log.item_ids)}
    items, now_ms = len(place), log.now_ms
    place_UC = np.array([[place.get(item, items) for item in row] for row in ids_UC.tolist()])

    def spread(value_I: np.ndarray) -> np.ndarray:
        return np.append(value_I, 0.0)[place_UC]

    span_ms = now_ms - int(log.positives.time_X[0])
    windows = fit_windows(span_ms)
    found = dict[str, np.ndarray]()
    for name, window_ms in windows.items():
        found[f"popularity_{name}"] = spread(log.positives.counts(items, now_ms - window_ms, now_ms).astype(float))
    found["popularity_decayed"] = spread(_decayed(log.positives, items, now_ms, min(windows.values(), default=max(1, span_ms // 10))))
    rows = [[place[b.item_id] for b in user.behaviours if b.item_id in place] for user in evaluation.users]
    found["item_knn"] = _take(_knn(log.history, items, now_ms, rows), place_UC)
    found["ease"] = _take(_ease(log.history, items, now_ms, rows), place_UC) + _TIE * share_UC
    found["last_item"] = _take(_followers(log.history, items, now_ms, rows), place_UC) + share_UC
    if log.shown is not None:
        shown_I, clicked_I = (_counts(log.shown, items, now_ms, clicked) for clicked in (False, True))
        found[RATE] = spread(smoothed_rates(clicked_I, shown_I))
    return found


def _take(score_UI: np.ndarray, place_UC: np.ndarray) -> np.ndarray:
    """Scores of the candidates from those of all items; 0 for one that is not in the catalogue."""
    return np.take_along_axis(np.pad(score_UI, ((0, 0), (0, 1))), place_UC, axis=1)


def _decayed(positives: Interactions, items: int, now_ms: int, half_life_ms: int) -> np.ndarray:
    value_I = np.zeros(items)
    for block in positives.blocks(0, positives.before(now_ms)):
        known = block.item_X < items
        value_I += np.bincount(block.item_X[known], np.exp2((block.time_X[known] - now_ms) / half_life_ms), items)
    return value_I


def _counts(log: Interactions, items: int, now_ms: int, clicked: bool) -> np.ndarray:
    count_I = np.zeros(items, np.int64)
    for block in log.blocks(0, log.before(now_ms)):
        count_I += np.bincount(block.item_X[(block.item_X < items) & ((block.kind_X & 1 > 0) | (not clicked))], minlength=items)
    return count_I


def _latest(history: Interactions, items: int, now_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, items) of the latest behaviours with the catalogue before a time, in order of time."""
    end = history.before(now_ms)
    part = slice(max(0, end - _LOG_ROWS_MAX), end)
    user_X, item_X = np.asarray(history.user_X[part]), np.asarray(history.item_X[part])
    known = item_X < items
    return user_X[known], item_X[known]


def _taken(history: Interactions, items: int, now_ms: int) -> csr_array:
    """Which user took which item, [P, I] of zeros and ones."""
    user_X, item_X = _latest(history, items, now_ms)
    users, user_P = np.unique(user_X, return_inverse=True)
    taken_PI = csr_array((np.ones(len(item_X)), (user_P, item_X)), shape=(len(users), items))
    taken_PI.data[:] = 1.0
    return taken_PI


def _ease(history: Interactions, items: int, now_ms: int, rows: list[list[int]]) -> np.ndarray:
    """[U, I]; 0 for an item that is not among the most taken."""
    taken_PI = _taken(history, items, now_ms)
    most = np.sort(np.argsort(-np.asarray(taken_PI.sum(axis=0)).ravel(), kind="stable")[:_EASE_ITEMS_MAX])
    taken_PK = taken_PI[:, most]
    inverse_KK = np.linalg.inv((taken_PK.T @ taken_PK).toarray() + _EASE_RIDGE * np.eye(len(most)))
    weight_KK = inverse_KK / -np.diag(inverse_KK)
    np.fill_diagonal(weight_KK, 0.0)
    found_UI = np.zeros((len(rows), items))
    found_UI[:, most] = _histories(rows, items)[:, most] @ weight_KK
    return found_UI


def _knn(history: Interactions, items: int, now_ms: int, rows: list[list[int]]) -> np.ndarray:
    """Cosines of each item with those of each history, without itself, summed: [U, I]."""
    taken_PI = _taken(history, items, now_ms)
    scaled_PI = taken_PI @ diags_array(1.0 / np.sqrt(np.maximum(np.asarray(taken_PI.sum(axis=0)).ravel(), 1.0)))
    asked_UI = csr_array(_histories(rows, items))
    own_UI = asked_UI.multiply((scaled_PI.multiply(scaled_PI)).sum(axis=0))
    return np.asarray(((asked_UI @ scaled_PI.T) @ scaled_PI - own_UI).toarray())


def _histories(rows: list[list[int]], items: int) -> csr_array:
    pairs = np.array([(user, item) for user, row in enumerate(rows) for item in set(row)], np.int64).reshape(-1, 2)
    return csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(rows), items))


def _followers(history: Interactions, items: int, now_ms: int, rows: list[list[int]]) -> np.ndarray:
    """How often each item came directly after the last one of each history: [U, I]."""
    user_X, item_X = _latest(history, items, now_ms)
    order = np.argsort(user_X, kind="stable")
    item_X, same_X = item_X[order], np.diff(user_X[order]) == 0
    pairs = (np.ones(int(same_X.sum())), (item_X[:-1][same_X], item_X[1:][same_X]))
    next_II = csr_array(pairs, shape=(items, items))
    last_U = np.array([row[-1] if row else -1 for row in rows])
    known = last_U >= 0
    found_UI = np.zeros((len(rows), items))
    found_UI[known] = next_II[last_U[known]].toarray()
    return found_UI
