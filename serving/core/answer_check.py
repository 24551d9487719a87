"""Whether an answer is a correct top-k of known scores, given how much two correct computations may differ.

Items whose scores differ by less than the tolerance may be in either order. At the end of the list either may be missing. All else must agree.

Arrays: C known candidates, T tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.ids import Id, encode_index_key


@dataclass(frozen=True, slots=True)
class Reference:
    """The expected values. `place`: index of each known candidate in the arrays; `tolerance_C`: of scores; `probability_tolerance`: of probabilities."""

    place: Mapping[Id, int]
    scores_C: np.ndarray
    probabilities_CT: np.ndarray
    tolerance_C: np.ndarray
    probability_tolerance: float
    unknown_count: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What the answer says."""

    ids: Sequence[Id]
    scores: Sequence[float]
    probabilities: Sequence[Sequence[float]]
    unknown_count: int
    top_k: int


def check_answer(reference: Reference, claim: Claim) -> tuple[str, float]:
    """(the fault, or ""; greatest difference of a score in units of its tolerance)."""
    wrong = _check_members(reference, claim)
    if wrong or not claim.ids:
        return wrong, 0.0
    places = np.array([reference.place[i] for i in claim.ids])
    scores = np.asarray(claim.scores)
    off = np.abs(scores - reference.scores_C[places]) / reference.tolerance_C[places]
    worst = int(off.argmax())
    if off[worst] > 1:
        expected = reference.scores_C[places[worst]]
        return f"score of {claim.ids[worst]!r} is {scores[worst]:.9g}, its version's rows give {expected:.9g}", float(off[worst])
    apart = np.abs(np.asarray(claim.probabilities) - reference.probabilities_CT[places]).max()
    if apart > reference.probability_tolerance:
        return f"a probability is {apart:.3g} away from its version's, allowed {reference.probability_tolerance:.3g}", float(off[worst])
    return _check_order(reference, claim, places, scores), float(off[worst])


def _check_members(reference: Reference, claim: Claim) -> str:
    if claim.unknown_count != reference.unknown_count:
        return f"{claim.unknown_count} candidates are called unknown, its version does not have {reference.unknown_count}"
    expected = min(claim.top_k, len(reference.place))
    if len(claim.ids) != expected or len(set(claim.ids)) != expected:
        return f"{len(claim.ids)} items ({len(set(claim.ids))} different), expected {expected}"
    strange = [i for i in claim.ids if i not in reference.place]
    return f"item {strange[0]!r} is not a known candidate of the request" if strange else ""


def _check_order(reference: Reference, claim: Claim, places: np.ndarray, scores: np.ndarray) -> str:
    ordered = [(-score, encode_index_key(i)) for score, i in zip(scores.tolist(), claim.ids, strict=True)]
    if ordered != sorted(ordered):
        return "items are not by score descending, then id ascending"
    left_out = np.ones(len(reference.scores_C), bool)
    left_out[places] = False
    better = left_out & (reference.scores_C - reference.tolerance_C > scores[-1])
    if better.any():
        missing = next(i for i, place in reference.place.items() if better[place])
        return f"item {missing!r} is better than the last of the answer and was left out"
    return ""
