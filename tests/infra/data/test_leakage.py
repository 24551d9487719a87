"""A total of the whole period among the columns of the items is named; what was known before, and what says nothing, is not."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from infra.data.doubts import find_doubts
from infra.data.leakage import category_correlation, find_known_future, find_made_of_the_log, partial_rank_correlation
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from tests.infra.data.shops import open_shop

ITEMS, USERS, DAYS, HELD_OUT_FROM = 120, 90, 59, 51
LOG = """
[behaviours]
file = "log.csv"
user = "user"
item = "item"
time = "day"
[evaluation]
from = 2024-02-21
"""
MAPPING = (
    """
[items]
file = "items.csv"
id = "id"
[items.features]
total = "total"
rank = "rank"
status = "status"
gone = "gone"
before = "before"
price = "price"
maker = "maker"
[item_history]
file = "weeks.csv"
id = "id"
time = "week"
[item_history.features]
sold_next = "sold_next"
sold_last = "sold_last"
[users]
file = "users.csv"
id = "id"
[users.features]
orders = "orders"
state = "state"
age = "age"
city = "city"
"""
    + LOG
)
LEAKING = {
    "[items] features.total",
    "[items] features.rank",
    "[items] features.status",
    "[items] features.gone",
    "[item_history] features.sold_next",
    "[users] features.orders",
    "[users] features.state",
}


def open_leaking_shop(folder: Path) -> MeasuredCatalogue:
    """Items and users who come and go, with what somebody who knows the whole log would write about them, and what one of the time would."""
    rng = np.random.default_rng(3)
    log = []
    rate_DI, rate_DU = (_comes_and_goes(rng, owners) for owners in (ITEMS, USERS))
    for day in range(DAYS):
        pairs = zip(rng.choice(USERS, 70, p=rate_DU[day]), rng.choice(ITEMS, 70, p=rate_DI[day]), strict=True)
        log += [(int(user), int(item), day) for user, item in pairs]
    dates = np.datetime64("2024-01-01") + np.arange(DAYS + 1)
    sold, before = Counter(item for _, item, _ in log), Counter(item for _, item, day in log if day < HELD_OUT_FROM)
    took = Counter(user for user, _, _ in log)
    last = {item: day for _, item, day in log}
    seen = {user: day for user, _, day in log}
    cells = []
    for i in range(ITEMS):
        gone = dates[last.get(i, 0)] if last.get(i, 0) < HELD_OUT_FROM else ""
        cells.append(
            (
                i,
                sold[i],
                1_000 - sold[i],
                "over" if last.get(i, 0) < HELD_OUT_FROM else "on sale",
                gone,
                before[i],
                rng.integers(1, 90),
                f"m{rng.integers(9)}",
            )
        )
    items = _csv("id,total,rank,status,gone,before,price,maker", cells)
    by_day = Counter((item, day) for _, item, day in log)
    weeks = [
        (i, dates[day], sum(by_day[i, d] for d in range(day, day + 7)), sum(by_day[i, d] for d in range(day - 7, day)))
        for i in range(ITEMS)
        for day in range(2, HELD_OUT_FROM, 7)
    ]
    users = _csv(
        "id,orders,state,age,city",
        [
            (u, took[u], "left" if seen.get(u, 0) < HELD_OUT_FROM else "here", rng.integers(18, 80), f"c{rng.integers(5)}")
            for u in range(USERS)
        ],
    )
    days = _csv("user,item,day", [(user, item, dates[day]) for user, item, day in log])
    return open_shop(folder, MAPPING, items=items, weeks=_csv("id,week,sold_next,sold_last", weeks), users=users, log=days)


def _comes_and_goes(rng: np.random.Generator, owners: int) -> np.ndarray:
    """Share of each owner on each day."""
    peak, height = rng.uniform(0, 80, owners), rng.lognormal(0, 1, owners)
    rate = height * np.exp(-np.abs(np.arange(DAYS)[:, None] - peak) / 15)
    return np.asarray(rate / rate.sum(1, keepdims=True))


def _csv(header: str, rows: Sequence[Sequence[object]]) -> str:
    return header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def test_what_knows_the_whole_log_is_told_apart_from_what_was_known(tmp_path: Path) -> None:
    sources = open_leaking_shop(tmp_path).sources
    found = find_known_future(sources)
    assert found.keys() == LEAKING and found["[items] features.rank"] == -found["[items] features.total"]
    doubts = find_doubts(sources)
    assert (
        {" ".join(doubt.split()[:2]) for doubt in doubts} == set(found)
        and len(doubts) == len(found)
        and sum("known_after_days" in doubt for doubt in doubts) == 1
    )


SUBTLE = (
    """
