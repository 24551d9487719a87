"""Samples: what is drawn for any interactions obeys the recipe."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infra.data.interactions import Interactions
from infra.data.mapping import Sampling
from infra.data.sampled_impressions import plan_cuts, sample_moments, sample_requests

DAY_MS = 86_400_000
ITEMS = 12  # places from here on are of items that the catalogue lacks
one = st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, ITEMS + 2))


def _interactions(rows: list[tuple[int, int, int]]) -> Interactions:
    rows = sorted(rows, key=lambda row: row[0])
    time, user, item = (np.array([row[c] for row in rows], np.int64) for c in range(3))
    return Interactions(list(range(6)), list(range(ITEMS + 3)), ("buy",), user, item, np.zeros(len(rows), np.int64), time * DAY_MS)


@given(st.lists(one, min_size=1, max_size=200), st.integers(0, 3))
def test_requests_show_positives_and_negatives_of_the_pool_and_nothing_of_the_future(rows: list[tuple[int, int, int]], seed: int) -> None:
    positives, sampling = _interactions(rows), Sampling(negatives=2, positives_max=2, pool_days=10, seed=seed)
    cuts = plan_cuts(int(positives.time_X[0]), 35 * DAY_MS, 5 * DAY_MS, 5 * DAY_MS)
    assert all(cut + 5 * DAY_MS <= 35 * DAY_MS and cut > positives.time_X[0] for cut in cuts)
    requests = list(sample_requests(positives, positives, ITEMS, cuts, 5 * DAY_MS, sampling))
    assert [r.time_ms for r in requests] == sorted(r.time_ms for r in requests)
    for request in requests:
        day = request.time_ms // DAY_MS
        pool = {item for time, _, item in rows if day - 10 <= time < day and item < ITEMS}
        taken = {item for time, user, item in rows if user == request.user and day <= time < day + 5}
        shown, clicked = request.items.tolist(), request.clicked.tolist()
        assert len(set(shown)) == len(shown) and set(shown) <= pool
        assert [item in taken for item in shown] == clicked
        assert 1 <= sum(clicked) <= 2 and 1 <= len(clicked) - sum(clicked) <= 2 * sum(clicked)
        assert any(user == request.user and time < day for time, user, _ in rows)
    again = list(sample_requests(positives, positives, ITEMS, cuts, 5 * DAY_MS, sampling))
    assert [r.items.tolist() for r in again] == [r.items.tolist() for r in requests]


@given(st.lists(one, min_size=1, max_size=200), st.integers(0, 3))
def test_a_moment_asks_for_what_its_user_takes_from_then_on(rows: list[tuple[int, int, int]], seed: int) -> None:
    positives, sampling = _interactions(rows), Sampling(negatives=2, positives_max=2, seed=seed)
    requests = list(sample_moments(positives, positives, ITEMS, 35 * DAY_MS, 5 * DAY_MS, sampling, 50))
    assert [r.time_ms for r in requests] == sorted(r.time_ms for r in requests)
    for request in requests:
        day = request.time_ms // DAY_MS
        before = {item for time, _, item in rows if time < day and item < ITEMS}
        own = [(time, item) for time, user, item in rows if user == request.user and time < 35]
        taken = {item for time, item in own if day <= time < day + 5}
        assert day + 5 <= 35 and any(time == day for time, _ in own) and any(time < day for time, _ in own)
        shown, clicked = request.items.tolist(), request.clicked.tolist()
        assert set(shown) <= before and [item in taken for item in shown] == clicked
        assert 1 <= sum(clicked) <= 2 and 1 <= len(clicked) - sum(clicked) <= 2 * sum(clicked)
