"""The statistics bench with faults: the numbers served afterwards equal an import of the same behaviours."""

import pytest

from lab.system.statistics import measure_statistics


@pytest.mark.timeout(600)
@pytest.mark.campaign
def test_a_kill_a_freeze_and_a_third_process_leave_the_numbers_of_an_import() -> None:
    figures = measure_statistics(rate=200.0, seconds=20.0, items=1_000, kills=3)
    assert (figures.value("parity_bits"), figures.value("lost")) == (0, 0)
    assert figures.value("behaviours") > 4_000 and figures.value("report_gap_max_s") < 60  # type: ignore[operator]
