"""The gate: a table's values decide only if they beat the tuned static mix on outcomes that chose neither of them.

Doubly robust estimate of the lift. It starts from the table's own values of both policies. For each logged action it adds the difference of outcome and
value over the propensity of that action. This removes the bias of the first part, so the values are not judged by themselves. At equal cost: a difference
of the mean costs is charged at the policy's price. The interval is of users, whose requests are alike, not of requests.

Here: pure functions. Not here: the split of users (program.py). Source: Dudik, Langford and Li, Doubly Robust Policy Evaluation (2011).
Arrays: R requests, A actions.
"""

import math

import numpy as np

from schemas.allocation import Gate
from schemas.knapsack import choose, take
from streams.allocation.value_fit import Samples

REQUESTS_MIN = 1_000
_PROPENSITY_MIN = 1e-4
_Z = 1.96


def judge_table(believed_RA: np.ndarray, cost_RA: np.ndarray, price: float, mix: tuple[tuple[int, float], ...], judged: Samples) -> Gate:
    """The gate of the rule at `price` against `mix`, by samples of users that neither was learnt from. Closed if there are too few of them."""
    known_R = np.isfinite(judged.outcome_R)
    if known_R.sum() < REQUESTS_MIN:
        return Gate()
    whole_RA = cost_RA >= cost_RA[:, -1:]  # actions that take all candidates of the request are one: full work
    believed_RA = np.where(whole_RA, believed_RA[:, -1:], believed_RA)
    rows, logged_R = np.arange(len(known_R)), judged.action_R
    chosen_R = choose(believed_RA, cost_RA, price)
    believed_RA = np.where(np.isfinite(believed_RA), believed_RA, 0.0)  # only now: a request cannot choose an action that it lacks
    chosen_R = np.where(whole_RA[rows, chosen_R], cost_RA.shape[1] - 1, chosen_R)
    mix_A = np.zeros(believed_RA.shape[1])
    for place, share in mix:
        mix_A[place] = share
    mix_RA = np.where(whole_RA, 0.0, mix_A)
    mix_RA[:, -1] = (whole_RA * mix_A).sum(1)
    weight_R = np.where(known_R, 1.0 / np.maximum(judged.propensity_R, _PROPENSITY_MIN), 0.0)
    missed_R = np.where(known_R, judged.outcome_R - believed_RA[rows, logged_R], 0.0)
    policy_R = take(believed_RA, chosen_R) + (chosen_R == logged_R) * weight_R * missed_R
    static_R = believed_RA @ mix_A + mix_RA[rows, logged_R] * weight_R * missed_R
    dearer_R = take(cost_RA, chosen_R) - cost_RA @ mix_A
    return _ratio(policy_R - static_R - price * dearer_R, static_R, judged.user_R)


def _ratio(gain_R: np.ndarray, base_R: np.ndarray, user_R: np.ndarray) -> Gate:
    """sum(gain) / sum(base) and its interval of 95%, with users as clusters."""
    total = float(base_R.sum())
    if total <= 0:
        return Gate()
    lift = float(gain_R.sum()) / total
    _, user = np.unique(user_R, return_inverse=True)
    spread = math.sqrt(float((np.bincount(user, gain_R - lift * base_R) ** 2).sum())) / total
    return Gate(lift, lift - _Z * spread, lift + _Z * spread)
