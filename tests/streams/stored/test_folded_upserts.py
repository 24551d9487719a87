"""Many upserts folded at once, against the fold of one update at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.joined import join_some, join_stored
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
from streams.stored.feature_texts import FeatureTexts
from streams.stored.folded_upserts import APPEARED, CHANGED, REPEATED, SUPERSEDED, FoldedUpserts, find_items, fold_upserts
from streams.stored.upserts import Upserts

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
items = st.tuples(
    stored_features(), embeddings, st.lists(st.builds(lambda order, raw: (*order, raw), orders, texts), min_size=1, max_size=3)
)


Step = tuple[StoredFeatures | None, StoredEmbedding | None, list[tuple[int, int, int, bytes]]]


def fold(items: list[Step]) -> FoldedUpserts:
    """Each item's upserts in their order, the items' by turns."""
    keys = [bytes([i]) for i in range(len(items))]
    turns = itertools.zip_longest(*(upserts for _, _, upserts in items))
    updates = [FeaturesUpdate(key, *u[:3], False, u[3]) for turn in turns for key, u in zip(keys, turn, strict=True) if u is not None]
    features = {key: None if f is None else encode_features_component(f) for key, (f, _, _) in zip(keys, items, strict=True)}
    embeddings = {key: None if e is None else encode_embedding_component(e) for key, (_, e, _) in zip(keys, items, strict=True)}
    upserts = Upserts.of(updates)
    touched, item_U = find_items(upserts)
    found = touched.present()
    assert [found[item] for item in item_U.tolist()] == [update.key for update in updates]
    return fold_upserts(
        upserts, touched, item_U, join_some([features[key] for key in found]), join_some([embeddings[key] for key in found])
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(items, min_size=1, max_size=6))
def test_components_orders_outcomes_and_steps_are_those_of_one_fold_after_the_other(items: list[Step]) -> None:
    folded, expected, steps, applied = fold(items), {}, [], 0
    for i, (stored, embedding, upserts) in enumerate(items):
        place, outcomes, now = folded.keys.present().index(bytes([i])), [SUPERSEDED], stored
        for *order, raw in upserts:
            after = fold_features(now, FeaturesUpdate(bytes([i]), *order, False, raw))
            if after is None:
                continue
            appeared, repeated = now is None or now.dead, now is not None and now.raw == raw
            outcomes.append(APPEARED if appeared else REPEATED if repeated else CHANGED)
            if outcomes[-1] == CHANGED and now is not None:
                steps.append((place, now.raw, raw))
            applied, now = applied + 1, after
        assert folded.outcomes_I[place] == max(outcomes)
        if now is not stored and now is not None:
            expected[bytes([i])] = encode_features_component(now)
            assert folded.orders(np.array([place])).tobytes() == encode_order(now, embedding)
            assert text_of(folded.features(np.array([place])), 0) == now.raw
    keys, components = folded.stored()
    assert (dict(zip(keys.present(), components.present(), strict=True)), folded.applied) == (expected, applied)
    texts = [(text_of(folded.steps.before, s), text_of(folded.steps.after, s)) for s in range(len(folded.steps.items_S))]
    assert sorted(zip(folded.steps.items_S.tolist(), texts, strict=True)) == sorted((place, (a, b)) for place, a, b in steps)


def text_of(texts: FeatureTexts, place: int) -> bytes:
    return texts.text_T[texts.starts_R[place] : texts.ends_R[place]].tobytes()


def test_the_state_before_is_told_of_what_changed() -> None:
    held = StoredFeatures((1, 1, 0), False, b'{"a":1}', (1, 1, 0), component_hash(b'{"a":1}'))
    embedding = StoredEmbedding((0, 0), b"1234", (0, 0), component_hash(b"1234"))
    folded = fold([(None, None, [(1, 1, 1, b"{}")]), (held, embedding, [(2, 2, 0, b'{"a":2}')]), (held, None, [(2, 2, 1, b'{"a":3}')])])
    places = folded.places(CHANGED)
    assert places.tolist() == [1, 2] and [dict(text) for text in folded.steps.before] == [{"a": 1}, {"a": 1}]
    hashes = [int.from_bytes(encode_order(held, e)[28:36], "little") for e in (embedding, None)]
    assert folded.hashes_before(places).tolist() == hashes


def test_a_torn_component_is_named() -> None:
    one = Upserts.of([FeaturesUpdate(b"k", 1, 0, 0, False, b"{}")])
    with pytest.raises(Corrupted, match="bad_features_component: features component of 44 bytes"):
        fold_upserts(one, *find_items(one), join_stored([bytes(44)]), join_some([None]))
    with pytest.raises(Corrupted, match="bad_embedding_component"):
        fold_upserts(one, *find_items(one), join_some([None]), join_stored([bytes(29)]))
