"""From a record of item-features or new-items to its updates and rejections; each update is judged alone (protocol A2, A4, A5).

Invariant: whether an update is accepted is a pure function of topic, partition and the bytes of the record. Every update is either accepted or rejected,
once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from typing import TypeVar

import numpy as np

from infra.kafka.reader import SourceRecord
from schemas import event_reader
from schemas.decoding import Rejection, check_partition, decode_updates
from schemas.errors import RejectedInput
from schemas.event_reader import read_item_features, read_new_items
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate, NewItem, NewItemsRecord
from schemas.ids import Id, IdKind, decode_id, encode_index_key
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item import EmbeddingUpdate, FeaturesUpdate, pack_features

Update = FeaturesUpdate | EmbeddingUpdate
_Item = ItemFeaturesUpdate | event_reader.ItemFeaturesUpdate | NewItem | event_reader.NewItem
T = TypeVar("T", bound=_Item)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record: its accepted updates, in order, and its rejections. A skipped offset has neither."""

    record: SourceRecord
    updates: Sequence[Update]
    rejected: list[Rejection]

    def __len__(self) -> int:
        return len(self.updates) + len(self.rejected)


def decode_source_record(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    """Decodes one record. Never raises for bad bytes: they become rejections."""
    if record.skipped:
        return DecodedRecord(record, [], [])
    if record.topic == NEW_ITEMS:
        return _decode_new_items(record, kind, shards)
    assert record.topic == ITEM_FEATURES, record.topic
    if record.value is None and record.key is not None:
        return _decode_removal(record, record.key, kind, shards)
    return _decode_item_features(record, kind, shards)


def _decode_item_features(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    read = None if record.value is None else read_item_features(record.value)
    if read is not None:
        accepted, rejected = _judge_owners(read, kind, record.partition, shards)
        return DecodedRecord(record, [_features_update(record, index, item, update) for index, item, update in accepted], rejected)
    decoded = decode_updates(ItemFeaturesRecord, ItemFeaturesUpdate, record.value, kind, record.partition, shards, attrgetter("item_id"))
    return DecodedRecord(record, [_features_update(record, index, u.item_id, u) for index, u in decoded.accepted], decoded.rejected)


def _decode_new_items(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    read = None if record.value is None else read_new_items(record.value)
    accepted: list[tuple[int, Id, Sequence[float]]]
    if read is not None:
        judged, rejected = _judge_owners(read, kind, record.partition, shards)
        accepted = [(index, item, update.embedding) for index, item, update in judged]
    else:
        decoded = decode_updates(NewItemsRecord, NewItem, record.value, kind, record.partition, shards, attrgetter("item_id"))
        accepted, rejected = [(index, u.item_id, u.embedding) for index, u in decoded.accepted], decoded.rejected
    values = _to_float32([numbers for *_, numbers in accepted])
    updates = [EmbeddingUpdate(encode_index_key(item), record.offset, i, raw) for (i, item, _), raw in zip(accepted, values, strict=True)]
    return DecodedRecord(record, updates, rejected)


def _judge_owners(updates: Iterable[T], kind: IdKind, partition: int, shards: int) -> tuple[list[tuple[int, Id, T]], list[Rejection]]:
    """(updates whose ids may come in this partition, as (index, id, update); rejections of the others)."""
    accepted: list[tuple[int, Id, T]] = []
    rejected: list[Rejection] = []
    for index, update in enumerate(updates):
        try:
            item = decode_id(update.item_id, kind)
            check_partition(item, partition, shards)
            accepted.append((index, item, update))
        except RejectedInput as error:
            rejected.append(Rejection(index, error.code, error.message, error.disposition))
    return accepted, rejected


def _features_update(
    record: SourceRecord, index: int, item: Id, update: ItemFeaturesUpdate | event_reader.ItemFeaturesUpdate
) -> FeaturesUpdate:
    key = encode_index_key(item)
    if update.op == "delete":
        return FeaturesUpdate(key, update.version, record.offset, index, True, b"", {})
    raw, is_statistics = pack_features(update.features), update.op == "statistics"
    return FeaturesUpdate(key, update.version, record.offset, index, False, raw, update.features, is_statistics)


def _decode_removal(record: SourceRecord, record_key: bytes, kind: IdKind, shards: int) -> DecodedRecord:
    """A key without a value deletes its item at the version stored so far (A4)."""
    try:
        item = decode_id(record_key.decode(), kind)
        check_partition(item, record.partition, shards)
    except UnicodeDecodeError as error:
        return DecodedRecord(record, [], [Rejection(0, "bad_id", f"the record's key is not UTF-8: {error}", "malformed")])
    except RejectedInput as error:
        return DecodedRecord(record, [], [Rejection(0, error.code, error.message, error.disposition)])
    return DecodedRecord(record, [FeaturesUpdate(encode_index_key(item), None, record.offset, 0, True, b"", {})], [])


def _to_float32(embeddings: Sequence[Sequence[float]]) -> list[bytes]:
    """Each embedding as float32 bytes. All of a record are converted together."""
    ends = list(accumulate(map(len, embeddings)))
    whole = np.fromiter(chain.from_iterable(embeddings), np.float32, ends[-1] if ends else 0).tobytes()
    return [whole[4 * begin : 4 * end] for begin, end in zip([0, *ends], ends, strict=False)]
