"""Costs of levels from measured processor times, ports included: non-negative least squares on candidates, pairs, and the user half's behaviours.

Here: pure functions of columns. Arrays: R requests, F columns of the regression.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.linear_model import LinearRegression

from schemas.actions import Action, Kind
from schemas.allocation import Costs, LevelCost, Requests

MEASURED_MIN = 200
TRIMMED = 0.99  # quantile: the slowest of each level are waits of the system, no work
_FIXED_MS_MIN = 1e-3


def fit_costs(actions: Sequence[Action], requests: Requests, action_R: np.ndarray, took_R: np.ndarray, before: Costs) -> Costs:
    """Costs of the levels with at least `MEASURED_MIN` measured requests; others keep those `before`."""
    levels: dict[str, LevelCost] = dict(before.levels)
    for level in sorted({action.level for action in actions if action.kind is Kind.RANK}):
        of_level = np.array([action.level == level for action in actions])[action_R] & np.isfinite(took_R)
        if of_level.sum() >= MEASURED_MIN:
            most_R = np.array([action.candidates for action in actions])[action_R[of_level]]
            levels[level] = _fit_level(requests.rows(of_level), most_R, took_R[of_level])
    return Costs(levels, before.drop_ms, before.pass_ms, before.cached_ms)


def _fit_level(requests: Requests, most_R: np.ndarray, took_R: np.ndarray) -> LevelCost:
    kept_R = took_R <= np.quantile(took_R, TRIMMED)
    n, history, user = np.minimum(requests.candidates_R, most_R), requests.behaviours_R, requests.needs_user_R.astype(float)
    x_RF = np.stack([np.ones(len(n)), 1e-3 * n, 1e-6 * n * history, user, 1e-3 * user * history], 1)[kept_R]
    weight: Mapping[int, float] = dict(enumerate(LinearRegression(positive=True, fit_intercept=False).fit(x_RF, took_R[kept_R]).coef_))
    return LevelCost(max(_FIXED_MS_MIN, float(weight[0])), *(float(weight[column]) for column in range(1, 5)))
