"""From a record of item-features or new-items to its updates and rejections; each update is judged alone (protocol A2, A4, A5).

msgspec reads valid records several times faster than the pydantic models of schemas/events.py. Its types accept a subset of the models' records, with equal
values; a property test holds them to it. The models judge all other records: they accept one, or give the reasons for its dead letter.

Invariant: whether an update is accepted is a pure function of topic, partition and the bytes of the record. Every update is either accepted or rejected,
once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from infra.kafka.reader import SourceRecord
from schemas import events
from schemas.decoding import Rejection, decode_updates
from schemas.errors import RejectedInput
from schemas.ids import INT64_MAX, INT64_MIN, Id, IdKind, check_partition, decode_id, encode_index_key
from schemas.limits import (
    BAG_VALUES_MAX,
    EMBEDDING_WIDTH_MAX,
    EVENT_VERSION_MAX,
    FEATURE_TEXT_BYTES_MAX,
    FEATURES_PER_SCHEMA_MAX,
    FLOAT32_END,
    RECORD_BYTES_MAX,
    TEXT_ID_BYTES_MAX,
    UPDATES_PER_RECORD_MAX,
)
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item import EmbeddingUpdate, FeaturesUpdate, pack_features

Update = FeaturesUpdate | EmbeddingUpdate
Accepted = list[tuple[int, Id, Any]]  # (place in the record, item, update of either reader)


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
    updates: Sequence[Update]
    if record.topic == NEW_ITEMS:
        accepted, rejected = _judge(record, read_new_items, events.NewItemsRecord, events.NewItem, kind, shards)
        values = _to_float32([update.embedding for *_, update in accepted])
        updates = [
            EmbeddingUpdate(encode_index_key(item), record.offset, i, raw) for (i, item, _), raw in zip(accepted, values, strict=True)
        ]
        return DecodedRecord(record, updates, rejected)
    assert record.topic == ITEM_FEATURES, record.topic
    if record.value is None and record.key is not None:
        return _decode_removal(record, record.key, kind, shards)
    accepted, rejected = _judge(record, read_item_features, events.ItemFeaturesRecord, events.ItemFeaturesUpdate, kind, shards)
    return DecodedRecord(record, [_features_update(record, *one) for one in accepted], rejected)


def _judge(
    record: SourceRecord, read: Callable[[bytes], Sequence[Any] | None], record_type: Any, update_type: Any, kind: IdKind, shards: int
) -> tuple[Accepted, list[Rejection]]:
    """The updates of a record that are well formed and whose ids may come in its partition; rejections of the others."""
    updates = None if record.value is None else read(record.value)
    if updates is None:
        decoded = decode_updates(record_type, update_type, record.value, kind, record.partition, shards, attrgetter("item_id"))
        return [(index, update.item_id, update) for index, update in decoded.accepted], decoded.rejected
    accepted: Accepted = []
    rejected: list[Rejection] = []
    for index, update in enumerate(updates):
        try:
            item = decode_id(update.item_id, kind)
            check_partition(item, record.partition, shards)
            accepted.append((index, item, update))
        except RejectedInput as error:
            rejected.append(Rejection(index, error.code, error.message, error.disposition))
    return accepted, rejected


def _features_update(record: SourceRecord, index: int, item: Id, update: Any) -> FeaturesUpdate:
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


# --- valid records, read fast --------------------------------------------------------------------------------------------

_Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
_WireId = _Int64 | Annotated[str, Meta(min_length=1, max_length=TEXT_ID_BYTES_MAX)]
_Text = Annotated[str, Meta(max_length=FEATURE_TEXT_BYTES_MAX)]
_Bag = Annotated[list[_Int64 | float | _Text], Meta(max_length=max(BAG_VALUES_MAX, EMBEDDING_WIDTH_MAX))]
_Features = Annotated[dict[str, bool | _Int64 | float | _Text | _Bag | None], Meta(max_length=FEATURES_PER_SCHEMA_MAX)]
_NAMES_KEPT = 4_096


class _ItemFeaturesUpdate(Struct, forbid_unknown_fields=True, gc=False):
    """`schemas.events.ItemFeaturesUpdate`."""

    item_id: _WireId
    version: Annotated[int, Meta(ge=0, le=EVENT_VERSION_MAX)]
    op: Literal["upsert", "delete", "statistics"] = "upsert"
    features: _Features = {}


class _NewItem(Struct, forbid_unknown_fields=True, gc=False):
    """`schemas.events.NewItem`."""

    item_id: _WireId
    embedding: Annotated[list[Annotated[float, Meta(gt=-FLOAT32_END, lt=FLOAT32_END)]], Meta(min_length=1, max_length=EMBEDDING_WIDTH_MAX)]


class _ItemFeaturesRecord(Struct, forbid_unknown_fields=True, gc=False):
    updates: Annotated[list[_ItemFeaturesUpdate], Meta(min_length=1, max_length=UPDATES_PER_RECORD_MAX)]
    schema: Literal[1] = 1


class _NewItemsRecord(Struct, forbid_unknown_fields=True, gc=False):
    updates: Annotated[list[_NewItem], Meta(min_length=1, max_length=UPDATES_PER_RECORD_MAX)]
    schema: Literal[1] = 1


_decode_item_features = msgspec.json.Decoder(_ItemFeaturesRecord).decode
_decode_new_items = msgspec.json.Decoder(_NewItemsRecord).decode
_good_names: set[str] = set()  # names of features that are known to be well formed: there are few, and each is checked once


def read_item_features(value: bytes) -> list[_ItemFeaturesUpdate] | None:
    """The updates of a record of item-features; None if only the models can judge it."""
    try:
        updates = _decode_item_features(value).updates if len(value) <= RECORD_BYTES_MAX else None
    except ValueError:  # msgspec's errors, and bad UTF-8
        return None
    if updates is None or not all(u.features.keys() <= _good_names or _check_names(u.features) for u in updates):
        return None
    return updates


def read_new_items(value: bytes) -> list[_NewItem] | None:
    """The updates of a record of new-items; None if only the models can judge it."""
    try:
        return _decode_new_items(value).updates if len(value) <= RECORD_BYTES_MAX else None
    except ValueError:
        return None


def _check_names(features: Mapping[str, object]) -> bool:
    """Whether all names are well formed; those that are become known."""
    if not all(map(events.is_name, features)):
        return False
    if len(_good_names) + len(features) > _NAMES_KEPT:
        _good_names.clear()
    _good_names.update(features)
    return True
