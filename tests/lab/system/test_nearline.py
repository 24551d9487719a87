"""`aif bench nearline`: the rate of what workers tell, and the build measured in process."""

from pathlib import Path

from infra.figures import Figures
from lab.catalogues.open_catalogue import open_world
from lab.system.nearline import NEARLINE, _measure_build, _rate


def test_a_rate_counts_what_was_told_after_the_first_moment_until_all_is_applied() -> None:
    moments = [(1_000, 0, 10), (1_500, 1, 20), (2_000, 0, 40), (2_500, 1, 30), (9_000, 0, 40)]
    # by 1,000 ms 10 records of shard 0 and none of shard 1; all 70 by 2,500 ms
    assert _rate(moments, {0: 0, 1: 0}) == (70 - 10) / 1.5


def test_the_build_is_measured_beside_the_network_on_the_same_rows(tmp_path: Path) -> None:
    figures = Figures(NEARLINE)
    _measure_build(tmp_path, open_world(600), figures)
    full, floor = figures.value("full_items_per_s"), figures.value("floor_items_per_s")
    assert full is not None and floor is not None and figures.value("full_over_floor") == full / floor
    assert full > 0 < floor
