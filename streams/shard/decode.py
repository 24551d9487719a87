"""From a record of item-features or new-items to its updates and rejections; each update is judged alone (protocol A2, A4, A5).

Here: decoding, and what is accepted. Not here: the fold (core/item_state.py), dead letters (infra/kafka/dead_letters.py).
Invariant: whether an update is accepted is a pure function of topic, partition and the bytes of the record. Every update is either accepted or rejected,
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from infra.joined import Joined
from infra.kafka.reader import SourceRecord
from schemas.errors import RejectedInput
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate, NewItem, NewItemsRecord, Rejection, check_partition, decode_updates
from schemas.ids import Id, IdKind, decode_id, encode_index_key
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item_state import EmbeddingUpdate, FeaturesUpdate, encode_raw_features
from streams.stored.plain_records import PlainRecords, read_plain_records
from streams.stored.record_texts import OP, UPSERT, UPSERT_BY_PYTHON
from streams.stored.upserts import Upserts

Update = FeaturesUpdate | EmbeddingUpdate


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record: its accepted updates, in order, and its rejections. A skipped offset has neither."""

    record: SourceRecord
    updates: Sequence[Update]
    rejected: list[Rejection]

    def __len__(self) -> int:
        return len(self.updates) + len(self.rejected)


def decode_source_records(records: Sequence[SourceRecord], kind: IdKind, shards: int) -> list[DecodedRecord]:
    """Decodes records of both topics of one shard. Each is judged alone, but those that are plainly written are read together. Never raises for bad
    bytes: they become rejections."""
    places = [i for i, r in enumerate(records) if r.topic == ITEM_FEATURES and r.value is not None and len(r.value) <= RECORD_BYTES_MAX]
    plain = _decode_plain_records([records[i] for i in places], kind, shards) if places else []
    updates_at = dict(zip(places, plain, strict=True))
    return [_decode(record, updates_at.get(i), kind, shards) for i, record in enumerate(records)]


def _decode_plain_records(records: Sequence[SourceRecord], kind: IdKind, shards: int) -> Sequence[Sequence[Update] | None]:
    """The updates of each record that is written as publishers write it, read without the pydantic models; None if only the models can judge it."""
    read = read_plain_records([value for r in records if (value := r.value) is not None], kind, records[0].partition, shards)
    if read is None:
        return [None] * len(records)
    columns = read.upserts(kind, [r.offset for r in records])
    is_upsert_U = (read.fields_U9[:, OP] == UPSERT).tolist()
    found: list[Sequence[Update] | None] = []
    for n, record in enumerate(records):
        at = read.updates_of(n)
        if at.start == at.stop:
            found.append(None)
        elif all(is_upsert_U[at]):
            found.append(Upserts(columns, at.start, at.stop))
        else:
            found.append(_decode_mixed(record, read, n, columns.keys))
    return found


def _decode_mixed(record: SourceRecord, read: PlainRecords, n: int, keys: Joined) -> list[Update] | None:
    """The updates of a plain record that also has deletes, or upserts that only Python can read. None if only the models can judge it."""
    value, at, updates = record.value, read.updates_of(n), list[Update]()
    assert value is not None
    for index, (key, fields) in enumerate(zip(keys.cut(at.start, at.stop).present(), read.fields_U9[at].tolist(), strict=True)):
        op, _, _, _, version, raw_begin, raw_end, begin, end = fields
        if op == UPSERT:
            updates.append(FeaturesUpdate(key, version, record.offset, index, False, read.raw_of(raw_begin, raw_end)))
        elif op == UPSERT_BY_PYTHON:
            try:
                update = ItemFeaturesUpdate.model_validate_json(value[begin:end])
            except ValueError:  # then the models judge the whole record
                return None
            updates.append(FeaturesUpdate(key, version, record.offset, index, False, encode_raw_features(update.features)))
        else:
            updates.append(FeaturesUpdate(key, version, record.offset, index, dead=True))
    return updates


def _decode(record: SourceRecord, plain: Sequence[Update] | None, kind: IdKind, shards: int) -> DecodedRecord:
    if record.skipped:
        return DecodedRecord(record, [], [])
    if record.topic == NEW_ITEMS:
        return _decode_new_items(record, kind, shards)
    assert record.topic == ITEM_FEATURES, record.topic
    if record.value is None and record.key is not None:
        return _decode_removal(record, record.key, kind, shards)
    if plain is not None:
        return DecodedRecord(record, plain, [])
    decoded = decode_updates(ItemFeaturesRecord, ItemFeaturesUpdate, record.value, kind, record.partition, shards, _item_of)
    return DecodedRecord(record, [_features_update(record, index, update) for index, update in decoded.accepted], decoded.rejected)


def _item_of(update: ItemFeaturesUpdate | NewItem) -> Id:
    return update.item_id


def _features_update(record: SourceRecord, index: int, update: ItemFeaturesUpdate) -> FeaturesUpdate:
    key = encode_index_key(update.item_id)
    if update.op == "delete":
        return FeaturesUpdate(key, update.version, record.offset, index, dead=True)
    return FeaturesUpdate(key, update.version, record.offset, index, False, encode_raw_features(update.features))


def _decode_removal(record: SourceRecord, record_key: bytes, kind: IdKind, shards: int) -> DecodedRecord:
    """A key without a value deletes its item at the version stored so far (A4)."""
    try:
        item = decode_id(record_key.decode(), kind)
        check_partition(item, record.partition, shards)
    except UnicodeDecodeError as error:
        return DecodedRecord(record, [], [Rejection(0, "bad_id", f"the record's key is not UTF-8: {error}", "malformed")])
    except RejectedInput as error:
        return DecodedRecord(record, [], [Rejection(0, error.code, error.message, error.disposition)])
    return DecodedRecord(record, [FeaturesUpdate(encode_index_key(item), None, record.offset, 0, dead=True)], [])


def _decode_new_items(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    decoded = decode_updates(NewItemsRecord, NewItem, record.value, kind, record.partition, shards, _item_of)
    values = _to_float32([update.embedding for _, update in decoded.accepted])
    keys = [encode_index_key(update.item_id) for _, update in decoded.accepted]
    updates = [EmbeddingUpdate(key, record.offset, i, raw) for key, (i, _), raw in zip(keys, decoded.accepted, values, strict=True)]
    return DecodedRecord(record, updates, decoded.rejected)


def _to_float32(embeddings: Sequence[Sequence[float]]) -> list[bytes]:
    """Each embedding as float32 bytes. All of a record are converted together."""
    ends = list(accumulate(map(len, embeddings)))
    whole = np.fromiter(chain.from_iterable(embeddings), np.float32, ends[-1] if ends else 0).tobytes()
    return [whole[4 * begin : 4 * end] for begin, end in zip([0, *ends], ends, strict=False)]
