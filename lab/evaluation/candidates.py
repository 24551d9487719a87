"""The candidates of held-out users as matrices, and their plain scores.

Here: ids to places. Not here: the scores (streams/training/plain_scores.py), who is measured (lab/catalogues).
Arrays: U users, C candidates.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from infra.data.interactions import Log
from lab.catalogues.catalogue import Evaluation
from streams.training.plain_scores import log_scores, log_windows, share_of, simple_scores


@dataclass(frozen=True)
class Candidates:
    """The candidates of the held-out users, all [U, C].

    Ids (object, None where padded), whether each is relevant (bool), how often the user met it, and its popularity (float64)."""

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


def candidate_scores(log: Log, evaluation: Evaluation, candidates: Candidates) -> dict[str, np.ndarray]:
    """Every plain score of the candidates, float64 [U, C] by name; undefined where a candidate is padding. The names depend on the log alone, and not on the
    time of the evaluation."""
    place = {item: number for number, item in enumerate(log.item_ids)}
    place_UC = np.array([[place.get(item, len(place)) for item in row] for row in candidates.ids_UC.tolist()])
    rows = [[place[b.item_id] for b in user.behaviours if b.item_id in place] for user in evaluation.users]
    simple = simple_scores(candidates.popularity_UC, candidates.met_UC)
    windows = log_windows(log)
    return simple | log_scores(
        dataclasses.replace(log, now_ms=evaluation.now_ms), windows, rows, place_UC, share_of(candidates.popularity_UC)
    )
