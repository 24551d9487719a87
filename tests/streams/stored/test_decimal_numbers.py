"""Decimal text to fp64 against Python's own `float`."""

from decimal import Decimal

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.stored.decimal_numbers import to_double


def read(whole: int, power: int) -> float | None:
    bits_1 = np.zeros(1, np.uint64)
    return float(bits_1.view(np.float64)[0]) if to_double(np.uint64(whole), power, bits_1) else None


@settings(max_examples=400, deadline=None)
@given(st.integers(1, (1 << 64) - 1), st.integers(-345, 310))
@example((1 << 54) + 3, 0)  # half way between two doubles
@example(9007199254740993, 0)
@example(9007199254740993, -1)
@example(22250738585072011, -324)  # at the edge of the subnormal numbers
def test_a_number_is_rounded_as_python_rounds_it_or_refused(whole: int, power: int) -> None:
    found = read(whole, power)
    assert found is None or found == float(f"{whole}e{power}")


@settings(max_examples=300, deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e300) | st.floats(width=32, min_value=2.0**-100, max_value=2.0**100))
def test_every_printed_double_of_ordinary_size_is_decided(value: float) -> None:
    printed = Decimal(repr(value)).as_tuple()
    assert isinstance(printed.exponent, int)
    assert read(int("".join(map(str, printed.digits))), printed.exponent) == value
