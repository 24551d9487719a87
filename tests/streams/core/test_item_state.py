"""The fold of one item's components and their bytes."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.index.layout import STAMP
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item import (
    EmbeddingUpdate,
    FeaturesUpdate,
    StoredEmbedding,
    StoredFeatures,
    StoredItem,
    component_hash,
    decode_item,
    encode_item,
    encode_stamp,
    fold_embedding,
    fold_features,
    input_hash_of,
    is_covered,
    pack_features,
    stamp_of,
    unpack_features,
)
from tests.schemas.index.stamp_rule import input_hash

EMPTY, ONE = pack_features({}), pack_features({"a": 1})

updates = st.builds(
    FeaturesUpdate,
    st.just(b"k"),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([EMPTY, ONE]),
    st.just({}),
)


def put(version: int, offset: int, raw: bytes = EMPTY) -> FeaturesUpdate:
    return FeaturesUpdate(b"k", version, offset, 0, False, raw, unpack_features(raw))


def held_features(stamp: tuple[int, int, int], dead: bool, raw: bytes, changed: tuple[int, int, int]) -> StoredFeatures:
    return StoredFeatures(stamp, dead, raw, changed, 0 if dead else component_hash(raw))


def held_embedding(stamp: tuple[int, int], values: bytes, changed: tuple[int, int]) -> StoredEmbedding:
    return StoredEmbedding(stamp, changed, component_hash(values))


def fold_all(events: list[FeaturesUpdate]) -> StoredFeatures | None:
    stored = None
    for event in events:
        stored = fold_features(stored, event) or stored
    return stored


@given(st.lists(updates, max_size=8, unique_by=lambda u: (u.version, u.offset, u.index)), st.randoms())
def test_the_highest_stamp_wins_in_whatever_order_updates_arrive_and_however_often(
    events: list[FeaturesUpdate], random: st.DataObject
) -> None:
    shuffled = events + events[:3]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    once, again = fold_all(events), fold_all(shuffled)
    if not events:
        assert once is again is None
        return
    winner = max(events, key=lambda u: (u.version, u.offset, u.index))
    for stored in (once, again):
        assert stored is not None
        assert (stored.stamp, stored.dead, stored.raw) == ((winner.version, winner.offset, winner.index), winner.dead, winner.raw)


def test_an_identical_update_advances_the_stamp_and_not_the_stamp_of_the_last_change() -> None:
    first = fold_features(None, put(1, 0))
    again = fold_features(first, put(2, 1))
    assert again is not None and again.stamp == (2, 1, 0) and again.changed == (1, 0, 0)
    other = fold_features(again, put(3, 2, ONE))
    assert other is not None and other.changed == other.stamp == (3, 2, 0)
    one = fold_embedding(None, EmbeddingUpdate(b"k", 4, 1, b"abcd"))
    two = fold_embedding(one, EmbeddingUpdate(b"k", 7, 0, b"abcd"))
    assert two is not None and two.stamp == (7, 0) and two.changed == (4, 1)


def counted(time_ms: int, offset: int, **values: float | None) -> FeaturesUpdate:
    return FeaturesUpdate(b"k", time_ms, offset, 0, False, pack_features(values), values, is_statistics=True)


def test_statistics_hold_over_the_record_and_a_sent_again_one_changes_nothing() -> None:
    stored = fold_features(None, put(7, 0, pack_features({"a": 1, "taken": 5.0})))
    stored = fold_features(stored, counted(1_000, 1, taken=6.0, shown=2.0))
    assert stored is not None and stored.stamp == stored.changed == (7, 1, 0)
    assert unpack_features(stored.raw) == {"a": 1, "taken": 6.0, "shown": 2.0}
    assert fold_features(stored, counted(1_000, 2, taken=6.0)) is None, "the same one again"
    assert fold_features(stored, counted(999, 2, taken=9.0)) is None, "an older one"
    stored = fold_features(stored, put(7, 3, pack_features({"a": 2, "taken": 5.0})))
    assert stored is not None and unpack_features(stored.raw) == {"a": 2, "taken": 6.0, "shown": 2.0}
    assert decode_item(encode_item(stored, None)).features == stored
    stored = fold_features(stored, counted(2_000, 4, taken=None))
    stored = fold_features(stored, put(8, 5, pack_features({"a": 3, "taken": 8.0}))) if stored is not None else None
    assert stored is not None and unpack_features(stored.raw) == {"a": 3, "taken": 8.0, "shown": 2.0}


def test_statistics_of_an_item_that_is_not_there_are_superseded_and_end_with_it() -> None:
    assert fold_features(None, counted(1_000, 0, taken=1.0)) is None
    stored = fold_features(fold_features(None, put(1, 0)), counted(1_000, 1, taken=1.0))
    dead = fold_features(stored, FeaturesUpdate(b"k", 2, 2, 0, True, b"", {}))
    assert dead is not None and not dead.statistics and fold_features(dead, counted(2_000, 3, taken=1.0)) is None
    again = fold_features(dead, put(3, 4))
    assert again is not None and unpack_features(again.raw) == {}


def test_a_removal_without_version_takes_the_stored_one_and_0_where_nothing_is_stored() -> None:
    removal = FeaturesUpdate(b"k", None, 9, 0, True, b"", {})
    assert (stored := fold_features(None, removal)) is not None and stored.stamp == (0, 9, 0)
    stored = fold_features(held_features((7, 3, 1), False, EMPTY, (7, 3, 1)), removal)
    assert stored is not None and stored.stamp == (7, 9, 0) and stored.dead


def test_an_embedding_is_superseded_by_a_higher_offset_or_index_only() -> None:
    stored = held_embedding((5, 1), b"abcd", (5, 1))
    assert fold_embedding(stored, EmbeddingUpdate(b"k", 5, 1, b"efgh")) is None
    assert fold_embedding(stored, EmbeddingUpdate(b"k", 4, 9, b"efgh")) is None
    assert fold_embedding(stored, EmbeddingUpdate(b"k", 5, 2, b"efgh")) == held_embedding((5, 2), b"efgh", (5, 2))


def test_a_stored_item_has_these_bytes() -> None:
    features, embedding = held_features((1, 2, 3), False, EMPTY, (1, 2, 0)), held_embedding((2, 1), b"\x00\x00\x80?", (0, 1))
    hashed = [hashlib.blake2b(raw, digest_size=8).hexdigest() for raw in (EMPTY, b"\x00\x00\x80?")]
    stamp, changed = "010000000000000002000000000000000300", "010000000000000002000000000000000000"
    embedding_stamps = "02000000000000000100" + "00000000000000000100"
    assert encode_item(features, embedding).hex() == stamp + changed + "00" + hashed[0] + embedding_stamps + hashed[1] + "80"


@pytest.mark.parametrize(
    "features", [None, held_features((9, 1 << 40, 255), False, ONE, (3, 2, 1)), held_features((1, 2, 3), True, b"", (1, 2, 3))]
)
@pytest.mark.parametrize("embedding", [None, held_embedding((0, 0), b"abcd", (0, 0))])
def test_a_stored_item_reads_as_it_was_written(features: StoredFeatures | None, embedding: StoredEmbedding | None) -> None:
    assert decode_item(encode_item(features, embedding)) == StoredItem(features, embedding)


@pytest.mark.parametrize("value", [b"", b"x" * 72])
def test_a_torn_item_is_named(value: bytes) -> None:
    with pytest.raises(Corrupted, match="bad_item"):
        decode_item(value)


@pytest.mark.parametrize("raw", [b"", b"\x81", b"\x01", b"\x81\xa1\xff\x01"])
def test_torn_features_are_named(raw: bytes) -> None:
    with pytest.raises(Corrupted, match="bad_stored_features"):
        unpack_features(raw)


def test_equal_features_have_equal_bytes_whatever_the_order_of_names_and_unlike_values_have_not() -> None:
    assert pack_features({"b": [1, 2.5], "a": "é"}) == pack_features({"a": "é", "b": [1, 2.5]})
    distinct = [pack_features({"a": value}) for value in (1, 1.0, True, "1", None, 0.0, -0.0)]
    assert len(set(distinct)) == len(distinct)
    assert unpack_features(pack_features({"a": [1, "x"]})) == {"a": [1, "x"]}


def test_a_rows_stamp_has_the_last_changes_the_input_hash_and_minus_one_without_embedding() -> None:
    features = held_features((3, 9, 0), False, EMPTY, (2, 4, 1))
    assert stamp_of(features, None) == (2, 4, 1, -1, 0, input_hash(EMPTY, b""), 0)
    assert input_hash_of(features, None) == input_hash(EMPTY, b"")
    embedding = held_embedding((8, 2), b"abcd", (6, 0))
    stamp = np.array([stamp_of(features, embedding)], STAMP)[0]
    assert stamp.dtype == STAMP and stamp["embedding_offset"] == 6 and stamp["input_hash"] == input_hash(EMPTY, b"abcd")
    assert stamp_of(held_features((3, 9, 0), True, b"", (3, 9, 0)), embedding)[5:] == (0, 1)


def test_a_stamps_bytes_are_those_of_the_array_form() -> None:
    features, embedding = held_features((9, 8, 7), False, ONE, (3, 1 << 40, 255)), held_embedding((5, 0), b"\x00" * 8, (4, 2))
    for some in (embedding, None):
        assert encode_stamp(features, some) == np.array([stamp_of(features, some)], STAMP).tobytes()


@pytest.mark.parametrize("dead", [False, True])
def test_a_full_part_covers_a_row_whose_components_lie_before_it_and_never_a_tombstone(dead: bool) -> None:
    features = StoredFeatures((9, 4, 0), dead, b"" if dead else EMPTY, (9, 4, 0), 0)
    increment = encode_stamp(features, StoredEmbedding((6, 0), (6, 0), 0))
    for features_end, embeddings_end in [(5, 7), (4, 7), (5, 6)]:
        covered = is_covered(increment, {ITEM_FEATURES: features_end, NEW_ITEMS: embeddings_end})
        assert covered == (not dead and (features_end, embeddings_end) == (5, 7))
