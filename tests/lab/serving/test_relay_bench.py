"""The relay's bench: what counts as good, its grid of lengths, and the differences that it reports."""

from infra.figures import Figures
from lab.serving.relay import RELAY, RelayPlan, Window, _measure_model


def test_a_window_is_good_if_99_of_100_requests_are_answered_within_the_budget() -> None:
    assert Window(latencies_ms=[30.0] * 99 + [31.0]).good(30.0)
    assert not Window(latencies_ms=[30.0] * 98 + [31.0] * 2).good(30.0)
    assert not Window(latencies_ms=[30.0] * 99, failed=2).good(30.0)


def test_lengths_double_every_four_steps() -> None:
    grid = RelayPlan().grid
    assert [grid[0], grid[4], grid[8], grid[16]] == [362, 724, 1_448, 5_792]


def test_fp32_in_pieces_is_one_pass_and_stores_of_fewer_bits_are_farther_from_it() -> None:
    figures = Figures(RELAY, {})
    _measure_model(figures)
    fp32, fp16, int8 = (figures.value(f"epsilon_{name}") or 0.0 for name in ("fp32", "fp16", "int8"))
    assert fp32 <= 1e-5 and fp32 < fp16 <= 1e-3 and fp16 < int8 <= 2e-2
