"""The soak bench: its slopes, and a soak of 20 minutes against real processes."""

import pytest

from lab.figures.declared import Bench
from lab.system.soak import SOAK, measure_soak, slope_per_h


def test_a_slope_is_that_of_the_trend_and_short_peaks_do_not_move_it() -> None:
    times = [float(10 * n) for n in range(100)]
    values = [5.0 + 2.0 * at / 3600.0 for at in times]
    for peak in (3, 40, 41, 99):
        values[peak] += 1_000.0
    assert slope_per_h(times, values) == pytest.approx(2.0)
    assert slope_per_h(times, [7.0] * 100) == 0.0
    assert slope_per_h([0.0], [1.0]) is None


def test_every_series_with_a_goal_is_declared() -> None:
    assert isinstance(SOAK, Bench)
    assert {goal.figure for goal in SOAK.parsed_goals()} >= {"worker_open_files_per_h", "shards_table_files_per_h", "store_files_per_h"}


@pytest.mark.campaign
@pytest.mark.timeout(2_400)
def test_no_process_gathers_files_in_20_minutes_of_mixed_load() -> None:
    figures = measure_soak(seconds=1_200, settle_s=400, items=2_000, rate=200.0, version_every_s=45.0)
    assert figures.value("answers") > 1_000 and figures.value("versions") > 10  # type: ignore[operator]
    for series in ("worker_open_files", "server_open_files", "shards_table_files", "users_table_files"):
        assert figures.value(f"{series}_per_h") <= 30.0, series  # type: ignore[operator]
