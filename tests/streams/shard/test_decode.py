"""Records that are damaged or hold values that cannot be stored: every update is judged, and none stops its neighbours."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.ids import IdKind
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item import EmbeddingUpdate
from streams.shard.decode import decode_source_record


def test_a_number_is_refused_exactly_where_rounding_to_float32_gives_an_infinity() -> None:
    largest = (2 - 2**-23) * 2.0**127
    for value, fits in ((largest, True), (largest * (1 + 2**-26), True), (largest * (1 + 2**-24), False), (-1e300, False), (0.1, True)):
        updates = [{"item_id": 1, "embedding": embedding} for embedding in ([value], [1.0, value], [2.0])]
        raw = json.dumps({"schema": 1, "updates": updates}).encode()
        decoded = decode_source_record(SourceRecord(NEW_ITEMS, 0, 0, None, raw), IdKind.INT64, 1)
        stored = {u.index: u.values for u in decoded.updates if isinstance(u, EmbeddingUpdate)}
        expected = {0: [value], 1: [1.0, value], 2: [2.0]} if fits else {2: [2.0]}
        assert stored == {i: np.array(numbers, np.float32).tobytes() for i, numbers in expected.items()}, "each is judged alone"
        assert {r.code for r in decoded.rejected} == (set() if fits else {"bad_update"})


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from([ITEM_FEATURES, NEW_ITEMS]))
def test_a_flipped_bit_never_stops_a_partition_and_no_update_vanishes(place: int, bit: int, topic: str) -> None:
    update = {"item_id": 1, "version": 3, "features": {"price": 1.5, "brand": "x", "tags": ["a", 2, None], "stock": True}}
    updates = (
        [update, {"op": "delete", "item_id": 1, "version": 4}] if topic == ITEM_FEATURES else [{"item_id": 1, "embedding": [1.0, -2.5e-3]}]
    )
    raw = bytearray(json.dumps({"schema": 1, "updates": updates}).encode())
    raw[place % len(raw)] ^= 1 << bit
    decoded = decode_source_record(SourceRecord(topic, 0, 0, b"", bytes(raw)), IdKind.INT64, 1)
    assert len(decoded) in (len(updates), 1)  # each judged alone, or the record as one rejected update
    assert len(decoded) == len(updates) or (not decoded.updates and len(decoded.rejected) == 1)
