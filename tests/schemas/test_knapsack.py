"""The rule, the price and the bound, on arbitrary values and costs, and by brute force."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.knapsack import best_mix, choose, choose_one, cost_of, dual_bound, find_price, take

_number = st.floats(0, 100, allow_subnormal=False).map(lambda x: round(x, 3))


@st.composite
def _cases(draw: st.DrawFn, requests_max: int = 6, actions_max: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Arbitrary values and costs: neither rises with the action, and ties are frequent."""
    r, a = draw(st.integers(1, requests_max)), draw(st.integers(2, actions_max))
    value, cost = (np.array(draw(st.lists(_number, min_size=r * a, max_size=r * a))).reshape(r, a) for _ in range(2))
    return value, cost + 0.001


@given(_cases(), st.lists(st.floats(0, 1e4), min_size=2, max_size=8))
def test_total_cost_never_rises_with_the_price(case: tuple[np.ndarray, np.ndarray], prices: list[float]) -> None:
    value, cost = case
    spent = [cost_of(value, cost, price) for price in [0.0, *sorted(prices), float("inf")]]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(spent))
    assert spent[0] == cost.max(1).mean(), "at a price of 0 all do full work"
    assert spent[-1] == cost.min(1).mean()


@given(_cases(), st.floats(0.01, 120))
def test_the_price_meets_the_budget_and_is_the_lowest(case: tuple[np.ndarray, np.ndarray], budget: float) -> None:
    value, cost = case
    price = find_price(value, cost, budget)
    if budget >= cost.min(1).mean() + 1e-9:
        assert cost_of(value, cost, price) <= budget + 1e-9
    if price > 1e-20:
        assert cost_of(value, cost, price * 0.99) > budget or price < 1e-9


@given(_cases(requests_max=5, actions_max=4), st.floats(0.5, 60))
def test_value_is_within_the_gap_of_the_exact_knapsack(case: tuple[np.ndarray, np.ndarray], budget: float) -> None:
    value, cost = case
    value[:, 0], cost[:, 0] = 0.0, 0.0  # something always fits
    requests, actions = value.shape
    plans = itertools.product(range(actions), repeat=requests)
    exact = max(take(value, np.array(p)).sum() for p in plans if take(cost, np.array(p)).sum() <= requests * budget + 1e-12)
    bound = dual_bound(value, cost, budget) * requests
    got = take(value, choose(value, cost, find_price(value, cost, budget))).sum()
    assert bound >= exact - 1e-6, "weak duality"
    if find_price(value, cost, budget) > 0:  # below it, full work fits: that is chosen, whatever the values say
        assert got <= exact + 1e-6
        assert exact - got <= value.max(1).sum() and bound - got <= _jump(value, cost, budget) + 1e-6
    mix = best_mix(value.mean(0), cost.mean(0), budget)
    assert sum(share * value.mean(0)[a] for a, share in mix) <= bound / requests + 1e-6
    assert sum(share * cost.mean(0)[a] for a, share in mix) <= budget + 1e-9


def _jump(value: np.ndarray, cost: np.ndarray, budget: float) -> float:
    """The value between the choices just below and just above the price: all that rounding a fractional plan down can lose."""
    price = find_price(value, cost, budget)
    below, above = (take(value, choose(value, cost, price * f)).sum() for f in (1 - 1e-6, 1 + 1e-6))
    return float(below - above) + 1e-5 * (1 + price * cost.sum())


@given(_cases(), st.floats(0, 1e3) | st.just(float("inf")), st.integers(0, 31))
def test_one_request_is_decided_as_many_are(case: tuple[np.ndarray, np.ndarray], price: float, barred: int) -> None:
    value, cost = case
    for a in range(value.shape[1] - 1):
        if barred >> a & 1:
            value[:, a] = -np.inf
    chosen = choose(value, cost, price)
    for q, c, many in zip(value, cost, chosen, strict=True):
        best, runner_up = choose_one(q.tolist(), c.tolist(), price)
        assert best == many and runner_up != best and np.isfinite(q[best])


def test_a_reversed_comparison_would_miss_the_budget() -> None:
    """The printed line 11 lowers the price when the cost is above the budget; the price must rise instead."""
    rng = np.random.default_rng(0)
    value, cost = np.sort(rng.random((500, 6)), 1), np.sort(rng.random((500, 6)), 1)
    budgets = np.linspace(0.2, 0.8, 7)
    prices = [find_price(value, cost, b) for b in budgets]
    assert all(a > b for a, b in itertools.pairwise(prices)), "a smaller budget has a higher price"
    assert all(abs(cost_of(value, cost, p) - b) < 0.01 for p, b in zip(prices, budgets, strict=True))
