"""A total of the whole period among the columns of the items is named; what was known before, and what says nothing, is not."""

from collections import Counter
from pathlib import Path

import numpy as np

from infra.data.doubts import find_doubts
from infra.data.mapped_catalogue import MappedCatalogue
from infra.data.mapping import read_mapping
from infra.data.telling_features import find_telling_features, partial_rank_correlation

ITEMS, DAYS, HELD_OUT_FROM = 120, 59, 51
MAPPING = """
[items]
file = "items.csv"
id = "id"
[items.features]
total = "total"
rank = "rank"
before = "before"
price = "price"
[behaviours]
file = "log.csv"
user = "user"
item = "item"
time = "day"
[evaluation]
from = 2024-02-21
"""


def write_shop(folder: Path) -> Path:
    """Items whose popularity comes and goes, with what somebody who knows the whole log would write about them."""
    rng = np.random.default_rng(3)
    peak, height = rng.uniform(0, 80, ITEMS), rng.lognormal(0, 1, ITEMS)
    log = []
    for day in range(DAYS):
        rate = height * np.exp(-np.abs(day - peak) / 15)
        log += [(int(rng.integers(40)), int(item), day) for item in rng.choice(ITEMS, 60, p=rate / rate.sum())]
    total, before = Counter(item for _, item, _ in log), Counter(item for _, item, day in log if day < HELD_OUT_FROM)
    cells = [(i, total[i], 1_000 - total[i], before[i], rng.integers(1, 90)) for i in range(ITEMS)]
    dates = np.datetime64("2024-01-01") + np.arange(DAYS)
    (folder / "items.csv").write_text("id,total,rank,before,price\n" + "".join(",".join(map(str, row)) + "\n" for row in cells))
    (folder / "log.csv").write_text("user,item,day\n" + "".join(f"{user},{item},{dates[day]}\n" for user, item, day in log))
    (folder / "shop.toml").write_text(MAPPING)
    return folder / "shop.toml"


def test_a_total_and_a_final_rank_are_told_apart_from_what_was_known(tmp_path: Path) -> None:
    sources = MappedCatalogue(read_mapping(write_shop(tmp_path)), tmp_path).sources
    found = find_telling_features(sources)
    assert found.keys() == {"total", "rank"} and found["total"] > 0.5 and found["rank"] == -found["total"]
    assert [doubt.split()[0] for doubt in find_doubts(sources)] == ["features.total", "features.rank"]


def test_what_is_given_explains_and_what_is_constant_says_nothing() -> None:
    rng = np.random.default_rng(0)
    cause_I, noise_I = rng.normal(size=500), rng.normal(size=500)
    one_I, other_I = cause_I + rng.normal(size=500) * 0.1, cause_I + rng.normal(size=500) * 0.1
    assert partial_rank_correlation(one_I, other_I, noise_I[None]) > 0.9
    assert abs(partial_rank_correlation(one_I, other_I, cause_I[None])) < 0.15
    assert partial_rank_correlation(np.ones(500), other_I, noise_I[None]) == 0.0
