"""The knapsack over actions: the rule that chooses at a price, the price that meets a budget, the bound that no rule exceeds, the best static mix.

    max sum_i Q[i, j(i)]   subject to   sum_i c[i, j(i)] <= C,   one action a request

For any price p >= 0 the Lagrangian  p C + sum_i max_j (Q[i, j] - p c[i, j])  is an upper bound (weak duality). Its smallest value over p is the bound of the
linear relaxation, which the exact optimum misses by less than one request's value. The cost of argmax_j (Q - p c) never rises with p, for any Q and c: add
the two optimality inequalities of p and p'. So bisection needs no assumption about the shape of Q or c. At p = 0 the choice is full work, whatever Q says.
Source: DCAF, equations 3 to 6. Its printed algorithm has line 11 reversed: a cost above the budget must raise the price.

Here: pure functions of NumPy, which servers, fits and judges share. Arrays: R requests, A actions; the last action is full work.
"""

import math
from collections.abc import Sequence

import numpy as np

_ROUNDS = 40


def choose(value_RA: np.ndarray, cost_RA: np.ndarray, price: float) -> np.ndarray:
    """The action of each request at a price: int64 [R]. Of equally good ones the cheaper; at a price of 0 the dearest, which is full work."""
    if price <= 0:  # the last of the dearest
        return np.asarray(cost_RA.shape[1] - 1 - np.where(np.isfinite(value_RA), cost_RA, -1.0)[:, ::-1].argmax(1))
    if math.isinf(price):
        return np.asarray(np.where(np.isfinite(value_RA), cost_RA, np.inf).argmin(1))
    return np.asarray(np.argmax(value_RA - price * cost_RA - 1e-12 * cost_RA, axis=1))


def choose_one(values: Sequence[float], costs: Sequence[float], price: float) -> tuple[int, int]:
    """`choose` of one request, in plain Python: (action, runner-up). An action of value minus infinity is not allowed; of these the runner-up may be one."""
    if price <= 0:
        net = [c if math.isfinite(v) else -1.0 for v, c in zip(values, costs, strict=True)]
    elif math.isinf(price):
        net = [-c if math.isfinite(v) else -math.inf for v, c in zip(values, costs, strict=True)]
    else:
        net = [v - price * c - 1e-12 * c for v, c in zip(values, costs, strict=True)]
    best = len(net) - 1 - net[::-1].index(max(net)) if price <= 0 else net.index(max(net))
    net[best] = -math.inf
    return best, net.index(max(net))


def take(matrix_RA: np.ndarray, action_R: np.ndarray) -> np.ndarray:
    """The entries of the chosen actions: [R]."""
    return np.asarray(matrix_RA[np.arange(len(action_R)), action_R])


def find_price(value_RA: np.ndarray, cost_RA: np.ndarray, budget_ms: float) -> float:
    """The lowest price, to rounding, at which the mean cost is within the budget; 0 if full work fits. Cost above the budget RAISES the price."""
    if cost_of(value_RA, cost_RA, 0.0) <= budget_ms:
        return 0.0
    allowed = value_RA[np.isfinite(value_RA)]
    low, high = -60.0, math.log(max(float(np.ptp(allowed)), 1e-9) / float(np.min(np.diff(np.unique(cost_RA)), initial=1.0))) + 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if cost_of(value_RA, cost_RA, math.exp(middle)) > budget_ms:
            low = middle
        else:
            high = middle
    return math.exp(high)


def cost_of(value_RA: np.ndarray, cost_RA: np.ndarray, price: float) -> float:
    """The mean cost of the choices at a price."""
    return float(take(cost_RA, choose(value_RA, cost_RA, price)).mean())


def dual_bound(value_RA: np.ndarray, cost_RA: np.ndarray, budget_ms: float) -> float:
    """An upper bound on the mean value within the budget. Any price gives a valid one; those around the bisection's are tried."""
    price = find_price(value_RA, cost_RA, budget_ms)
    prices = price * np.exp(np.linspace(-0.05, 0.05, 21)) if price else np.array([0.0])
    return float(min(p * budget_ms + (value_RA - p * cost_RA).max(1).mean() for p in prices))


def best_mix(value_A: np.ndarray, cost_A: np.ndarray, budget_ms: float) -> list[tuple[int, float]]:
    """The static policy: the two actions, and their shares, whose mix has the highest mean value within the budget: a point of the upper hull."""
    fits = np.flatnonzero((cost_A <= budget_ms) & np.isfinite(value_A))
    if not len(fits):
        return [(int(cost_A.argmin()), 1.0)]
    alone = int(fits[value_A[fits].argmax()])
    best, mix = float(value_A[alone]), [(alone, 1.0)]
    for a in fits:
        for b in np.flatnonzero((cost_A > budget_ms) & np.isfinite(value_A)):
            share = float((budget_ms - cost_A[a]) / (cost_A[b] - cost_A[a]))
            value = float(value_A[a] + share * (value_A[b] - value_A[a]))
            if value > best:
                best, mix = value, [(int(a), 1 - share), (int(b), share)]
    return mix
