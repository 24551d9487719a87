"""From a record of item-features or new-items to updates and rejections, each judged alone (protocol A2, A4, A5).

Here: decoding and what it decides. Not here: the fold (core/item_state.py), dead letters (infra/kafka/dead_letters.py).
Invariant: accept or reject is a pure function of topic, partition and the record's bytes; together every update is here exactly once.
"""

from dataclasses import dataclass

import numpy as np

from infra.kafka.reader import SourceRecord
from schemas.errors import RejectedInput
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate, NewItem, NewItemsRecord, Rejection, decode_updates
from schemas.ids import Id, IdKind, decode_id, encode_index_key, partition_of
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item_state import EmbeddingUpdate, FeaturesUpdate, encode_raw_features


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record: its accepted updates, in order, and its rejections."""

    record: SourceRecord
    updates: list[FeaturesUpdate | EmbeddingUpdate]
    rejected: list[Rejection]

    def __len__(self) -> int:
        return len(self.updates) + len(self.rejected)


def decode_source_record(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    """Decodes a record of either topic of a shard. Never raises for bad bytes: they are rejections."""
    if record.topic == NEW_ITEMS:
        return _decode_new_items(record, kind, shards)
    assert record.topic == ITEM_FEATURES, record.topic
    if record.value is None and record.key is not None:
        return _decode_removal(record, record.key, kind, shards)
    decoded = decode_updates(ItemFeaturesRecord, ItemFeaturesUpdate, record.value, kind, record.partition, shards, _item_of)
    return DecodedRecord(record, [_features_update(record, index, update) for index, update in decoded.accepted], decoded.rejected)


def _item_of(update: ItemFeaturesUpdate | NewItem) -> Id:
    return update.item_id


def _features_update(record: SourceRecord, index: int, update: ItemFeaturesUpdate) -> FeaturesUpdate:
    dead = update.op == "delete"
    raw = b"" if dead else encode_raw_features(update.features)
    return FeaturesUpdate(encode_index_key(update.item_id), update.version, record.offset, index, dead, raw)


def _decode_removal(record: SourceRecord, record_key: bytes, kind: IdKind, shards: int) -> DecodedRecord:
    """A key without a value deletes its item at the version stored so far (A4)."""
    try:
        item = decode_id(record_key.decode(), kind)
        if partition_of(item, shards) != record.partition:
            raise RejectedInput(
                "wrong_partition",
                f"id {item!r} belongs to partition {partition_of(item, shards)} of {shards}, the record came in {record.partition}",
            )
    except UnicodeDecodeError as error:
        return DecodedRecord(record, [], [Rejection(0, "bad_id", f"the record's key is not UTF-8: {error}", "malformed")])
    except RejectedInput as error:
        return DecodedRecord(record, [], [Rejection(0, error.code, error.message, error.disposition)])
    return DecodedRecord(record, [FeaturesUpdate(encode_index_key(item), None, record.offset, 0, dead=True)], [])


def _decode_new_items(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    decoded = decode_updates(NewItemsRecord, NewItem, record.value, kind, record.partition, shards, _item_of)
    updates: list[FeaturesUpdate | EmbeddingUpdate] = []
    rejected = list(decoded.rejected)
    for index, update in decoded.accepted:
        with np.errstate(over="ignore"):
            values = np.array(update.embedding, np.float32)
        if np.isfinite(values).all():
            updates.append(EmbeddingUpdate(encode_index_key(update.item_id), record.offset, index, values.tobytes()))
        else:
            reason = f"embedding of item {update.item_id!r} has numbers outside float32 (largest {max(map(abs, update.embedding)):g})"
            rejected.append(Rejection(index, "embedding_not_float32", reason, "semantic"))
    return DecodedRecord(record, updates, rejected)
