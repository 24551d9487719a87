"""Rates and counts of items, against a count by hand, and which of them a mapping gets."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from infra.data.doubts import find_doubts
from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.errors import Misconfigured
from schemas.statistics import DAY_MS, HOUR_MS, PRIOR, RATE_STEP, coarse_counts, fit_windows, smoothed_rates, window_begin
from tests.infra.data.shops import START_MS, open_shop

MAPPING = """
[items]
file = "items.csv"
id = "item"
{items}
[items.features]
maker = {{ column = "maker", kind = "categorical" }}
{features}
[impressions]
file = "log.csv"
user = "user"
item = "item"
time = "at"
clicked = "click"
[impressions.outcomes]
liked = "liked"
"""
ROWS = [(n % 11, n * 7 % 20, START_MS + n * 20 * 60_000, int(n * 7 % 20 < 6 and n % 3 > 0), int(n % 5 == 0)) for n in range(600)]


def open_log(folder: Path, features: str = "", items: str = "", rows: Sequence[tuple[int, ...]] = ROWS) -> MeasuredCatalogue:
    log = "user,item,at,click,liked\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    makers = "item,maker\n" + "".join(f"{n},m{n % 17}\n" for n in range(20))
    return open_shop(folder, MAPPING.format(features=features, items=items), items=makers, log=log)


def rate(rows: list[tuple[int, ...]], before: list[tuple[int, ...]], flag: int) -> float:
    """The definition, by hand."""
    share = (sum(r[flag] for r in before) + 1) / (len(before) + 2)
    smoothed = (sum(r[flag] for r in rows) + PRIOR * share) / (len(rows) + PRIOR)
    return math.log(smoothed / (1 - smoothed)) - math.log(share / (1 - share))


def test_a_told_statistic_is_what_was_known_at_the_time(tmp_path: Path) -> None:
    features = 'liking = { rate = "liked", by = "maker", window = "2d" }\nclicking = { rate = "click" }\nseen = { count = "shown", window = "36h" }'
    told = list(open_log(tmp_path, features).items())
    assert len({u.version for u in told}) > 20
    for update in told:
        if update.version > START_MS:
            before = [row for row in ROWS if row[2] < update.version]
            lately = [row for row in before if row[2] >= window_begin(update.version, 2 * DAY_MS)]
            of_maker = [row for row in lately if row[1] % 17 == int(update.item_id) % 17]
            own = [row for row in before if row[1] == update.item_id]
            assert update.features["clicking"] == pytest.approx(rate(own, before, 3), abs=RATE_STEP / 2 + 1e-9)
            assert update.features["liking"] == pytest.approx(rate(of_maker, lately, 4), abs=RATE_STEP / 2 + 1e-9)
            assert update.features["seen"] == sum(row[2] >= window_begin(update.version, 36 * HOUR_MS) for row in own)


def test_a_mapping_with_impressions_gets_rates_of_items_and_of_large_groups_and_counts_that_fit_the_log(tmp_path: Path) -> None:
    found = open_log(tmp_path)
    names = [f.name for f in found.schema.realtime_features]
    assert names == ["rate_click", "rate_liked", "rate_click_of_maker", "rate_liked_of_maker", "shown", "shown_6h", "shown_1d"]
    assert "maker" not in {f.name for f in found.schema.features}, "17 makers of 20 items would be learnt by heart"
    assert not any("maker" in doubt for doubt in find_doubts(found.sources)), "a column that is no feature disturbs no check"
    assert found.model["tasks"] == ("click", "liked", "shown") and found.model["rank_by"] == "click * shown"
    assert not open_log(tmp_path, items="popularity = false").schema.realtime_features


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ('x = { rate = "clik" }', "names 'clik', which no impression or behaviour has; did you mean 'click'"),
        ('x = { rate = "shown" }', "names 'shown', which no impression"),
        ('x = { rate = "click", by = "makr" }', "by = 'makr' is no column of .items.features.; did you mean 'maker'"),
    ],
)
def test_a_statistic_of_something_that_no_log_tells_is_refused(tmp_path: Path, feature: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        list(open_log(tmp_path, feature).items())


def test_windows_fit_the_log_and_numbers_are_coarse() -> None:
    assert list(fit_windows(5 * DAY_MS)) == ["1h", "6h", "1d"] and list(fit_windows(400 * DAY_MS)) == ["1d", "7d", "28d"]
    assert not fit_windows(HOUR_MS) and list(fit_windows(5 * DAY_MS, 50)) == ["6h", "1d"]
    assert coarse_counts(np.array([0, 9, 10, 99, 101, 12_345])).tolist() == [0, 9, 10, 99, 100, 12_000]
    rates = smoothed_rates(np.array([0, 10, 0, 1]), np.array([0, 20, 100, 1]))
    assert rates[0] == 0.0 and rates[1] > rates[3] > 0 > rates[2] and np.isfinite(rates).all()


def test_an_outcome_is_refused_as_a_feature_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(MAPPING.format(features="", items="") + '[impressions.context]\nlove = "liked"\n')
    with pytest.raises(
        Misconfigured, match=r"context\.love reads 'liked', the column of liked: an outcome is not known when the request is ranked"
    ):
        read_mapping(tmp_path / "shop.toml")


def test_signatures_tell_what_the_same_users_took_before_anything_was_shown(tmp_path: Path) -> None:
    """Two groups of items, each taken by users of its own; what is taken later mixes them, and must not show."""
    log = "user,item,at,click\n" + "".join(f"{n % 40},{n % 20},{START_MS + n * HOUR_MS},{n % 2}\n" for n in range(100))
    before = [
        (user, item, START_MS - 10 * DAY_MS + item)
        for user in range(40)
        for item in range(20)
        if item % 2 == user % 2 and item != user % 19
    ]
    after = [(user, item, START_MS + HOUR_MS + item) for user in range(40) for item in range(20) if item % 2 != user % 2]
    items = "item,maker\n" + "".join(f"{n},m\n" for n in range(20))
    mapping = MAPPING.format(features="", items="").partition("[impressions.outcomes]")[0]
    mapping += '[behaviours]\nfile = "taken.csv"\nuser = "user"\nitem = "item"\ntime = "at"\n'

    def marks(rows: list[tuple[int, ...]]) -> np.ndarray:
        taken = "user,item,at\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        found = open_shop(tmp_path, mapping, items=items, log=log, taken=taken)
        return np.array([new.embedding for new in found.new_items()])

    first = marks([*before, *after])
    near = first @ first.T
    groups = np.arange(20) % 2
    same = (groups[:, None] == groups) & ~np.eye(20, dtype=bool)
    assert near[same].mean() > near[groups[:, None] != groups].mean() + 0.2
    assert len({tuple(mark) for mark in first.tolist()}) == 20, "each item has a small part of its own"
    np.testing.assert_array_equal(first, marks(before))
