"""The plan's price: what sampled requests cost at each price, a forecast of arrivals, and the price that keeps the load at the target.

Model predictive control: the first of `HORIZON` prices that minimise  sum_h w_h (load_h - target)^2 + DAMPING (u_h - u_{h-1})^2  with u the log price,
w_h = (1 - DECAY)^h, and a load above the capacity weighing `OVER` times more. Load of a tick = expected requests x mean cost at the price / capacity.

The curve of mean costs comes from a sample of recent requests by bisection's own rule, so a cost above the target raises the price. Here: pure functions.
Not here: the rule (schemas/knapsack.py). No server runs this: a server has no forecast and plans by bisection (serving/allocation/allocator.py).
Source: DCAF, section 4.3 (bisection on samples); MaRCA, section 4 (horizon 10, decay 0.4). Arrays: R requests, A actions, G prices, H ticks ahead.
"""

import math
from dataclasses import dataclass

import numpy as np

HORIZON, DECAY, DAMPING, OVER = 10, 0.4, 0.002, 8.0
TARGET = 0.945
LEVEL_RATE = 0.5  # weight of the newest tick in the level of the traffic
SPIKE = 1.5  # a tick of so many times the expected arrivals, or of so few, is believed at once
_ROUNDS = 3


@dataclass(frozen=True)
class CostCurve:
    """Mean cost of a request by price, in ms: `cost_G` never rises with `log_price_G`; `full_ms` is the cost at a price of 0."""

    log_price_G: np.ndarray
    cost_G: np.ndarray
    full_ms: float

    def at(self, log_price: np.ndarray) -> np.ndarray:
        """Mean cost at these log prices."""
        return np.asarray(np.exp(np.interp(log_price, self.log_price_G, np.log(self.cost_G))))

    def log_price_for(self, cost_ms: np.ndarray) -> np.ndarray:
        """The log prices at which a request costs so much on average."""
        return np.asarray(np.interp(-cost_ms, -self.cost_G, self.log_price_G))


def fold_level(level: float, arrivals: float, expected: float) -> float:
    """The level of today's traffic over the expected one, after a tick with `arrivals` where `expected` were usual."""
    seen = arrivals / max(expected, 1.0)
    if seen > SPIKE * level or seen < level / SPIKE:
        return seen
    return level + LEVEL_RATE * (seen - level)


def plan_price(last_price: float, ahead_H: np.ndarray, curve: CostCurve, capacity_ms: float) -> float:
    """The price of the next tick. `ahead_H`: expected requests of the next ticks; `capacity_ms`: work that the engine can do in one. 0 if full work fits."""
    per_ms_H = ahead_H / capacity_ms
    if per_ms_H[0] * curve.full_ms <= TARGET:
        return 0.0
    step = curve.log_price_G[1] - curve.log_price_G[0]
    wanted_H = TARGET / np.maximum(per_ms_H, 1e-12)
    u_H, u_0 = curve.log_price_for(wanted_H), math.log(last_price) if last_price > 0 else curve.log_price_G[0]
    for _ in range(_ROUNDS):  # Newton's method on a system of three diagonals
        cost_H = curve.at(u_H)
        slope_H = np.minimum((curve.at(u_H + step) - curve.at(u_H - step)) / (2 * step), -1e-3 * cost_H)
        load_H, down_H = per_ms_H * cost_H, per_ms_H * slope_H
        weight_H = (1 - DECAY) ** np.arange(len(u_H)) * np.where(load_H > 1, 1 + OVER, 1.0)
        change_H = np.diff(u_H, prepend=u_0)
        gradient_H = weight_H * (load_H - TARGET) * down_H + DAMPING * (change_H - np.append(change_H[1:], 0.0))
        ties = 2 * np.eye(len(u_H)) - np.eye(len(u_H), k=1) - np.eye(len(u_H), k=-1)
        ties[-1, -1] = 1.0
        u_H = u_H - np.clip(np.linalg.solve(np.diag(weight_H * down_H * down_H + 1e-9) + DAMPING * ties, gradient_H), -1, 1)
    return math.exp(float(np.clip(u_H[0], curve.log_price_G[0], curve.log_price_G[-1])))
