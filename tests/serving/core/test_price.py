"""The three prices: when each rises and falls."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.price import INTEGRAL_MAX, Floor, Source, fold_floor, highest, queue_price


@given(st.lists(st.floats(0, 200), min_size=2, max_size=10))
def test_the_queue_price_rises_with_the_queue(waits: list[float]) -> None:
    prices = [queue_price(wait, 45.0, 0.5) for wait in [0.0, *sorted(waits)]]
    assert prices[0] == 0 and all(a <= b for a, b in itertools.pairwise(prices))
    assert math.isinf(queue_price(45.0, 45.0, 0.5))


@given(st.lists(st.floats(0, 1), max_size=50), st.floats(0.01, 5))
def test_the_floor_is_bounded_and_gone_soon_after_the_trouble(shares: list[float], period_s: float) -> None:
    floor = Floor()
    for share in shares:
        floor = fold_floor(floor, share, period_s)
        assert 0 <= floor.level <= INTEGRAL_MAX and math.isfinite(floor.price(0.5))
    for _ in range(20):
        floor = fold_floor(floor, 0.0, 1.0)
    assert floor == Floor(), "anti-windup: however long the trouble was"


def test_the_floor_rises_while_answers_are_late() -> None:
    floors = list(itertools.accumulate([0.2] * 5, lambda floor, share: fold_floor(floor, share, 1.0), initial=Floor()))
    assert all(a.price(1.0) < b.price(1.0) for a, b in itertools.pairwise(floors))


def test_the_highest_price_holds_and_names_its_source() -> None:
    assert highest(0.1, 0.3, 0.2) == (price := highest(0.0, 0.3, 0.0)) and price.source is Source.QUEUE
    assert highest(0.4, 0.3, 0.2).source is Source.PLAN and highest(0.0, 0.0, 0.2).source is Source.FLOOR
    assert highest(0.0, 0.0, 0.0).source is Source.NONE and highest(0, 0, 0).value == pytest.approx(0.0)
