"""The state of one item in a shard: two components, each with one source topic, and the fold of updates into them (protocol A3, A4).

Here: the components, their bytes, and what an update does to them. Not here: decoding of records (streams/shard/decode.py), rows of a version
(streams/shard/rows.py), storage (streams/shard/shard.py).
Invariants: features order = (event version, offset, index), embedding order = (offset, index); the higher wins, so any duplication or
redelivery folds to the same state. Each component has one source topic, so the interleaving of topics cannot matter. A delete is a marker that
keeps its order; it never touches the embedding.
A row carries the orders at which its components last *changed*, not those of the last event. An identical event that is sent again makes no row; if it
raised the order of later rows, then a shard that was set back to an older copy and reads the topics in another interleaving could first send rows that
readers refuse, and then not send the row that they would take.
Source: LWW register (Shapiro et al. 2011) per component.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from schemas.errors import Corrupted
from schemas.index.layout import ORDER, combine_hashes, component_hash
from schemas.topics import SHARD_TOPICS

FeaturesOrder = tuple[int, int, int]  # event version, offset, index in the record
EmbeddingOrder = tuple[int, int]  # offset, index in the record
NO_EMBEDDING_ORDER: EmbeddingOrder = (-1, 0)

FEATURES_HEADER = struct.Struct("<qqHqqHBQ")  # order, changed, dead, hash; then the JSON bytes
EMBEDDING_HEADER = struct.Struct("<qHqHQ")  # order, changed, hash; then float32 values
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)  # json.dumps would make an encoder for each call
_DECODE = json.JSONDecoder().raw_decode
_ORDER = struct.Struct("<qqHqHQB")
assert _ORDER.size == ORDER.itemsize
CHANGED_AT, DEAD_AT, HASH_AT = 18, 36, 37  # in FEATURES_HEADER


class StoredFeatures(NamedTuple):
    """The features component: its order, whether it is a delete marker, the features as canonical JSON bytes (empty when dead), the order at
    which `dead` and `raw` became what they are, and the hash of `raw` (0 when dead), kept because a row's order and a full build ask for it."""

    order: FeaturesOrder
    dead: bool
    raw: bytes
    changed: FeaturesOrder
    hash: int


class StoredEmbedding(NamedTuple):
    """The embedding component: its order, the float32 values as bytes, the order at which they became what they are, and their hash."""

    order: EmbeddingOrder
    values: bytes
    changed: EmbeddingOrder
    hash: int


@dataclass(slots=True)  # not frozen: one is made for every update, and freezing triples its cost
class FeaturesUpdate:
    """One accepted update of item-features. `version` None: a record with a key and no value, which deletes at the version stored so far."""

    key: bytes
    version: int | None
    offset: int
    index: int
    dead: bool
    raw: bytes = b""


@dataclass(slots=True)
class EmbeddingUpdate:
    """One accepted update of new-items."""

    key: bytes
    offset: int
    index: int
    values: bytes


def encode_raw_features(features: Mapping[str, Any]) -> bytes:
    """Features as canonical JSON: equal features give equal bytes, whatever the order of names in the event."""
    return _JSON.encode(features).encode()


def decode_raw_features(raw: bytes) -> dict[str, Any]:
    """The inverse of `encode_raw_features`."""
    decoded: dict[str, Any] = _DECODE(raw.decode())[0]
    return decoded


def fold_features(stored: StoredFeatures | None, update: FeaturesUpdate) -> StoredFeatures | None:
    """The component after an update, or None when the update is superseded (I1: it is counted, and nothing changes)."""
    version = update.version
    if version is None:
        version = stored.order[0] if stored is not None else 0
    order = (version, update.offset, update.index)
    if stored is not None and order <= stored.order:
        return None
    if stored is not None and (stored.dead, stored.raw) == (update.dead, update.raw):
        return stored._replace(order=order)
    return StoredFeatures(order, update.dead, update.raw, order, 0 if update.dead else component_hash(update.raw))


def fold_embedding(stored: StoredEmbedding | None, update: EmbeddingUpdate) -> StoredEmbedding | None:
    """The component after an update, or None when the update is superseded."""
    order = (update.offset, update.index)
    if stored is not None and order <= stored.order:
        return None
    if stored is not None and stored.values == update.values:
        return stored._replace(order=order)
    return StoredEmbedding(order, update.values, order, component_hash(update.values))


def encode_features_component(component: StoredFeatures) -> bytes:
    """Value in the column family `features`."""
    return FEATURES_HEADER.pack(*component.order, *component.changed, component.dead, component.hash) + component.raw


def decode_features_component(value: bytes) -> StoredFeatures:
    """Raises Corrupted (`bad_features_component`)."""
    if len(value) < FEATURES_HEADER.size:
        expected = f"expected at least {FEATURES_HEADER.size}"
        raise Corrupted("bad_features_component", f"features component of {len(value)} bytes, {expected}")
    version, offset, index, *changed, dead, hashed = FEATURES_HEADER.unpack_from(value)
    return StoredFeatures((version, offset, index), dead != 0, value[FEATURES_HEADER.size :], (changed[0], changed[1], changed[2]), hashed)


def encode_embedding_component(component: StoredEmbedding) -> bytes:
    """Value in the column family `embeddings`."""
    return EMBEDDING_HEADER.pack(*component.order, *component.changed, component.hash) + component.values


def decode_embedding_component(value: bytes) -> StoredEmbedding:
    """Raises Corrupted (`bad_embedding_component`)."""
    if len(value) < EMBEDDING_HEADER.size or (len(value) - EMBEDDING_HEADER.size) % 4:
        expected = f"expected {EMBEDDING_HEADER.size} + 4 a number"
        raise Corrupted("bad_embedding_component", f"embedding component of {len(value)} bytes, {expected}")
    offset, index, changed_offset, changed_index, hashed = EMBEDDING_HEADER.unpack_from(value)
    return StoredEmbedding((offset, index), value[EMBEDDING_HEADER.size :], (changed_offset, changed_index), hashed)


def order_of(features: StoredFeatures, embedding: StoredEmbedding | None) -> tuple[int, int, int, int, int, int, int]:
    """The order of an item's row or tombstone, as the fields of one ORDER element: where its components last changed. A tombstone has no input hash."""
    changed, hashed = (NO_EMBEDDING_ORDER, 0) if embedding is None else (embedding.changed, embedding.hash)
    inputs = 0 if features.dead else combine_hashes(features.hash, hashed)
    return (*features.changed, *changed, inputs, int(features.dead))


def encode_order(features: StoredFeatures, embedding: StoredEmbedding | None) -> bytes:
    """One ORDER element: the fields of `order_of` as bytes."""
    return _ORDER.pack(*order_of(features, embedding))


def is_covered(increment: bytes, before: Mapping[str, int]) -> bool:
    """Whether a row of the incremental part was made by updates before the offsets `before` of both topics. A tombstone never counts."""
    order = np.frombuffer(increment, ORDER, 1)[0]
    features_at, embeddings_at = (before[topic] for topic in SHARD_TOPICS)
    return not order["dead"] and order["features_offset"] < features_at and order["embedding_offset"] < embeddings_at
