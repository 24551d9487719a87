"""Many upserts folded at once, against the fold of one update at a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.index.layout import component_hash
from streams.core.item_state import (
    FeaturesUpdate,
    StoredEmbedding,
    StoredFeatures,
    encode_embedding_component,
    encode_features_component,
    encode_order,
    fold_features,
)
from streams.stored.folded_upserts import APPEARED, CHANGED, REPEATED, SUPERSEDED, FoldedUpserts, fold_upserts

texts = st.sampled_from([b"{}", b'{"a":1}', b'{"a":1.0}', b'{"a":"' + b"x" * 300 + b'"}'])  # the last is hashed in three blocks
versions, offsets, indices = st.sampled_from([0, 1, 2**63 - 1]), st.integers(0, 3), st.integers(0, 256)
orders = st.tuples(versions, offsets, indices)


@st.composite
def stored_features(draw: st.DrawFn) -> StoredFeatures | None:
    dead = draw(st.booleans())
    raw = b"" if dead else draw(texts)
    features = StoredFeatures(draw(orders), dead, raw, draw(orders), 0 if dead else component_hash(raw))
    return draw(st.none() | st.just(features))


embeddings = st.none() | st.builds(lambda a, b: StoredEmbedding((a, b), b"12345678", (b, a), component_hash(b"12345678")), offsets, offsets)
steps = st.tuples(stored_features(), embeddings, st.builds(lambda order, raw: (*order, raw), orders, texts))


def fold(steps: list[tuple[StoredFeatures | None, StoredEmbedding | None, tuple[int, int, int, bytes]]]) -> FoldedUpserts:
    updates = [FeaturesUpdate(bytes([r]), *order, False, raw) for r, (_, _, (*order, raw)) in enumerate(steps)]
    features = [None if f is None else encode_features_component(f) for f, _, _ in steps]
    return fold_upserts(updates, features, [None if e is None else encode_embedding_component(e) for _, e, _ in steps])


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=1, max_size=6))
def test_components_orders_and_outcomes_are_those_of_one_fold_after_the_other(
    steps: list[tuple[StoredFeatures | None, StoredEmbedding | None, tuple[int, int, int, bytes]]],
) -> None:
    folded, expected = fold(steps), {}
    for r, (before, embedding, (*order, raw)) in enumerate(steps):
        after = fold_features(before, FeaturesUpdate(bytes([r]), *order, False, raw))
        if after is None:
            assert folded.outcomes_R[r] == SUPERSEDED
            continue
        expected[bytes([r])] = encode_features_component(after)
        appeared = before is None or before.dead
        assert folded.outcomes_R[r] == (APPEARED if appeared else REPEATED if before is not None and before.raw == raw else CHANGED)
        assert folded.after.orders_R[r].tobytes() == encode_order(after, embedding)
        assert folded.after.features.text_T[folded.after.features.starts_R[r] : folded.after.features.ends_R[r]].tobytes() == raw
    assert dict(folded.stored()) == expected


def test_the_state_before_is_told_of_what_changed() -> None:
    held = StoredFeatures((1, 1, 0), False, b'{"a":1}', (1, 1, 0), component_hash(b'{"a":1}'))
    embedding = StoredEmbedding((0, 0), b"1234", (0, 0), component_hash(b"1234"))
    folded = fold([(None, None, (1, 1, 1, b"{}")), (held, embedding, (2, 2, 0, b'{"a":2}')), (held, None, (2, 2, 1, b'{"a":3}'))])
    places = folded.places(CHANGED)
    assert places.tolist() == [1, 2] and [dict(text) for text in folded.texts_before(places)] == [{"a": 1}, {"a": 1}]
    hashes = [int.from_bytes(encode_order(held, e)[28:36], "little") for e in (embedding, None)]
    assert folded.hashes_before(places).tolist() == hashes


def test_a_torn_component_is_named() -> None:
    update = FeaturesUpdate(b"k", 1, 0, 0, False, b"{}")
    with pytest.raises(Corrupted, match="bad_features_component: features component of 44 bytes"):
        fold_upserts([update], [bytes(44)], [None])
    with pytest.raises(Corrupted, match="bad_embedding_component"):
        fold_upserts([update], [None], [bytes(29)])
