"""The best k of C scores in the one order of the project: score descending, then id ascending (numbers, or bytes of text).

A score that is not a number comes last: it takes no other's place, and an answer that has nothing better shows it (serving/reports.py counts these).

Arrays: C candidates, A answers.
"""

import numpy as np

from schemas.ids import Id


def rank_top(scores_C: np.ndarray, ids_C: "np.ndarray | list[Id]", top_k: int) -> np.ndarray:
    """int64 [A]: places of the best min(top_k, C), best first. Ids are all different."""
    count = min(top_k, len(scores_C))
    if count == 0:
        return np.empty(0, np.int64)
    if np.isnan(scores_C.min()):  # the least is no number if any is none
        scores_C = np.where(np.isnan(scores_C), -np.inf, scores_C)
    places = np.arange(len(scores_C))
    if count < len(scores_C):  # everything that ties with the last place stays, then the exact order decides
        places = np.flatnonzero(scores_C >= np.partition(scores_C, -count)[-count])
    return _in_order(scores_C, ids_C, places)[:count]


def _in_order(scores_C: np.ndarray, ids_C: "np.ndarray | list[Id]", places: np.ndarray) -> np.ndarray:
    if isinstance(ids_C, np.ndarray):
        return places[np.lexsort((ids_C[places], -scores_C[places]))]
    scores = scores_C[places].tolist()
    keys = [(-score, str(ids_C[place]).encode()) for score, place in zip(scores, places.tolist(), strict=True)]
    return places[sorted(range(len(keys)), key=keys.__getitem__)]
