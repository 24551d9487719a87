"""The fast writer of canonical bytes says what the plain one does."""

import json
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.ids import IdKind
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item_state import encode_raw_features
from streams.shard.decode import _to_float32, decode_source_records, encode_canonical

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
        one, both, neighbour = _to_float32([[value], [1.0, value], [2.0]])
        assert (one is not None) == (both is not None) == fits, value
        assert neighbour == np.array([2.0], np.float32).tobytes(), "each is judged alone"
        assert not fits or both == np.array([1.0, value], np.float32).tobytes()


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from([ITEM_FEATURES, NEW_ITEMS]))
def test_a_flipped_bit_never_stops_a_partition_and_no_update_vanishes(place: int, bit: int, topic: str) -> None:
    update = {"item_id": 1, "version": 3, "features": {"price": 1.5, "brand": "x", "tags": ["a", 2, None], "stock": True}}
    updates = (
        [update, {"op": "delete", "item_id": 1, "version": 4}] if topic == ITEM_FEATURES else [{"item_id": 1, "embedding": [1.0, -2.5e-3]}]
    )
    raw = bytearray(json.dumps({"schema": 1, "updates": updates}).encode())
    raw[place % len(raw)] ^= 1 << bit
    decoded = decode_source_records([SourceRecord(topic, 0, 0, b"", bytes(raw))], IdKind.INT64, 1)[0]
    assert len(decoded) in (len(updates), 1)  # each judged alone, or the record as one rejected update
    assert len(decoded) == len(updates) or (not decoded.updates and len(decoded.rejected) == 1)
