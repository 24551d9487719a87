"""A log like that of news, whose items are popular for hours: what an import chooses for it, and that a shop's log gets nothing of that."""

from pathlib import Path

import numpy as np
import pytest

from infra.data.choices import describe_choices
from infra.data.mapping import read_mapping
from infra.data.periods import life_of_items
from lab.catalogues.measured_catalogue import MeasuredCatalogue

ITEMS, CLICKS, HOUR_S, HOURS = 60, 6_000, 3_600, 72
MAPPING = '[items]\nfile = "log.csv"\nid = "item"\n{}[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\ntime = "at"\n'


def _open(folder: Path, life: float, of_items: str = "") -> MeasuredCatalogue:
    """Each item is clicked during that share of the log, at a time of its own."""
    rng = np.random.default_rng(0)
    item_X = rng.integers(0, ITEMS, CLICKS)
    begin_I = rng.random(ITEMS) * (1 - life)
    at_X = (begin_I[item_X] + life * rng.random(CLICKS)) * HOURS * HOUR_S
    rows = zip(rng.integers(0, 300, CLICKS).tolist(), item_X.tolist(), (1_700_000_000 + at_X).astype(int).tolist(), strict=True)
    (folder / "log.csv").write_text("user,item,at\n" + "".join(f"{u},i{i},{t}\n" for u, i, t in rows))
    (folder / "m.toml").write_text(MAPPING.format(of_items))
    return MeasuredCatalogue(read_mapping(folder / "m.toml"), folder)


@pytest.mark.parametrize(("life", "passes"), [(0.1, True), (0.2, True), (0.6, False), (1.0, False)])
def test_items_pass_if_they_are_popular_for_less_than_a_third_of_the_log(tmp_path: Path, life: float, passes: bool) -> None:
    sources = _open(tmp_path, life).sources
    assert sources.items_pass == passes
    found = life_of_items(sources.positives, sources.usual_times[0], sources.now_ms)
    assert life_of_items(sources.positives, sources.now_ms, sources.now_ms) == 1.0, "no positives at all"
    assert found == pytest.approx(0.8 * life / 0.85, rel=0.25) or life > 0.5


def test_a_model_of_items_that_pass_reads_nothing_that_tells_them_apart(tmp_path: Path) -> None:
    news = _open(tmp_path, 0.15).sources
    assert set(news.item_features) == {"taken", "taken_1h", "taken_6h", "taken_1d", "first_taken", "last_taken"}
    assert not news.schema.item_half_inputs
    assert 10 * news.window_ms() <= news.now_ms - news.usual_times[0]


def test_a_shop_of_the_same_length_keeps_what_its_items_have_in_common(tmp_path: Path) -> None:
    shop = _open(tmp_path, 1.0).sources
    assert "taken_together" in shop.item_features and shop.schema.item_half_inputs
    assert shop.window_ms() == shop.end_ms - shop.now_ms


def test_the_dry_run_tells_it_and_a_mapping_may_choose_otherwise(tmp_path: Path) -> None:
    told = " ".join(describe_choices(_open(tmp_path, 0.15)))
    assert "popular for less than a third of the log" in told and "a tenth of the log before" in told
    named = _open(tmp_path, 0.15, of_items="[items.features]\ntogether = { taken_together = 8 }\n")
    assert [f.name for f in named.sources.schema.item_half_inputs] == ["together"]
