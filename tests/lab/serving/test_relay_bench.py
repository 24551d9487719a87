"""The relay's bench: what counts as good, its grid of lengths, and the differences that it reports."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from infra.figures import Figures
from lab.serving.overload import BenchServer
from lab.serving.relay import (
    _RATES_PER_S,
    RELAY,
    Load,
    RelayPlan,
    Window,
    _find_throughput_length,
    _measure_model,
    _search_length,
    _search_throughput,
)

MS_PER_BEHAVIOUR = 0.01


def test_bad_requests_are_late_or_failed() -> None:
    assert Window(latencies_ms=[30.0] * 98 + [31.0], failed=2).bad(30.0) == 3


class LateLoad(Load):
    """Every answer comes at once, and counts as late."""

    async def _run(self, window: Window, users: Sequence[int], moments_s: Iterable[float]) -> None:
        for _ in moments_s:
            window.latencies_ms.append(31.0)


def test_a_window_ends_when_it_has_too_many_bad_requests() -> None:
    load = LateLoad(BenchServer("", 0, np.zeros((1, 1))), RelayPlan(), signals=False)
    assert len(load.run([0], 12.0, 120, bad_max=1.2).latencies_ms) == 2
    assert len(load.run([0], 12.0, 120).latencies_ms) == 120, "a window that is no search runs to its end"


def test_lengths_double_every_eight_steps() -> None:
    grid = RelayPlan().grid
    assert [grid[0], grid[8], grid[16], grid[32]] == [256, 512, 1_024, 4_096]


def test_fp32_in_pieces_is_one_pass_and_fp16_is_farther_from_it() -> None:
    figures = Figures(RELAY, {})
    _measure_model(figures)
    fp32, fp16 = (figures.value(f"epsilon_{name}") or 0.0 for name in ("fp32", "fp16"))
    assert fp32 <= 1e-5 and fp32 < fp16 <= 1e-3


class FakeLoad(Load):
    """Answers of a server that takes MS_PER_BEHAVIOUR for each behaviour, and more the busier it is."""

    def run(self, users: Sequence[int], rate_per_s: float, requests: int, bad_max: float = math.inf) -> Window:
        length = self.plan.grid[users[0] // self.plan.users]
        return Window([length * MS_PER_BEHAVIOUR * (1 + rate_per_s / 100)] * requests)


def test_searches_find_the_last_good_length_and_rate_of_their_grids() -> None:
    load = FakeLoad(BenchServer("", 0, np.zeros((1, 1))), RelayPlan(), signals=False)
    grid = load.plan.grid
    limit = 30 / MS_PER_BEHAVIOUR / 1.12
    assert _search_length(load) == max(length for length in grid if length <= limit)
    at_60 = _find_throughput_length(load)
    assert at_60 == max(length for length in grid if length * MS_PER_BEHAVIOUR * 1.05 <= 18)
    rate = _search_throughput(at_60, load)
    assert rate == max(one for one in _RATES_PER_S if at_60 * MS_PER_BEHAVIOUR * (1 + one / 100) <= 30)
    assert _search_throughput(grid[-1], load) == _RATES_PER_S[0], "the lowest rate where none is good"
