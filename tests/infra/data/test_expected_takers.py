"""What is expected of items: learnt from windows that are over, the same for any unit of size, and nothing of what comes later shows in it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.data.interactions import Interactions
from infra.data.log_statistics import AVERAGE, ExpectedTakers, past_numbers

DAY_MS = 86_400_000
ITEMS, USERS = 20, 60


def taken(rows: list[tuple[int, int, int]]) -> Interactions:
    """Rows (time, user, item) in order of time; place ITEMS is no item of the catalogue."""
    columns = np.array(sorted(rows), np.int64).reshape(-1, 3)
    time_X, user_X, item_X = columns.T
    return Interactions(range(USERS), range(ITEMS + 1), ("buy",), user_X, item_X, np.zeros(len(rows), np.int64), time_X)


def fading(days: int) -> Interactions:
    """Each week another half of the items is taken by many; what was taken in one week is left alone in the next."""
    chance = np.random.default_rng(0)
    rows = []
    for day in range(days):
        week = day // 7
        for _ in range(30):
            often = chance.random() < 0.8
            item = 2 * int(chance.integers(0, ITEMS // 2)) + ((week + (not often)) % 2)
            rows.append((day * DAY_MS + int(chance.integers(0, DAY_MS)), int(chance.integers(0, USERS)), item))
    return taken(rows)


def test_what_followed_in_earlier_windows_is_expected_and_not_what_was_taken_last() -> None:
    positives, now_ms = fading(70), 70 * DAY_MS
    expected_I = ExpectedTakers(positives, ITEMS, 7, now_ms).at(now_ms)
    last_week = past_numbers(positives, ITEMS, now_ms, 7 * DAY_MS)[:, 2]
    assert np.corrcoef(last_week, expected_I)[0, 1] < -0.5
    assert np.isclose(expected_I[last_week > 0].mean(), AVERAGE, atol=0.1)


def test_before_a_window_is_over_the_last_window_is_expected_again_and_nothing_of_an_item_never_taken() -> None:
    positives = taken([(DAY_MS + u, u, 0) for u in range(9)] + [(2 * DAY_MS, 0, 1), (2 * DAY_MS + 1, 0, ITEMS)])
    expected_I = ExpectedTakers(positives, ITEMS, 7, 3 * DAY_MS).at(3 * DAY_MS)
    assert np.isclose(expected_I[0] / expected_I[1], 10 / 2, atol=0.01) and (expected_I[2:] == -1).all()
    assert (ExpectedTakers(positives, ITEMS, 7, 3 * DAY_MS).at(0) == -1).all()
    assert (ExpectedTakers(taken([]), ITEMS, 7, 3 * DAY_MS).at(DAY_MS) == -1).all()


@given(st.integers(0, 1_000), st.integers(22, 60))
@settings(max_examples=10, deadline=None)
def test_what_comes_later_does_not_show_on_any_day(seed: int, day: int) -> None:
    chance = np.random.default_rng(seed)
    shape = 1_500
    columns = (chance.integers(0, 70 * DAY_MS, shape), chance.integers(0, USERS, shape), chance.integers(0, ITEMS + 1, shape))
    whole = taken(list(zip(*(c.tolist() for c in columns), strict=True)))
    cut = whole.take(np.arange(whole.before(day * DAY_MS)))
    late = ExpectedTakers(whole, ITEMS, 7, 70 * DAY_MS)
    late.at(70 * DAY_MS)  # asked for a later time first
    assert (late.at(day * DAY_MS) == ExpectedTakers(cut, ITEMS, 7, 70 * DAY_MS).at(day * DAY_MS)).all()


@given(st.integers(0, 1_000))
@settings(max_examples=10, deadline=None)
def test_past_numbers_are_those_of_a_plain_loop(seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows = [tuple(map(int, (chance.integers(0, 30 * DAY_MS), chance.integers(0, 6), chance.integers(0, ITEMS + 1)))) for _ in range(80)]
    now_ms, window_ms = 25 * DAY_MS, 4 * DAY_MS
    found_IF = np.expm1(past_numbers(taken(rows), ITEMS, now_ms, window_ms))
    for item in range(ITEMS):
        of_item = [(now_ms - t, u) for t, u, i in rows if i == item and t < now_ms]
        counts = [len({u for age, u in of_item if age <= share * window_ms}) for share in (0.25, 0.5, 1, 2, 3, np.inf)]
        ages = [age / DAY_MS for age, _ in of_item] or [0.0]
        plain = [*counts, sum(age <= window_ms for age, _ in of_item), max(ages), min(ages)]
        assert np.allclose(found_IF[item], plain)
