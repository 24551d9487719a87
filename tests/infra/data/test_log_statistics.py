"""Statistics of behaviours: plain loops as the specification, and nothing of what comes later shows in them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.clock import DAY_MS
from infra.data.interactions import Interactions
from infra.data.items import AsOf
from infra.data.log_statistics import ExpectedTakers, LogStatistic, TakersCount, TogetherVectors, together_vectors
from schemas.features import Scope
from schemas.statistics import HOUR_MS, MINUTE_MS, Log, Measure, Statistic, decayed_counts, window_begin
from tests.infra.data.shops import PLAIN_MAPPING, START_MS, open_shop

USERS, ITEMS = 12, 8


def drawn(seed: int, rows: int = 60) -> Interactions:
    """Random interactions in order of time; place ITEMS is no item of the catalogue."""
    chance = np.random.default_rng(seed)
    user_X, item_X = chance.integers(0, USERS, rows), chance.integers(0, ITEMS + 1, rows)
    time_X = np.sort(chance.integers(0, 40 * DAY_MS, rows))
    return Interactions(range(USERS), range(ITEMS + 1), ("click",), user_X, item_X, np.zeros(rows, np.int64), time_X)


def halves(seed: int) -> Interactions:
    """Users of two tastes: one takes items 0..3, the other 4..7, each two or three of them."""
    chance = np.random.default_rng(seed)
    pairs = [(u, i) for u in range(USERS) for i in chance.permutation(4)[:3] + 4 * (u % 2)]
    user_X, item_X = np.array(pairs).T
    return Interactions(range(USERS), range(ITEMS), ("click",), user_X, item_X, np.zeros(len(pairs), np.int64), np.arange(len(pairs)))


@given(st.integers(0, 1_000), st.integers(0, 41), st.integers(1, 50))
@settings(max_examples=50)
def test_counts_and_days_are_those_of_a_plain_loop(seed: int, at_day: int, days: int) -> None:
    positives, time_ms = drawn(seed), at_day * DAY_MS
    rows = list(zip(positives.user_X.tolist(), positives.item_X.tolist(), positives.time_X.tolist(), strict=True))
    for item in range(ITEMS):
        inside = [u for u, i, t in rows if i == item and time_ms - days * DAY_MS <= t < time_ms]
        times = [t for _, i, t in rows if i == item and t < time_ms]
        assert positives.counts(ITEMS, time_ms - days * DAY_MS, time_ms)[item] == len(inside)
        assert TakersCount(positives, ITEMS, days).at(time_ms)[item] == len(set(inside))
        assert count_of(positives, Measure.FIRST, None, time_ms)[item] == ((time_ms - times[0]) // DAY_MS if times else -1)
        assert count_of(positives, Measure.LAST, None, time_ms)[item] == ((time_ms - times[-1]) // DAY_MS if times else -1)
        assert count_of(positives, Measure.EXACT, days * DAY_MS, time_ms)[item] == len(inside)


def count_of(positives: Interactions, measure: Measure, window_ms: int | None, time_ms: int) -> np.ndarray:
    return LogStatistic(Statistic(Log.BEHAVIOURS, measure, window_ms=window_ms), positives, ITEMS).at(time_ms)


def test_a_window_begins_on_a_whole_step() -> None:
    assert window_begin(10 * DAY_MS + 7 * MINUTE_MS, 2 * DAY_MS) == 8 * DAY_MS
    assert window_begin(10 * DAY_MS + 7 * MINUTE_MS + 5, 6 * HOUR_MS) == 10 * DAY_MS - 6 * HOUR_MS + 7 * MINUTE_MS


GRID = [5 * DAY_MS, 10 * DAY_MS, 20 * DAY_MS, 30 * DAY_MS]


@pytest.mark.parametrize(
    "open_statistic",
    [
        lambda log: TakersCount(log, ITEMS, 9),
        lambda log: ExpectedTakers(log, ITEMS, 3, GRID[-1]),
        lambda log: TogetherVectors(log, ITEMS, 3, GRID),
    ],
)
def test_what_comes_later_does_not_show(open_statistic: Callable[[Interactions], AsOf]) -> None:
    whole, at_ms = drawn(0), 20 * DAY_MS
    statistic, alone = open_statistic(whole), open_statistic(whole.take(np.arange(whole.before(at_ms))))
    statistic.at(40 * DAY_MS)  # asked for later times first
    assert (statistic.at(at_ms) == alone.at(at_ms)).all() and np.any(statistic.at(at_ms))


def test_items_that_the_same_users_took_are_near_and_an_item_that_nobody_took_is_nowhere() -> None:
    positives = halves(0)
    vectors_IE = together_vectors(positives, ITEMS + 1, 2, len(positives))
    near_II = vectors_IE @ vectors_IE.T
    same_II = np.equal.outer(np.arange(ITEMS) // 4, np.arange(ITEMS) // 4)
    assert near_II[:ITEMS, :ITEMS][same_II].min() > 0.9 > 0.1 > near_II[:ITEMS, :ITEMS][~same_II].max()
    assert not vectors_IE[ITEMS].any()


def test_the_axes_of_one_time_are_those_of_the_time_before() -> None:
    """Fewer axes than users and items, so that they turn; what is compared is where each item lies on them."""
    positives = drawn(3, 400)
    grid = [30 * DAY_MS, 31 * DAY_MS]
    vectors = TogetherVectors(positives, ITEMS, 3, grid)
    moved = np.abs(vectors.at(grid[1]) - vectors.at(grid[0])).max()
    alone = together_vectors(positives, ITEMS, 3, grid[1])
    assert moved < 0.5 and np.allclose(vectors.at(grid[1]) @ vectors.at(grid[1]).T, alone @ alone.T, atol=1e-3)


def test_more_numbers_than_users_or_items_are_zeros_and_before_the_first_time_there_is_nothing() -> None:
    vectors = TogetherVectors(drawn(0), ITEMS, 40, [20 * DAY_MS])
    assert vectors.at(20 * DAY_MS).shape == (ITEMS, 40) and not vectors.at(20 * DAY_MS)[:, ITEMS:].any()
    assert not vectors.at(0).any()


def test_an_item_of_few_users_turns_the_first_axes_less_than_items_of_many() -> None:
    """Two items that one user alone took are as near to each other as can be, and still no axis of two is theirs."""
    common = [(u, i) for u in range(40) for i in np.random.default_rng(u).permutation(3)[:2] + 3 * (u % 2)]
    user_X, item_X = np.array([*common, (40, 6), (40, 7), (40, 0)]).T
    positives = Interactions(range(41), range(8), ("click",), user_X, item_X, np.zeros(len(user_X), np.int64), np.arange(len(user_X)))
    vectors_IE = together_vectors(positives, 8, 2, len(positives))
    assert np.abs(vectors_IE[:3] @ vectors_IE[3:6].T).max() < 0.3 and (vectors_IE[6] @ vectors_IE[:3].T).min() > 0.7


def test_an_event_counts_half_after_each_half_life_and_nothing_after_six() -> None:
    for lives in range(8):
        counts = [np.array([int(lives < window)]) for window in range(1, 7)]
        assert decayed_counts(counts).tolist() == [0.5**lives if lives < 6 else 0.0]
    assert decayed_counts([np.array([1_003])] * 6).tolist() == [1_000.0], "two significant digits of 32nds"


@pytest.mark.parametrize(
    ("items", "more", "features"),
    [
        ("", "", ["taken", "taken_6h", "taken_1d", "taken_7d", "taken_together"]),
        ("", '[impressions]\npositive_kinds = ["buy"]\n', ["buy", "buy_6h", "buy_1d", "buy_7d", "taken_together"]),
        ('[items.features]\nprice = "price"\n', "", ["price", "taken", "taken_6h", "taken_1d", "taken_7d", "taken_together"]),
        ('[items.features]\nlast = { days_since = "last" }\n', "", ["last"]),
        ('[items.features]\ntaken = "price"\n', "", ["taken", "taken_6h", "taken_1d", "taken_7d", "taken_together"]),
        ("popularity = false\n", "", []),
        ('time = "changed"\n', "", []),  # told when a row says so, not as of a grid of times
    ],
)
def test_items_tell_how_often_they_are_taken_where_no_feature_is_made_of_behaviours(
    tmp_path: Path, items: str, more: str, features: list[str]
) -> None:
    log = "user,item,at,kind\n" + "".join(f"{n % 7},{n % 12},{START_MS + n * DAY_MS // 2},buy\n" for n in range(100))
    mapping = PLAIN_MAPPING.replace("[behaviours]", items + '[behaviours]\nkind = "kind"') + more
    catalogue = open_shop(tmp_path, mapping, items="item,price,changed\n" + "".join(f"{n},{n},{START_MS}\n" for n in range(12)), log=log)
    assert [f.name for f in catalogue.schema.of(Scope.ITEM) if f.name != catalogue.schema.multimodal] == features
