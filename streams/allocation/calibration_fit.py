"""Cached answers by age: how their scores are calibrated, and the share of full work's value that they keep.

The items of an answer are the highest of thousands of predictions, so their predictions are too high (the winner's curse), and more so the older the scores:
what has changed since is noise that the choice selected. Only clicks of SHOWN cached answers see that. Random candidates, or answers of all ages together,
give another calibration. So each age has its own Platt scaling, or isotonic regression, of the logits of shown items.

Here: pure functions of columns. Arrays: R shown items (or answers), F features.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.isotonic import isotonic_regression

from schemas.allocation import CachedAge

AGES_S = (0.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
CLICKS_MIN = 50  # an age with fewer keeps the calibration of the age before it
_PRIOR = 1e-2


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


def fit_isotonic(logit_R: np.ndarray, clicked_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots and probabilities, for `np.interp`: the alternative to Platt where clicks are many."""
    order_R = np.argsort(logit_R, kind="stable")
    return logit_R[order_R], np.asarray(isotonic_regression(clicked_R[order_R].astype(float), y_min=0.0, y_max=1.0))


def fit_ages(age_R: np.ndarray, logit_R: np.ndarray, clicked_R: np.ndarray, kept: Sequence[float]) -> tuple[CachedAge, ...]:
    """The calibration of each of `AGES_S`, from shown items of that age to the next one. `kept`: by age, made not to rise with it."""
    kept_A = isotonic_regression(np.clip(kept, 0, 1), increasing=False)
    ages, slope, intercept = [], 1.0, 0.0
    for place, age_s in enumerate(AGES_S):
        end_s = AGES_S[place + 1] if place + 1 < len(AGES_S) else np.inf
        of_age_R = (age_R >= age_s) & (age_R < end_s)
        if clicked_R[of_age_R].sum() >= CLICKS_MIN:
            slope, intercept = map(float, fit_platt(logit_R[of_age_R], clicked_R[of_age_R]))
        ages.append(CachedAge(age_s, float(kept_A[place]), slope, intercept))
    return tuple(ages)


def fit_kept(age_R: np.ndarray, outcome_R: np.ndarray, whole_R: np.ndarray) -> list[float]:
    """By age: outcomes of cached answers over what full work of the same requests was believed to be worth; the first is 1 where nothing is known."""
    kept, last = [], 1.0
    for place, age_s in enumerate(AGES_S):
        end_s = AGES_S[place + 1] if place + 1 < len(AGES_S) else np.inf
        of_age_R = (age_R >= age_s) & (age_R < end_s)
        if outcome_R[of_age_R].sum() >= CLICKS_MIN:
            last = float(outcome_R[of_age_R].sum() / max(whole_R[of_age_R].sum(), 1e-9))
        kept.append(last)
    return kept
