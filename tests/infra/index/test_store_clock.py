"""Ages of files are told by the store's clock, whatever the clock of this machine says."""

import time
from pathlib import Path

import pytest

from infra.index.store import StoreClock, open_index_store

DAY_S = 24 * 3600.0


class WrongClock:
    """A wall clock that is off by `ahead_s`, which may change."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s, self.seconds = ahead_s, 0.0

    def now_ms(self) -> int:
        return int((time.time() + self.ahead_s) * 1000)

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, -2 * DAY_S])
def test_it_goes_by_the_store_and_on_with_the_monotonic_clock(tmp_path: Path, ahead_s: float) -> None:
    wrong = WrongClock(ahead_s)
    clock = StoreClock(open_index_store(str(tmp_path)), wrong)
    began_ms = clock.now_ms()
    assert abs(began_ms - time.time() * 1000) < DAY_S * 1000
    wrong.ahead_s, wrong.seconds = -ahead_s, 5.0
    assert clock.now_ms() == began_ms + 5_000
    assert not list(tmp_path.rglob("probes/*"))
