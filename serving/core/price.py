"""The price of a millisecond of the engine, lambda: the highest of the plan's, the queue's, and MaxPower's floor.

    plan    bisection on the last requests, every 0.2 s: spends the budget where it is worth most
    queue   read at every request from the work that waits: holds the latency when the plan is wrong or late
    floor   PI control on the share of late and failed answers (DCAF's MaxPower): a last resort against costs that nobody predicted

Each is 0 when the server is idle, so an idle server always does full work and cannot lock itself out. Admission (core/admission.py) stays behind all three.
Prices are values per ms of the table's costs. `unit`: the price at which the mean request costs a quarter of full work
(serving/allocation/tables.py `quarter_price`).

Here: pure functions of numbers. Not here: the choice at a price (core/choice.py, schemas/knapsack.py).
"""

import enum
import math
from dataclasses import dataclass

TROUBLE_TARGET = 0.01  # share of answers that may be late or failed
GAIN, GAIN_PER_S = 2.0, 0.5
INTEGRAL_MAX = 4.0  # anti-windup: the floor ends at 53 units, and is gone seconds after the trouble


class Source(enum.StrEnum):
    """Which price was the highest; `none` at a price of 0."""

    NONE = "none"
    PLAN = "plan"
    QUEUE = "queue"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Price:
    """A price and its source."""

    value: float = 0.0
    source: Source = Source.NONE


def queue_price(wait_ms: float, bound_ms: float, unit: float) -> float:
    """unit (2 x^2 / (1 - x))^2 of the filled share x = wait / bound: 0 without a queue, the unit at half the bound, infinite at the bound.

    The plan holds the mean, and this price has to end the peaks. A gentler curve would shorten lists in calm times for nothing.
    `bound_ms` is at least the dearest action's cost.
    """
    x = max(0.0, wait_ms) / bound_ms
    if x >= 1:
        return math.inf
    root = 2 * x * x / (1 - x)
    return unit * root * root


@dataclass(frozen=True, slots=True)
class Floor:
    """State of MaxPower's controller. `level`: its output in natural logarithms, so the price is unit (e^level - 1)."""

    integral: float = 0.0
    level: float = 0.0

    def price(self, unit: float) -> float:
        """The floor in the unit of a price."""
        return unit * math.expm1(self.level)


def fold_floor(floor: Floor, trouble_share: float, passed_s: float) -> Floor:
    """The floor after `passed_s` in which this share of answers was late or failed (0 if there were none). It falls whenever the share is below the target."""
    error = (trouble_share - TROUBLE_TARGET) / max(TROUBLE_TARGET, trouble_share)  # in -1 .. 1: calm unwinds as fast as trouble winds up
    integral = min(INTEGRAL_MAX, max(0.0, floor.integral + GAIN_PER_S * error * min(passed_s, 1.0)))
    return Floor(integral, min(INTEGRAL_MAX, max(0.0, GAIN * max(0.0, trouble_share - TROUBLE_TARGET)) + integral))


def highest(plan: float, queue: float, floor: float) -> Price:
    """The price that holds."""
    value, source = max((plan, Source.PLAN), (queue, Source.QUEUE), (floor, Source.FLOOR), key=lambda pair: pair[0])
    return Price(value, source) if value > 0 else Price()
