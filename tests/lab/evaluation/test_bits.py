"""Bits for a loss: the careful recommendation and the law's."""

import pytest

from infra.figures import Interval
from lab.evaluation.tables import bits_by_law, fit_law, recommend_bits

LOSSES = {32: Interval(1.9, 1.7, 2.1), 64: Interval(1.0, 0.9, 1.1), 128: Interval(0.5, 0.4, 0.6), 256: Interval(0.2, 0.1, 0.3)}


@pytest.mark.parametrize(("allowed", "bits"), [(0.1, None), (0.3, 256), (0.59, 256), (0.6, 128), (1.5, 64), (3.0, 32)])
def test_the_fewest_bits_that_surely_lose_no_more_are_recommended(allowed: float, bits: int | None) -> None:
    assert recommend_bits(LOSSES, allowed) == bits


def test_a_lucky_small_number_of_bits_does_not_pass_where_a_greater_fails() -> None:
    assert recommend_bits(LOSSES | {64: Interval(0.1, 0.0, 0.2)}, 0.4) == 256


def test_the_law_is_found_again_and_read_in_whole_bytes() -> None:
    law = fit_law({bits: 64 / bits for bits in (32, 64, 256)})
    assert law == pytest.approx(64) and bits_by_law(law, 0.5) == 128 and bits_by_law(law, 0.3) == 216 and bits_by_law(0.0, 0.1) == 8
