"""Reads valid records of item-features and new-items several times faster than the pydantic models of schemas/events.py.

The msgspec types accept a subset of the models' records, with equal values; a property test holds them to it. The models judge all other records: they
accept one, or give the reasons for its dead letter.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from schemas.events import is_name
from schemas.ids import INT64_MAX, INT64_MIN
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

_Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
_WireId = _Int64 | Annotated[str, Meta(min_length=1, max_length=TEXT_ID_BYTES_MAX)]
_Text = Annotated[str, Meta(max_length=FEATURE_TEXT_BYTES_MAX)]
_Bag = Annotated[list[_Int64 | float | _Text], Meta(max_length=max(BAG_VALUES_MAX, EMBEDDING_WIDTH_MAX))]
_Features = Annotated[dict[str, bool | _Int64 | float | _Text | _Bag | None], Meta(max_length=FEATURES_PER_SCHEMA_MAX)]
_NAMES_KEPT = 4_096


class ItemFeaturesUpdate(Struct, forbid_unknown_fields=True, gc=False):
    """`schemas.events.ItemFeaturesUpdate`."""

    item_id: _WireId
    version: Annotated[int, Meta(ge=0, le=EVENT_VERSION_MAX)]
    op: Literal["upsert", "delete", "statistics"] = "upsert"
    features: _Features = {}


class NewItem(Struct, forbid_unknown_fields=True, gc=False):
    """`schemas.events.NewItem`."""

    item_id: _WireId
    embedding: Annotated[list[Annotated[float, Meta(gt=-FLOAT32_END, lt=FLOAT32_END)]], Meta(min_length=1, max_length=EMBEDDING_WIDTH_MAX)]


class _ItemFeaturesRecord(Struct, forbid_unknown_fields=True, gc=False):
    updates: Annotated[list[ItemFeaturesUpdate], Meta(min_length=1, max_length=UPDATES_PER_RECORD_MAX)]
    schema: Literal[1] = 1


class _NewItemsRecord(Struct, forbid_unknown_fields=True, gc=False):
    updates: Annotated[list[NewItem], Meta(min_length=1, max_length=UPDATES_PER_RECORD_MAX)]
    schema: Literal[1] = 1


_decode_item_features = msgspec.json.Decoder(_ItemFeaturesRecord).decode
_decode_new_items = msgspec.json.Decoder(_NewItemsRecord).decode
_good_names: set[str] = set()  # names of features that are known to be well formed: there are few, and each is checked once


def read_item_features(value: bytes) -> list[ItemFeaturesUpdate] | None:
    """The updates of a record of item-features; None if only the models can judge it."""
    try:
        updates = _decode_item_features(value).updates if len(value) <= RECORD_BYTES_MAX else None
    except ValueError:  # msgspec's errors, and bad UTF-8
        return None
    if updates is None or not all(u.features.keys() <= _good_names or _check_names(u.features) for u in updates):
        return None
    return updates


def read_new_items(value: bytes) -> list[NewItem] | None:
    """The updates of a record of new-items; None if only the models can judge it."""
    try:
        return _decode_new_items(value).updates if len(value) <= RECORD_BYTES_MAX else None
    except ValueError:
        return None


def _check_names(features: Mapping[str, object]) -> bool:
    """Whether all names are well formed; those that are become known."""
    if not all(map(is_name, features)):
        return False
    if len(_good_names) + len(features) > _NAMES_KEPT:
        _good_names.clear()
    _good_names.update(features)
    return True
