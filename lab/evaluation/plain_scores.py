"""Scores that need no learnt network: what a model has to beat before it is worth serving.

    popularity, popularity_28d, ...   positives of the last days that the mapping names, and of each window that fits the log
    popularity_decayed                positives, each worth half as much for each shortest such window that has passed
    repeats                           how often the user met the item before; among equals, popularity
    item_knn                          cosine between items by their users, summed over the user's history
    ease                              EASE (arXiv 1905.03375), ridge 100, of the 3,000 items that most users took; among equals, popularity
    last_item                         how often the item followed the user's last one directly, in all histories; among equals, popularity
    item_rate                         clicks over shown, smoothed; of shown items and with impressions only
    trees                             scikit-learn's boosted trees, untuned, on the model's own features; of shown items only

No leak: all of it reads what was known at the evaluation time alone.
Arrays: U users, C candidates, I items, X shown rows, F columns of the trees.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array, diags_array

from infra.data.catalogue import Evaluation
from infra.data.interactions import Interactions
from infra.data.item_statistics import count_positives
from infra.data.mapped_catalogue import MappedCatalogue
from schemas.statistics import DAY_MS, fit_windows, smoothed_rates
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM

_LOG_ROWS_MAX = 5_000_000  # the latest of a longer log
_TREES = {"max_iter": 100, "learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 100, "random_state": 0}
_EASE_ITEMS_MAX, _EASE_RIDGE = 3_000, 100.0
_TIE = 1e-6  # of popularity, which decides among equals
_RATE = "item_rate"
TREES = "trees"


def log_scores(catalogue: MappedCatalogue, evaluation: Evaluation, ids_UC: np.ndarray, share_UC: np.ndarray) -> dict[str, np.ndarray]:
    """The plain scores of candidates that read the log, float64 [U, C] by name; undefined where a candidate is padding. `share_UC`: popularity below 1."""
    sources = catalogue.sources
    place = {item: number for number, item in enumerate(sources.item_rows.ids)}
    items, now_ms = len(place), sources.now_ms
    place_UC = np.array([[place.get(item, items) for item in row] for row in ids_UC.tolist()])

    def spread(value_I: np.ndarray) -> np.ndarray:
        return np.append(value_I, 0.0)[place_UC]

    positives, history = sources.positives, sources.history
    span_ms = now_ms - int(positives.time_X[0])
    windows = fit_windows(span_ms)
    found = dict[str, np.ndarray]()
    for name, window_ms in windows.items():
        found[f"popularity_{name}"] = spread(count_positives(positives, items, now_ms, window_ms / DAY_MS).astype(float))
    found["popularity_decayed"] = spread(_decayed(positives, items, now_ms, min(windows.values(), default=max(1, span_ms // 10))))
    rows = [[place[b.item_id] for b in user.behaviours if b.item_id in place] for user in evaluation.users]
    found["item_knn"] = _take(_knn(history, items, now_ms, rows), place_UC)
    found["ease"] = _take(_ease(history, items, now_ms, rows), place_UC) + _TIE * share_UC
    found["last_item"] = _take(_followers(history, items, now_ms, rows), place_UC) + share_UC
    if sources.shown is not None:
        log = sources.shown_log
        shown_I, clicked_I = (_counts(log, items, now_ms, clicked) for clicked in (False, True))
        found[_RATE] = spread(smoothed_rates(clicked_I, shown_I))
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


# --- shown items --------------------------------------------------------------------------------------------------------


def shown_scores(train: TrainingSet, later: TrainingSet, tell: Callable[[str], None] = lambda _: None) -> dict[str, dict[str, np.ndarray]]:
    """Every plain score of the shown items of `later`, [X] by task, then by score's name; X are the places of `shown_places(later)`, in order."""
    found: dict[str, dict[str, np.ndarray]] = {}
    item_X, other_X = shown_items(train), shown_items(later)
    columns_XF, other_XF = _columns(train), _columns(later)
    for task, label_X in shown_labels(train).items():
        tell(task)
        items = len(train.items.begin_I)
        shown_I, came_I = np.bincount(item_X, minlength=items), np.bincount(item_X, label_X, items).astype(np.int64)
        found[task] = {"popularity": came_I[other_X].astype(float), _RATE: smoothed_rates(came_I, shown_I)[other_X]}
        if 0 < label_X.sum() < len(label_X):
            found[task][TREES] = _boost(columns_XF, label_X, other_XF)
    return found


