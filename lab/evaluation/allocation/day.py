"""A day of traffic with lunch and evening peaks, noise that lasts, spikes, and a mix of users that drifts; and the controls that set the price over it.

A tick is 10 s. Work above a tick's capacity is refused, whoever it is for: a server's queue is bounded by some 50 ms, so nothing is carried over. Day one is
for learning the shape of the day, day two is judged, by true values.

    static     the best mix of static actions that fits at the peak       dcaf      bisection every ten minutes, for the rate of the last interval
    feedback   integral control of the log price by the load              mpc       plan.py on a forecast

Arrays: R requests, G prices, T ticks, H ticks ahead.
"""

from dataclasses import dataclass

import numpy as np

from lab.evaluation.allocation.library import ALL, Library
from lab.evaluation.allocation.plan import HORIZON, TARGET, CostCurve, fold_level, plan_price
from schemas.knapsack import best_mix, choose, take

TICK_S = 10.0
TICKS = int(86_400 / TICK_S)
PEAK_LOAD = 2.5  # what full work would need at the peak, over the capacity
PER_TICK = 600.0
SPIKES, SPIKE, NOISE, DRIFT, DAY_SHIFT = 3, 3.0, 0.08, 0.25, 0.1
SEASON_TICKS = 31  # five minutes; their median leaves spikes out
GRID = 400
SAMPLE_TICKS, SAMPLE_EACH = 30, 40
FEEDBACK_GAIN, DCAF_TICKS = 0.8, 60
POLICIES = ("static", "dcaf", "feedback", "mpc")


@dataclass(frozen=True)
class Traffic:
    """Arrivals and tilt over two days: a tick's requests are places `u ** tilt` of a library that is sorted by value."""

    arrivals_T: np.ndarray
    tilt_T: np.ndarray
    spike_T: np.ndarray


def shape_of_day() -> np.ndarray:
    """Rate over the day, mean 1: night, a lunch peak at 12:15, an evening peak at 20:30."""
    h = np.arange(TICKS) * 24 / TICKS
    rate = (
        0.35
        + 0.25 * np.exp(-(((h - 10) / 3.0) ** 2))
        + 1.5 * np.exp(-(((h - 12.25) / 0.9) ** 2))
        + 1.9 * np.exp(-(((h - 20.5) / 1.7) ** 2))
    )
    rate += 0.45 / (1 + np.exp(-(h - 8))) / (1 + np.exp(h - 23))
    return np.asarray(rate / rate.mean())


def draw_traffic(seed: int) -> Traffic:
    """Two days; the second is shifted in time and level, as days are."""
    rng = np.random.default_rng([seed, 3])
    second = np.roll(shape_of_day(), int(TICKS / 24 * 0.33 * rng.normal())) * np.exp(DAY_SHIFT * rng.normal())
    log_noise, keep = np.zeros(2 * TICKS), np.exp(-TICK_S / 300)
    for t in range(1, 2 * TICKS):
        log_noise[t] = keep * log_noise[t - 1] + np.sqrt(1 - keep**2) * NOISE * rng.standard_normal()
    spike_T = np.ones(2 * TICKS)
    for day in range(2):
        for _ in range(SPIKES):
            at, length = day * TICKS + rng.integers(0, TICKS), int(rng.uniform(120, 600) / TICK_S)
            spike_T[at : at + length] = SPIKE
    h = np.arange(2 * TICKS) * 24 / TICKS % 24
    rate_T = PER_TICK * np.concatenate([shape_of_day(), second]) * np.exp(log_noise) * spike_T
    return Traffic(rng.poisson(rate_T), np.exp(DRIFT * np.sin(2 * np.pi * (h - 14) / 24)), spike_T > 1)


@dataclass(frozen=True)
class Priced:
    """By price of a grid, the first of which is 0: what each request of the library costs and brings."""

    library: Library
    cost_RA: np.ndarray
    price_G: np.ndarray
    cost_GR: np.ndarray
    value_GR: np.ndarray

    @classmethod
    def of(cls, library: Library, believed_RA: np.ndarray, cost_RA: np.ndarray) -> "Priced":
        """Decided by `believed`; the library is sorted by its true value of full work."""
        order_R = np.argsort(library.true_RA[:, -1], kind="stable")
        library, believed_RA, cost_RA = library.rows(order_R), believed_RA[order_R], cost_RA[order_R]
        top = float(believed_RA[np.isfinite(believed_RA)].max()) / 0.05
        price_G = np.concatenate([[0.0], np.geomspace(1e-8 * top, top, GRID - 1)])
        action_GR = [choose(believed_RA, cost_RA, float(price)) for price in price_G]
        cost_GR, value_GR = (np.stack([take(of, a) for a in action_GR]).astype(np.float32) for of in (cost_RA, library.true_RA))
        return cls(library, cost_RA, price_G, cost_GR, value_GR)

    def place_of(self, price: float) -> int:
        """The place of a price in the grid."""
        return (
            0 if price <= 0 else int(np.clip(np.rint(np.interp(np.log(price), np.log(self.price_G[1:]), np.arange(1, GRID))), 1, GRID - 1))
        )


