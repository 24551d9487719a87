"""The server's clock against the broker's."""

import pytest

from serving.core.broker_clock import BrokerClock


@pytest.mark.parametrize(("broker_s", "ahead_s"), [(1_000.0, 0.0), (1_000.3, 0.0), (400.0, 600.0), (1_600.4, -600.0), (1_000.5, -0.1)])
def test_a_difference_shows_as_far_as_the_broker_cannot_have_dated_the_record_within_its_way(broker_s: float, ahead_s: float) -> None:
    clock = BrokerClock(wall_s=lambda: 2_000.0)
    assert (clock.now_s(), clock.why_wrong()) == (2_000.0, "")
    clock.note(1_000.0, 0.4, broker_s)
    assert clock.ahead_s == pytest.approx(ahead_s) and clock.now_s() == pytest.approx(2_000.0 - ahead_s)
    assert ("clock_differs" in clock.why_wrong()) == (abs(ahead_s) > 1)
