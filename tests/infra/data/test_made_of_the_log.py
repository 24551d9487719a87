"""What is made of the whole log is named, also as a mean of a group of items and cut into classes; what is made of the log until then, and a price, is not."""

from pathlib import Path

import numpy as np
import pytest

from infra.data.doubts import find_doubts
from infra.data.leakage import find_made_of_the_log, gamma
from infra.data.mapped_sources import MappedSources
from tests.infra.data.shops import open_shop

ITEMS, BRANDS, REQUESTS, SHOWN = 300, 40, 1_500, 8
COLUMNS = (
    "rate",
    "brand_rate",
    "brand_tier",
    "tier",
    "rate_before",
    "brand_rate_before",
    "brand_tier_before",
    "tier_before",
    "price",
    "maker",
)
MADE = {f"[items] features.{name}" for name in COLUMNS[:4]}
MAPPING = """[items]\nfile = "items.csv"\nid = "id"\n[items.features]\nbrand = "brand"\n{features}
[impressions]\nfile = "log.csv"\nrequest = "request"\nuser = "user"\nitem = "item"\ntime = "at"\nclicked = "clicked"\n[evaluation]\nfrom = 1700120000\n"""


def _write(folder: Path) -> MappedSources:
    """A log in which some brands are clicked more often than others, and items of equal brands, too; the last fifth is held out."""
    rng = np.random.default_rng(0)
    brand_I = rng.integers(0, BRANDS, ITEMS)
    chance_I = 1 / (1 + np.exp(-rng.normal(-1, 0.7, BRANDS)[brand_I] - rng.normal(0, 0.5, ITEMS)))
    shown_RS = np.stack([rng.choice(ITEMS, SHOWN, replace=False) for _ in range(REQUESTS)])
    clicked_RS = rng.random(shown_RS.shape) < chance_I[shown_RS]
    columns = []
    for last in (REQUESTS, REQUESTS * 4 // 5):
        clicks_I = np.bincount(shown_RS[:last].ravel(), clicked_RS[:last].ravel(), ITEMS)
        views_I = np.bincount(shown_RS[:last].ravel(), minlength=ITEMS)
        rate_I = clicks_I / views_I
        of_brand_I = (np.bincount(brand_I, clicks_I) / np.bincount(brand_I, views_I))[brand_I]
        columns += [rate_I, of_brand_I, _tiers(of_brand_I), _tiers(rate_I)]
    columns += [rng.integers(100, 999, ITEMS) / 100, np.array([f"m{n}" for n in rng.integers(0, 8, ITEMS)])]
    items = zip(*columns, strict=True)
    lines = [",".join(map(str, (i, f"b{brand_I[i]}", *cells))) for i, cells in enumerate(items)]
    log = [
        f"{r},u{r % 50},{item},{1_700_000_000 + 100 * r},{int(clicked)}"
        for r in range(REQUESTS)
        for item, clicked in zip(shown_RS[r].tolist(), clicked_RS[r].tolist(), strict=True)
    ]
    files = {"items": ["id,brand," + ",".join(COLUMNS), *lines], "log": ["request,user,item,at,clicked", *log]}
    mapping = MAPPING.format(features="\n".join(f'{name} = "{name}"' for name in COLUMNS))
    return open_shop(folder, mapping, **{name: "\n".join(rows) + "\n" for name, rows in files.items()}).sources


def _tiers(rate_I: np.ndarray) -> np.ndarray:
    cuts = np.quantile(rate_I, [0.25, 0.5, 0.75])
    return np.array([f"t{n}" for n in np.searchsorted(cuts, rate_I)])


def test_shares_of_clicks_of_the_whole_log_are_told_apart_from_those_until_then(tmp_path: Path) -> None:
    sources = _write(tmp_path)
    found = find_made_of_the_log(sources)
    assert found.keys() == MADE
    assert all(whole > 0.97 and whole > before for whole, before in found.values())
    assert [doubt.split(" orders ")[0] for doubt in find_doubts(sources)] == list(found)


def test_gamma_counts_pairs_that_differ_in_both() -> None:
    one_G = np.array([1.0, 2.0, 2.0, 3.0])
    assert gamma(one_G, one_G) == 1.0 and gamma(one_G, -one_G) == -1.0 and gamma(one_G, np.ones(4)) == 0.0
    assert gamma(one_G, np.array([1.0, 5.0, 0.0, 2.0])) == pytest.approx(1 / 5)