[items]
file = "items.csv"
id = "id"
[items.features]
category_rate = "category_rate"
weight = "weight"
maker = "maker"
price = "price"
"""
    + LOG
)


def test_a_mean_by_category_over_the_whole_period_and_a_hint_among_noise_are_named_as_what_may_tell_the_future(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    items, groups = 1_000, 20
    group_I, height_I = rng.integers(0, groups, items), rng.lognormal(0, 0.7, items)
    trend_G = rng.normal(0, 0.1, groups)
    rate_DI = height_I * np.exp(trend_G[group_I] * np.maximum(0, np.arange(DAYS)[:, None] - HELD_OUT_FROM))
    sold_DI = rng.poisson(rate_DI / rate_DI.mean() * 0.4)
    after_I = sold_DI[HELD_OUT_FROM:].sum(0)
    mean_G = np.bincount(group_I, sold_DI.sum(0), groups) / np.bincount(group_I)
    weight_I = 0.5 * (after_I - after_I.mean()) / after_I.std() + rng.normal(0, 1, items)
    cells = [(i, mean_G[group_I[i]].round(3), weight_I[i], f"m{rng.integers(30)}", rng.integers(1, 90)) for i in range(items)]
    dates = np.datetime64("2024-01-01") + np.arange(DAYS)
    log = [(int(rng.integers(99)), i, dates[day]) for day in range(DAYS) for i in np.repeat(np.arange(items), sold_DI[day]).tolist()]
    items_csv = _csv("id,category_rate,weight,maker,price", cells)
    sources = open_shop(tmp_path, SUBTLE, items=items_csv, log=_csv("user,item,day", log)).sources
    assert find_made_of_the_log(sources).keys() == {"[items] features.category_rate"}
    assert "[items] features.weight" in find_known_future(sources) and len(find_doubts(sources)) == 2
    rate, weight = find_doubts(sources)
    assert "in the whole log" in rate and "somewhat more" in weight


def test_what_is_missing_where_there_was_no_past_does_not_tell_the_future(tmp_path: Path) -> None:
    """A price out of the log until then: new items have none, and of these only those that sell later are in the log at all."""
    rng = np.random.default_rng(0)
    log = [(int(rng.integers(60)), int(item), f"2024-01-{day:02d}") for day in range(1, 22) for item in rng.integers(0, 400, 40)]
    log += [(int(rng.integers(60)), int(item), f"2024-01-{day:02d}") for day in range(22, 29) for item in rng.integers(350, 800, 40)]
    old = {item for _, item, day in log if day < "2024-01-22"}
    cells = [(item, rng.integers(1, 90) if item in old else "") for item in range(800)]
    mapping = (
        '[items]\nfile = "items.csv"\nid = "id"\nfeatures = { price = "price" }\n[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\n'
        'time = "day"\n[evaluation]\nfrom = 2024-01-22\n'
    )
    assert not find_known_future(open_shop(tmp_path, mapping, items=_csv("id,price", cells), log=_csv("user,item,day", log)).sources)


def test_categories_of_which_each_has_one_or_all_rows_say_nothing() -> None:
    rng = np.random.default_rng(0)
    after_N, given_N = rng.normal(size=400), rng.normal(size=(1, 400))
    for values in (["same"] * 400, [f"own {n}" for n in range(400)], rng.integers(0, 9, 400).tolist(), rng.integers(0, 200, 400).tolist()):
        assert abs(category_correlation(values, after_N, given_N)) < 0.15
    assert category_correlation(["high" if x > 0 else "low" for x in after_N], after_N, given_N) > 0.7


def test_what_is_given_explains_and_what_is_constant_says_nothing() -> None:
    rng = np.random.default_rng(0)
    cause_I, noise_I = rng.normal(size=500), rng.normal(size=500)
    one_I, other_I = cause_I + rng.normal(size=500) * 0.1, cause_I + rng.normal(size=500) * 0.1
    assert partial_rank_correlation(one_I, other_I, noise_I[None]) > 0.9
    assert abs(partial_rank_correlation(one_I, other_I, cause_I[None])) < 0.15
    assert partial_rank_correlation(np.ones(500), other_I, noise_I[None]) == 0.0
