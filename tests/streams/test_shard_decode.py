"""The fast writer of canonical bytes says what the plain one does."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from streams.core.item_state import encode_raw_features
from streams.shard_decode import _to_float32, encode_canonical

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = NUMBERS | st.booleans() | st.none() | st.text(max_size=8)


@given(st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,6}\Z"), VALUES | st.lists(NUMBERS | st.text(max_size=4), max_size=4)))
@example({"a": 1e16, "b": 1e-7, "c": 1.5e300, "d": -0.0, "e": 1e15, "f": 0.0001})
@example({"a": "\x7f", "b": '"', "c": "\\", "d": "é", "e": "\u2028", "f": "1e5"})
def test_both_writers_give_the_same_bytes(features: dict[str, Any]) -> None:
    assert encode_canonical(features) == encode_raw_features(features)


def test_a_number_is_refused_exactly_where_rounding_to_float32_gives_an_infinity() -> None:
    largest = (2 - 2**-23) * 2.0**127
    for value, fits in ((largest, True), (largest * (1 + 2**-26), True), (largest * (1 + 2**-24), False), (-3.5e38, False), (0.1, True)):
        assert (_to_float32([value]) is not None) == fits, value