@dataclass(frozen=True)
class Day:
    """What a policy did over a day. Utilisation and excess are means over ticks in which full work would not have fitted."""

    value: float
    utilisation: float
    over: float
    spike_over: float
    refused_share: float


def run_day(priced: Priced, traffic: Traffic, policy: str, seed: int, unit: float) -> Day:
    """The second day under one of `POLICIES`. `unit`: the table's queue price."""
    rng, today = np.random.default_rng([seed, 4]), slice(TICKS, 2 * TICKS)
    arrivals_T, count = traffic.arrivals_T, len(priced.cost_RA)
    full_ms = float(priced.cost_RA[:, -1].mean())
    capacity = float(np.quantile(arrivals_T[:TICKS], 0.98)) * full_ms / PEAK_LOAD
    padded = np.pad(arrivals_T[:TICKS].astype(float), SEASON_TICKS // 2, mode="wrap")
    season_T = np.median(np.lib.stride_tricks.sliding_window_view(padded, SEASON_TICKS), axis=1)
    mix = best_mix(
        priced.library.true_RA[:, ALL].mean(0), priced.cost_RA[:, ALL].mean(0), TARGET * capacity / float(np.quantile(season_T, 0.98))
    )
    control = _Control(priced, season_T, capacity, unit)
    load_T, full_T, value_T = np.zeros(TICKS), np.zeros(TICKS), np.zeros(TICKS)
    for t, (arrived, tilt) in enumerate(zip(arrivals_T[today], traffic.tilt_T[today], strict=True)):
        row_R = (count * rng.random(arrived) ** tilt).astype(int)
        if policy == "static":
            cost = sum(share * priced.cost_RA[row_R, ALL[place]].sum() for place, share in mix)
            value = sum(share * priced.library.true_RA[row_R, ALL[place]].sum() for place, share in mix)
        else:
            place = priced.place_of(control.price(policy, t, arrivals_T[TICKS - 1 : TICKS + t]))
            cost, value = float(priced.cost_GR[place, row_R].sum()), float(priced.value_GR[place, row_R].sum())
        load_T[t], full_T[t] = cost / capacity, float(priced.cost_GR[0, row_R].sum()) / capacity
        value_T[t] = value * min(1.0, 1 / max(load_T[t], 1e-9))
        control.observe(t, row_R, load_T[t])
    busy_T, spike_T = full_T > 1, traffic.spike_T[today]
    excess_T = np.maximum(load_T - 1, 0)
    refused = (excess_T / np.maximum(load_T, 1e-9) * arrivals_T[today]).sum() / arrivals_T[today].sum()
    calm_T = busy_T & ~spike_T
    return Day(
        float(value_T.sum()),
        float(np.minimum(load_T, 1)[calm_T].mean()),
        float(excess_T[calm_T].mean()),
        float(excess_T[busy_T & spike_T].mean()),
        refused,
    )


class _Control:
    """The state of the controls over a day."""

    def __init__(self, priced: Priced, season_T: np.ndarray, capacity: float, unit: float) -> None:
        self._priced, self._season_T, self._capacity = priced, season_T, capacity
        self._log_price, self._load, self._level, self._price = float(np.log(unit)), TARGET, 1.0, unit
        self._recent: list[np.ndarray] = []
        self._curve = self._sampled(np.random.default_rng(0).integers(0, len(priced.cost_RA), SAMPLE_TICKS * SAMPLE_EACH))

    def _sampled(self, row_R: np.ndarray) -> CostCurve:
        """The curve of these requests, from the costs that are there."""
        cost_G = self._priced.cost_GR[:, row_R].mean(1, dtype=float)
        return CostCurve(np.log(self._priced.price_G[1:]), cost_G[1:], float(cost_G[0]))

    def price(self, policy: str, t: int, arrivals_T: np.ndarray) -> float:
        """The price of tick t, from the arrivals before it."""
        if policy == "feedback":
            self._log_price = float(
                np.clip(self._log_price + FEEDBACK_GAIN * (self._load - TARGET), *np.log(self._priced.price_G[[1, -1]]))
            )
            return float(np.exp(self._log_price))
        if policy == "dcaf":
            if t % DCAF_TICKS == 0:
                rate = float(arrivals_T[-DCAF_TICKS:].mean())
                fits = TARGET * self._capacity / max(rate, 1.0)
                self._price = 0.0 if self._curve.full_ms <= fits else float(np.exp(self._curve.log_price_for(np.array(fits))))
            return self._price
        self._level = fold_level(self._level, float(arrivals_T[-1]), float(self._season_T[t - 1]))
        ahead_H = self._season_T[(t + np.arange(HORIZON)) % TICKS] * self._level
        self._price = plan_price(self._price, ahead_H, self._curve, self._capacity)
        return self._price

    def observe(self, t: int, row_R: np.ndarray, load: float) -> None:
        """A tick is over: every minute the curve is sampled again from the requests of the last five."""
        self._load = load
        self._recent = [*self._recent[-(SAMPLE_TICKS - 1) :], row_R[:SAMPLE_EACH]]
        if t % 6 == 5:
            self._curve = self._sampled(np.concatenate(self._recent))
