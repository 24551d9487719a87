"""What cached answers keep of full work's value, and the calibration of their scores, by age: from clicks of SHOWN cached answers alone.

The items of an answer are the highest of thousands of predictions, so their predictions are too high, and more so the older the scores. Random candidates do
not have that error, so no other clicks can calibrate it. Platt scaling of each age: sigmoid(slope logit + intercept).

Here: pure functions. Not here: giving a kept answer (serving/allocation/score_cache.py). Arrays: R shown items, F: slope and intercept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.allocation import CachedAge
from schemas.events import AllocationOutcome, ImpressionRecord
from streams.allocation.join import by_request, items_shown

AGE_EDGES_S = (30.0, 120.0, 300.0, 900.0)  # between the ages that are fitted apart
CLICKS_MIN = 240  # of an age: its ratio of predicted to true clicks is then known to 5%
_PRIOR = 1e-2


@dataclass(frozen=True)
class ShownAgain:
    """A shown cached answer: its age, the logits of its items, their clicks, its outcome and the value that was expected of full work."""

    age_s: float
    logit_R: np.ndarray
    clicked_R: np.ndarray
    value: float
    whole: float


def join_clicks(
    outcomes: Iterable[AllocationOutcome], impressions: Iterable[ImpressionRecord], whole: Mapping[str, float]
) -> list[ShownAgain]:
    """Cached answers that were shown. `whole`: what full work was expected to bring, by request id."""
    cached = {one.request_id: one for one in outcomes if one.state == "cached" and one.cached_s is not None}
    shown, found = by_request(impressions), []
    for one in cached.values():
        bids = items_shown(one, shown) or {}
        pairs = [(logit, bids[str(item)] is not None) for item, logit in zip(one.items, one.logits, strict=False) if str(item) in bids]
        if pairs and one.cached_s is not None and one.request_id in whole:
            logit_R, clicked_R = np.array(pairs, float).T
            value = sum(bid for bid in bids.values() if bid is not None)
            found.append(ShownAgain(one.cached_s, logit_R, clicked_R, value, whole[one.request_id]))
    return found


def fit_ages(shown: Sequence[ShownAgain], before: Sequence[CachedAge]) -> tuple[CachedAge, ...]:
    """The ages with enough clicks, and those `before` that none of them is near: their calibration is that of the next younger one.

    An age whose higher scores have fewer clicks (slope <= 0) is not fitted: calibration must not turn the order around.
    """
    bins: dict[int, list[ShownAgain]] = {}
    for one in shown:
        bins.setdefault(_bin(one.age_s), []).append(one)
    fitted: dict[int, CachedAge] = {}
    for place, of in bins.items():
        logit_R, clicked_R = (np.concatenate([getattr(one, name) for one in of]) for name in ("logit_R", "clicked_R"))
        whole = sum(one.whole for one in of)
        if clicked_R.sum() >= CLICKS_MIN and whole > 0:
            slope, intercept = map(float, fit_platt(logit_R, clicked_R))
            if slope > 0:
                kept = min(1.0, sum(one.value for one in of) / whole)
                fitted[place] = CachedAge(float(np.mean([one.age_s for one in of])), kept, slope, intercept)
    oldest_s = max((one.age_s for one in fitted.values()), default=0.0)
    assumed = [one for one in before if _bin(one.age_s) not in fitted or one.age_s > oldest_s]
    ages = list[CachedAge]()
    for age in sorted([*fitted.values(), *assumed], key=lambda age: age.age_s):
        last = ages[-1] if ages else age
        calibrated = age if age in fitted.values() else last
        ages.append(CachedAge(age.age_s, min(age.kept, last.kept), calibrated.slope, calibrated.intercept))  # an older answer is not better
    return tuple(ages)


def _bin(age_s: float) -> int:
    return int(np.searchsorted(AGE_EDGES_S, age_s))


def fit_platt(logit_R: np.ndarray, clicked_R: np.ndarray) -> np.ndarray:
    """Slope and intercept of sigmoid(slope logit + intercept): [2]."""
    x_RF = np.stack([logit_R, np.ones(len(logit_R))], 1)
    prior_F = np.array([1.0, 0.0])
    w_F = prior_F.copy()
    for _ in range(25):
        p_R = 1 / (1 + np.exp(-np.clip(x_RF @ w_F, -30, 30)))
        curvature = (x_RF * (p_R * (1 - p_R))[:, None]).T @ x_RF + _PRIOR * np.eye(len(w_F))
        w_F += np.clip(np.linalg.solve(curvature, x_RF.T @ (clicked_R - p_R) - _PRIOR * (w_F - prior_F)), -2, 2)
    return w_F
