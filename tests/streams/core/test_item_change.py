"""One item in one micro-batch: what each step makes of it, and the stale parts of its row."""

from schemas.features import Feature, FeatureSchema, Scope
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from streams.core.item import (
    EVERYTHING,
    NOTHING,
    ROW,
    SIGNATURE,
    VECTOR,
    EmbeddingUpdate,
    FeaturesUpdate,
    ItemChange,
    StoredFeatures,
    StoredItem,
    component_hash,
    dependencies_of,
    pack_features,
)

SCHEMA = FeatureSchema(
    features=(
        Feature("brand", Scope.ITEM, CATEGORICAL, buckets=8),
        Feature("price", Scope.ITEM, NUMERIC, default=1.0),
        Feature("mm", Scope.ITEM, EMBEDDING, width=1),
    ),
    bid="price",
    multimodal="mm",
    multimodal_is_input=False,
)
TABLE = dependencies_of(SCHEMA)


def stored(**features: object) -> StoredFeatures:
    raw = pack_features(features)
    return StoredFeatures((1, 0, 0), False, raw, (1, 0, 0), component_hash(raw))


def put(offset: int, **features: object) -> FeaturesUpdate:
    return FeaturesUpdate(b"k", offset, offset, 0, False, pack_features(features), features)


def remove(offset: int) -> FeaturesUpdate:
    return FeaturesUpdate(b"k", offset, offset, 0, True, b"", {})


def after(before: StoredFeatures | None, *updates: FeaturesUpdate | EmbeddingUpdate) -> ItemChange:
    change = ItemChange(b"k", StoredItem(before, None))
    for update in updates:
        change.take(update)
    return change


def test_a_new_and_a_recreated_item_need_everything() -> None:
    assert after(None, put(1)).stale(TABLE) == EVERYTHING
    assert after(stored(), remove(5), put(6)).stale(TABLE) == EVERYTHING


def test_a_change_that_is_undone_is_still_a_change() -> None:
    assert after(stored(brand="x"), put(5, brand="y"), put(6, brand="x")).stale(TABLE) == ROW | VECTOR


def test_an_identical_event_and_a_superseded_one_make_nothing_stale() -> None:
    change = ItemChange(b"k", StoredItem(stored(brand="x"), None))
    assert change.take(put(5, brand="x")) and not change.take(put(4, brand="y"))
    assert change.stale(TABLE) == NOTHING


def test_an_embedding_makes_the_signature_stale_and_an_identical_one_nothing() -> None:
    change = ItemChange(b"k", StoredItem(stored(), None))
    assert change.take(EmbeddingUpdate(b"k", 3, 0, b"abcd"))
    assert change.stale(TABLE) == ROW | SIGNATURE
    later = ItemChange(b"k", StoredItem(stored(), change.embedding))
    assert later.take(EmbeddingUpdate(b"k", 4, 0, b"abcd")) and later.stale(TABLE) == NOTHING


def test_a_tombstone_is_due_when_liveness_or_the_embedding_of_a_dead_item_changed() -> None:
    assert after(stored(), remove(5)).is_tombstone
    assert after(None, remove(5)).is_tombstone
    assert after(stored(), remove(5), put(6), remove(7)).is_tombstone
    dead = after(stored(), remove(5)).features
    assert not after(dead, remove(6)).is_tombstone
    assert after(dead, EmbeddingUpdate(b"k", 9, 0, b"abcd")).is_tombstone
    assert not after(None, EmbeddingUpdate(b"k", 9, 0, b"abcd")).is_tombstone
    assert not after(dead, put(6)).is_tombstone
