"""Scores of shown items that need no learnt network, from earlier impressions; boosted trees among them.

    popularity   what came of the item so often
    item_rate    the same over how often it was shown, smoothed (schemas/statistics.py)
    trees        scikit-learn's boosted trees, untuned, on the model's own features

Here: these scores, and the places and labels of shown items. Not here: scores of candidates (plain_scores.py), what a model
gains over them (comparison.py).
Arrays: Q requests, C places, X shown items, F columns of the trees.
"""

from collections.abc import Collection

import numpy as np

from schemas.statistics import smoothed_rates
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.plain_scores import RATE

_TREES = {"max_iter": 100, "learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 100, "random_state": 0}
_SHOWN_MAX = 200_000  # that the trees learn from
TREES = "trees"


def shown_scores(train: TrainingSet, later: TrainingSet, tasks: Collection[str] = ()) -> dict[str, dict[str, np.ndarray]]:
    """Every plain score of the shown items of `later` for `tasks` (none named: all), [X] by task, then by score's name;
    X are the places of `shown_places(later)`, in order."""
    found: dict[str, dict[str, np.ndarray]] = {}
    item_X, other_X = shown_items(train), shown_items(later)
    latest = _latest(train)
    columns_XF, other_XF, of_latest = _columns(latest), _columns(later), shown_labels(latest)
    for task, label_X in shown_labels(train).items():
        if tasks and task not in tasks:
            continue
        items = len(train.items.begin_I)
        shown_I, came_I = np.bincount(item_X, minlength=items), np.bincount(item_X, label_X, items).astype(np.int64)
        found[task] = {"popularity": came_I[other_X].astype(float), RATE: smoothed_rates(came_I, shown_I)[other_X]}
        if 0 < of_latest[task].sum() < len(of_latest[task]):
            found[task][TREES] = _boost(columns_XF, of_latest[task], other_XF)
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


def _latest(train: TrainingSet) -> TrainingSet:
    """The latest requests, of no more shown items than the trees read in seconds."""
    newest = np.argsort(-train.time_Q, kind="stable")
    count = np.searchsorted(shown_places(train)[newest].sum(axis=1).cumsum(), _SHOWN_MAX, "right")
    return train.take(np.sort(newest[: max(1, count)]))


def _boost(columns_XF: np.ndarray, label_X: np.ndarray, other_XF: np.ndarray) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(**_TREES).fit(columns_XF, label_X > 0)
    return np.asarray(trees.decision_function(other_XF))


def _columns(data: TrainingSet) -> np.ndarray:
    """The model's features of each shown item as numbers, float32 [X, F]: of its row, the request and the profile. Of the history they are its length, its
    share in the item's category, and its nearness to the item."""
    known_QC = shown_places(data)
    query_X, row_X = np.nonzero(known_QC)[0], data.row_QC[known_QC]
    items, profiles = data.items, data.profiles(np.arange(len(data)))
    parts = [items.realtime_RQ.numpy()[row_X], *_numbers(items.inputs, row_X), *_numbers(data.context, query_X)]
    parts += [*_numbers(profiles, query_X), _of_history(data)[known_QC]]
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