def shown_places(data: TrainingSet) -> np.ndarray:
    """Which places hold an item, bool [Q, C]."""
    return data.row_QC != NOT_AN_ITEM


def shown_items(data: TrainingSet) -> np.ndarray:
    """The item's number at each place that holds one, [X]."""
    return np.searchsorted(data.items.begin_I, data.row_QC[shown_places(data)], "right") - 1


def shown_labels(data: TrainingSet) -> dict[str, np.ndarray]:
    """What came of each shown item by task, float32 [X], the click first; without the task that every shown item fulfils."""
    known_QC, tasks = shown_places(data), data.spec.tasks
    outcomes = {task: data.outcomes_QCT[..., place][known_QC] for place, task in enumerate(tasks[1:]) if place != data.spec.shown_task}
    return {tasks[0]: data.clicked_QC[known_QC], **outcomes}


def _boost(columns_XF: np.ndarray, label_X: np.ndarray, other_XF: np.ndarray) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(**_TREES).fit(columns_XF, label_X > 0)
    return np.asarray(trees.decision_function(other_XF))


def _columns(data: TrainingSet) -> np.ndarray:
    """The model's features of each shown item as numbers, float32 [X, F]: of its row, the request, the profile; and how much of the history is of the item's
    category, how long it is, and how near its items are."""
    known_QC = shown_places(data)
    query_X, row_X = np.nonzero(known_QC)[0], data.row_QC[known_QC]
    items, histories = data.items, data.histories
    profile_X = histories.profiles_as_of(data.user_Q, data.time_Q)[query_X]
    parts = [items.realtime_RQ.numpy()[row_X], *_numbers(items.inputs, row_X), *_numbers(data.context, query_X)]
    parts += [*_numbers(histories.profiles, profile_X), _of_history(data)[known_QC]]
    return np.concatenate([part.reshape(len(row_X), -1) for part in parts], axis=1).astype(np.float32)


def _numbers(block: object, rows: np.ndarray) -> list[np.ndarray]:
    """Categoricals as codes, numbers and vectors as they are, bags as their first values."""
    categorical, numeric, bags, vectors = (getattr(block, name).numpy() for name in ("categorical", "numeric", "bags", "embeddings"))
    return [categorical[rows], numeric[rows], bags[rows][..., :2], vectors[rows]]


def _of_history(data: TrainingSet) -> np.ndarray:
    """[Q, C, 3 + kinds]: behaviours, those of the candidate's category, the mean product of the item's vectors with theirs; and of each kind."""
    items, histories, last = data.items, data.histories, data.spec.sim_behaviours
    kinds = len(data.spec.schema.behaviour_kinds) + 1
    out_QCF = np.zeros((*data.row_QC.shape, 3 + kinds), np.float32)
    category_R, vectors_RE = items.category_R.numpy(), items.inputs.embeddings.numpy()
    kind_H = histories.kind_H.numpy()
    for query in range(len(data)):
        end, row_C = data.history_end_Q[query], np.maximum(data.row_QC[query], 0)
        begin = max(histories.begin_U[data.user_Q[query]], end - last)
        met = histories.item_H[begin:end]
        row_L = items.end_I[met[met >= 0]] - 1
        out_QCF[query, :, 3:] = np.bincount(kind_H[begin:end], minlength=kinds)
        out_QCF[query, :, 0] = end - begin
        out_QCF[query, :, 1] = (category_R[row_L] == category_R[row_C][:, None]).mean(axis=1) if len(row_L) else 0.0
        if len(row_L) and vectors_RE.shape[1]:
            out_QCF[query, :, 2] = vectors_RE[row_C] @ vectors_RE[row_L].mean(axis=0)
    return out_QCF
