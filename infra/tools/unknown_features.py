"""Features and embeddings of items that the model of the served version does not know or cannot read: a check of `aif doctor`.

An update is accepted whatever its features are called, because acceptance must not depend on the live model (A2). A name that the model does not have, such
as a misspelt one, counts for nothing. A value of another kind, like the price "12,50", and an embedding of another width count as missing.
Invariant: some records of some partitions are read, however many there are.
"""

from collections.abc import Iterable
from typing import TypeVar

from infra.index.parts import read_checkpoint_copy
from infra.index.store import IndexStore
from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import read_topic
from infra.kafka.security import Bootstrap
from schemas.decoding import decode_updates
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate, NewItem, NewItemsRecord, Record
from schemas.features import FeatureSchema, Scope
from schemas.ids import Id, IdKind
from schemas.kinds import Kind
from schemas.model.checkpoint_file import read_checkpoint_file
from schemas.topics import ITEM_FEATURES, NEW_ITEMS

_RECORDS_MAX, _PARTITIONS_MAX = 20, 16  # newest records of a partition; partitions
_STALL_S_MAX = 5.0
_Update = TypeVar("_Update", ItemFeaturesUpdate, NewItem)


def find_unknown_features(schema: FeatureSchema, updates: Iterable[ItemFeaturesUpdate]) -> dict[str, Id]:
    """Names of features that are no feature of items in the schema, and that no statistic groups by, each with the first item that has it. A null counts as
    absent."""
    known = {feature.name for feature in schema.of(Scope.ITEM)} | {statistic.by for statistic in schema.statistics.values()}
    found: dict[str, Id] = {}
    for update in updates:
        for name, value in update.features.items():
            if name not in known and value is not None:
                found.setdefault(name, update.item_id)
    return found


def find_unread_values(schema: FeatureSchema, updates: Iterable[ItemFeaturesUpdate]) -> dict[str, tuple[Id, object, Kind]]:
    """Names of features of items with a value that the model takes as missing: the first item that has one, the value, and the kind that it should be of."""
    known = {feature.name: feature for feature in schema.of(Scope.ITEM)}
    found: dict[str, tuple[Id, object, Kind]] = {}
    for update in updates:
        for name, value in update.features.items():
            feature = known.get(name)
            if feature is None or value is None:
                continue
            if not feature.kind.reads(feature, value):
                found.setdefault(name, (update.item_id, value, feature.kind))
    return found


def find_unread_embedding(schema: FeatureSchema, updates: Iterable[NewItem]) -> tuple[Id, int] | None:
    """The first item with an embedding of another width than the model's, and that width. None without one, or where the model reads no embedding."""
    return next(((u.item_id, len(u.embedding)) for u in updates if schema.multimodal and len(u.embedding) != schema.mm_width), None)


def read_newest_updates(bootstrap: Bootstrap, prefix: str, id_kind: IdKind, deadline_s: float) -> list[ItemFeaturesUpdate]:
    """The accepted updates of the newest records of some partitions of item-features. Raises as `read_topic`."""
    return _read_newest(ITEM_FEATURES, ItemFeaturesRecord, ItemFeaturesUpdate, bootstrap, prefix, id_kind, deadline_s)


def read_newest_embeddings(bootstrap: Bootstrap, prefix: str, id_kind: IdKind, deadline_s: float) -> list[NewItem]:
    """The same of new-items."""
    return _read_newest(NEW_ITEMS, NewItemsRecord, NewItem, bootstrap, prefix, id_kind, deadline_s)


def _read_newest(
    name: str, record_type: type[Record], update_type: type[_Update], bootstrap: Bootstrap, prefix: str, id_kind: IdKind, deadline_s: float
) -> list[_Update]:
    oldest, newest = (offsets(bootstrap, prefix + name, deadline_s=deadline_s) for offsets in (start_offsets, end_offsets))
    ends = {p: newest[p] for p in sorted(newest)[:_PARTITIONS_MAX]}
    starts = {p: max(oldest[p], end - _RECORDS_MAX) for p, end in ends.items()}
    updates: list[_Update] = []
    for record in read_topic(bootstrap, name, start=starts, end=ends, prefix=prefix, stall_s_max=_STALL_S_MAX):
        decoded = decode_updates(
            record_type, update_type, record.value, id_kind, record.partition, len(newest), lambda update: update.item_id
        )
        updates += [update for _, update in decoded.accepted]
    return updates


def read_schema(store: IndexStore, checkpoint_sha256: str) -> FeatureSchema:
    """The feature schema of a checkpoint in the index store. Raises RejectedInput, and what the store raises."""
    return read_checkpoint_file(read_checkpoint_copy(store, checkpoint_sha256), checkpoint_sha256).spec.schema
