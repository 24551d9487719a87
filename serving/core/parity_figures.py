"""How far an answer is from a reference over the same candidates: the greatest difference, and the overlap of the top. Pure.

Arrays: C known candidates, T tasks, A items of the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.ids import Id


@dataclass(frozen=True, slots=True)
class ParityFigures:
    """difference_max = greatest |probability - reference| of the answer's items; overlap = share of the reference's top that is in the answer."""

    difference_max: float
    overlap: float


def compare_answer(
    place: Mapping[Id, int], scores_C: np.ndarray, reference_CT: np.ndarray, ids: Sequence[Id], probabilities_AT: np.ndarray
) -> ParityFigures:
    """`place` = index of each candidate in the reference's arrays; `ids` the answer, best first. An empty answer agrees with anything."""
    if not ids:
        return ParityFigures(0.0, 1.0)
    places_A = np.array([place[one] for one in ids])
    difference = float(np.abs(reference_CT[places_A] - probabilities_AT).max())
    best = np.argsort(-scores_C, kind="stable")[: len(ids)]
    return ParityFigures(difference, len(set(best.tolist()) & set(places_A.tolist())) / len(ids))
