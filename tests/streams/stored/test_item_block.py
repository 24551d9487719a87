"""Blocks of items, cut out of stored bytes, against the components one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.joined import join_some, join_stored
from schemas.errors import Corrupted
from schemas.index.layout import component_hash
from streams.core.item_state import StoredEmbedding, StoredFeatures, encode_embedding_component, encode_features_component, encode_order
from streams.stored.item_block import cut_item_block

offsets = st.integers(0, 1 << 62)


@st.composite
def stored_items(draw: st.DrawFn) -> tuple[StoredFeatures, StoredEmbedding | None]:
    raw = b"{" + draw(st.binary(max_size=9)) + b"}"
    index = draw(st.integers(0, 255))
    features = StoredFeatures((draw(offsets), 5, index), False, raw, (draw(offsets), draw(offsets), index), component_hash(raw))
    numbers = draw(st.none() | st.lists(st.floats(width=32), min_size=1, max_size=4))
    if numbers is None:
        return features, None
    values = np.array(numbers, np.float32).tobytes()
    return features, StoredEmbedding((draw(offsets), index), values, (draw(offsets), index), component_hash(values))


@settings(max_examples=100, deadline=None)
@given(st.lists(stored_items(), min_size=1, max_size=9))
def test_a_block_has_the_orders_features_and_embeddings_of_its_components(
    items: list[tuple[StoredFeatures, StoredEmbedding | None]],
) -> None:
    keys = [bytes([i]) for i in range(len(items))]
    stored = [None if e is None else encode_embedding_component(e) for _, e in items]
    block = cut_item_block(keys, join_stored([encode_features_component(f) for f, _ in items]), join_some(stored))
    assert block.orders_R.tobytes() == b"".join(encode_order(f, e) for f, e in items)
    places = zip(block.features.starts_R, block.features.ends_R, strict=True)
    assert [block.features.text_T[a:b].tobytes() for a, b in places] == [f.raw for f, _ in items]
    assert [None if v is None else v.tobytes() for v in block.embeddings] == [None if e is None else e.values for _, e in items]
    stacked, has = block.embeddings.stack(2)
    wide = [e.values if e is not None and len(e.values) == 8 else None for _, e in items]
    assert [row.tobytes() if known else None for row, known in zip(stacked, has, strict=True)] == wide and not stacked[~has].any()
    some = block.take(np.arange(0, len(items), 2))
    assert some.keys == keys[::2] and [v is None for v in some.embeddings] == [e is None for _, e in items[::2]]


def test_a_torn_component_is_named() -> None:
    whole = encode_features_component(StoredFeatures((1, 2, 3), False, b"{}", (1, 2, 3), component_hash(b"{}")))
    with pytest.raises(Corrupted, match="bad_features_component"):
        cut_item_block([b"a", b"b"], join_stored([whole, whole[:44]]), join_some([None, None]))
    embedding = encode_embedding_component(StoredEmbedding((1, 0), bytes(8), (1, 0), component_hash(bytes(8))))
    with pytest.raises(Corrupted, match="bad_embedding_component"):
        cut_item_block([b"a", b"b"], join_stored([whole, whole]), join_some([embedding, embedding[:30]]))
