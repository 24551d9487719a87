"""Fits of dropping: the length of the rule's row from answered requests, and a model of a request's chance to be valid.

The model learns from answered requests alone, each weighted by one over its chance to be answered, which every outcome logs. A dropped request has no label:
taken as invalid it would confirm the model that dropped it. A random slice that is never dropped keeps every chance above 0, and measures both.

Here: pure functions of columns. Arrays: R requests, F features.
"""

from collections.abc import Sequence

import numpy as np

from schemas.allocation import DropRule

WEIGHT_MAX = 50.0
ROWS = range(2, 16)


def fit_rule(valid: Sequence[np.ndarray], share_max: float, lost_max: float) -> DropRule:
    """The shortest row whose drops stay within a share of the requests and of the valid ones. `valid`: bool [R] of each user, in the order of time.

    Answered sequences of users whom no rule dropped are needed: those of the slice `undropped`. Row 0, no rule, if no row fits.
    """
    for row in ROWS:
        dropped, lost = _try_rule(valid, row)
        if dropped <= share_max and lost <= lost_max:
            return DropRule(row, share_max)
    return DropRule(0, share_max)


def _try_rule(valid: Sequence[np.ndarray], row: int) -> tuple[float, float]:
    """(share of requests that the rule drops, share of the valid ones that it loses)."""
    dropped, lost = 0, 0
    for of_user in valid:
        count = 0
        for is_valid in of_user:
            if count >= row:
                dropped, lost, count = dropped + 1, lost + int(is_valid), 0
            else:
                count = 0 if is_valid else count + 1
    return dropped / max(1, sum(map(len, valid))), lost / max(1, sum(int(of.sum()) for of in valid))


def fit_valid(x_RF: np.ndarray, valid_R: np.ndarray, answered_R: np.ndarray) -> np.ndarray:
    """Weights [F] of a logistic regression of `valid` on answered requests. `answered_R`: the chance of each to be answered."""
    weight_R = np.minimum(1 / np.maximum(answered_R, 1e-9), WEIGHT_MAX)
    w_F = np.zeros(x_RF.shape[1])
    for _ in range(15):
        p_R = 1 / (1 + np.exp(-np.clip(x_RF @ w_F, -15, 15)))
        curvature = (x_RF * (weight_R * p_R * (1 - p_R))[:, None]).T @ x_RF + np.eye(len(w_F))
        w_F += np.linalg.solve(curvature, x_RF.T @ (weight_R * (valid_R - p_R)) - w_F)
    return w_F
