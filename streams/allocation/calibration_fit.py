"""What cached answers keep of full work's value, and the calibration of their scores, by age: from clicks of SHOWN cached answers alone.

The items of an answer are the highest of thousands of predictions, so their predictions are too high, and more so the older the scores. Random candidates do
not have that error, so no other clicks can calibrate it. Platt scaling of each age: sigmoid(slope logit + intercept).

Here: pure functions. Not here: giving a kept answer (serving/allocation/score_cache.py). Arrays: R shown items, F features.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.allocation import CachedAge
from schemas.events import AllocationOutcome, ImpressionRecord

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
    outcomes: Iterable[AllocationOutcome], impressions: Iterable[ImpressionRecord], whole: Mapping[str, float], within_ms: int
) -> list[ShownAgain]:
    """Cached answers that were shown. `whole`: what full work was expected to bring, by request id."""
    cached = {one.request_id: one for one in outcomes if one.state == "cached" and one.cached_s is not None}
    found = []
    for shown in impressions:
        one = cached.get(shown.request_id)
        if one is None or one.cached_s is None or not 0 <= shown.time_ms - one.time_ms <= within_ms:
            continue
        logits = dict(zip(map(str, one.items), one.logits, strict=False))
        pairs = [(logits[str(item.item_id)], item.clicked) for item in shown.items if str(item.item_id) in logits]
        if pairs and one.request_id in whole:
            logit_R, clicked_R = np.array(pairs, float).T
            value = sum(item.bid for item in shown.items if item.clicked)
            found.append(ShownAgain(one.cached_s, logit_R, clicked_R, value, whole[one.request_id]))
    return found


def fit_ages(shown: Sequence[ShownAgain], before: Sequence[CachedAge]) -> tuple[CachedAge, ...]:
    """The ages with enough clicks; those `before`, as they are, if there is none."""
    bins: dict[int, list[ShownAgain]] = {}
    for one in shown:
        bins.setdefault(int(np.searchsorted(AGE_EDGES_S, one.age_s)), []).append(one)
    ages = list[CachedAge]()
    for _, of in sorted(bins.items()):
        logit_R, clicked_R = (np.concatenate([getattr(one, name) for one in of]) for name in ("logit_R", "clicked_R"))
        whole = sum(one.whole for one in of)
        if clicked_R.sum() >= CLICKS_MIN and whole > 0:
            slope, intercept = map(float, fit_platt(logit_R, clicked_R)[:2])
            kept = min(1.0, sum(one.value for one in of) / whole, ages[-1].kept if ages else 1.0)  # an older answer is not better
            ages.append(CachedAge(float(np.mean([one.age_s for one in of])), kept, slope, intercept))
    return tuple(ages) or tuple(before)


def fit_platt(logit_R: np.ndarray, clicked_R: np.ndarray, domain_RF: np.ndarray | None = None) -> np.ndarray:
    """Slope, intercept, and weights of domain features (the model's name, the surface), if there are any, of sigmoid(slope logit + intercept + domain w)."""
    columns = [logit_R[:, None], np.ones((len(logit_R), 1))] + ([] if domain_RF is None else [domain_RF])
    x_RF = np.concatenate(columns, 1)
    prior_F = np.zeros(x_RF.shape[1])
    prior_F[0] = 1.0
    w_F = prior_F.copy()
    for _ in range(25):
        p_R = 1 / (1 + np.exp(-np.clip(x_RF @ w_F, -30, 30)))
        curvature = (x_RF * (p_R * (1 - p_R))[:, None]).T @ x_RF + _PRIOR * np.eye(len(w_F))
        w_F += np.clip(np.linalg.solve(curvature, x_RF.T @ (clicked_R - p_R) - _PRIOR * (w_F - prior_F)), -2, 2)
    return w_F
