"""The plan's price: it keeps the load at the target, rises with the forecast, and is 0 where full work fits."""

import itertools
import math

import numpy as np
import pytest

from lab.evaluation.allocation.plan import HORIZON, TARGET, CostCurve, fold_level, plan_price
from schemas.knapsack import cost_of


@pytest.fixture(scope="module")
def curve() -> CostCurve:
    rng = np.random.default_rng(0)
    cost = np.array([0.05, 1.4, 2.1, 4.0, 6.0]) * rng.uniform(0.8, 1.2, (500, 1))
    value = np.array([0.0, 0.7, 0.85, 0.95, 1.0]) * np.exp(rng.normal(0, 1, (500, 1)))
    log_price_G = math.log(0.2) + np.linspace(math.log(1e-4), math.log(1e4), 100)
    curve = CostCurve(log_price_G, np.array([cost_of(value, cost, math.exp(u)) for u in log_price_G]), cost_of(value, cost, 0.0))
    assert all(later <= earlier for earlier, later in itertools.pairwise(curve.cost_G))
    return curve


def test_the_planned_load_is_the_target(curve: CostCurve) -> None:
    for demand in (1.1, 1.5, 2.5, 4.0):
        ahead = np.full(HORIZON, 1000.0)
        capacity = 1000.0 * curve.full_ms / demand
        price = 0.0
        for _ in range(10):
            price = plan_price(price, ahead, curve, capacity)
        assert 1000.0 * float(curve.at(np.array(math.log(price)))) / capacity == pytest.approx(TARGET, abs=0.01)


def test_more_arrivals_raise_the_price_and_full_work_that_fits_has_none(curve: CostCurve) -> None:
    capacity = 1000.0 * curve.full_ms
    prices = [plan_price(0.1, np.full(HORIZON, n), curve, capacity) for n in (100.0, 900.0, 1100.0, 2000.0, 4000.0)]
    assert prices[:2] == [0.0, 0.0] and 0 < prices[2] < prices[3] < prices[4], "cost above the budget raises the price"


def test_a_spike_is_believed_at_once_and_noise_slowly() -> None:
    assert fold_level(1.0, 300.0, 100.0) == 3.0
    assert 1.0 < fold_level(1.0, 110.0, 100.0) < 1.1
    assert math.isfinite(fold_level(1.0, 0.0, 0.0))
