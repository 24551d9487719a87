"""Records that are damaged or hold what cannot be stored: every update is judged, and none stops its neighbours."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.ids import IdKind
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.shard.decode import _to_float32, decode_source_records


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
