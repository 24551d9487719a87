"""One item of a shard: its two components and their stored bytes, the fold of updates, and the stale parts of its row (protocol A3, A4, A9).

Invariants of the fold: features stamp = (event version, offset, index), embedding stamp = (offset, index). The higher wins, so a duplicate changes nothing.
Each component has one source topic, so the interleaving of topics cannot matter. A delete is a marker that keeps its stamp; it never touches the embedding.
Statistics hold over the record: `raw` has both, and the statistics are also kept alone, for the next record (A11). A row carries the stamps at which its
components last *changed*, not those of the last event. An identical event that is sent again makes no row, and must not raise the stamp of later rows.
Otherwise a shard that was set back to an older copy, and reads the topics in another interleaving, could send rows that readers refuse. It would then not
send the row that they would take.

Stale parts of a row, by what changed:

    an input of the item half                          vector and bridge weights (and with them the row)
    the multimodal embedding                           the signature; vector and bridge too where the schema lists it as an input
    bid, SIM category, realtime, or anything else      the row, rewritten without the network (its input hash is of all bytes)
    nothing (an identical re-sent event)               nothing

Values are compared as they are stored, because 1, 1.0 and true are equal in Python and hash into different buckets.
Invariant: the stale parts are the union over all steps of a batch, never the difference between its first and last state. A step that is undone within the
batch may have reached readers before a crash, after which the same records came in another batch. So the row must be sent again.

One stored value holds everything about an item except the numbers of its embedding. These have a value of their own, so a change of features never reads or
writes them. Features are stored as deterministic msgpack, so equal features have equal bytes. Values are msgspec structs, because a dataclass takes three
times as long, and every update makes several.
Source: LWW register (Shapiro et al. 2011) per component.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from schemas.errors import Corrupted
from schemas.features import FeatureSchema
from schemas.index.layout import ONE_STAMP, STAMP
from schemas.topics import SHARD_TOPICS
from streams.core.shard_state import SHARD_REPAIR

FeaturesStamp = tuple[int, int, int]  # event version, offset, index in the record
EmbeddingStamp = tuple[int, int]  # offset, index in the record
NO_FEATURES_STAMP: FeaturesStamp = (-1, -1, 0)
NO_EMBEDDING_STAMP: EmbeddingStamp = (-1, 0)

# Features: stamp, changed, state, hash. Embedding: stamp, changed, hash. Then the features' bytes.
ITEM_HEADER = struct.Struct("<qqHqqHBQqHqHQ")
_DEAD, _ABSENT, _COUNTED = 1, 2, 4  # states of features; live is 0, and 4 with statistics behind the features
_LENGTH = struct.Struct("<I")  # of the statistics, at the end
_NO_EMBEDDING = (*NO_EMBEDDING_STAMP, *NO_EMBEDDING_STAMP, 0)
_TIME = ""
_HASH_FACTOR = 0x9E3779B97F4A7C15  # odd: no embedding is lost in the product, and a change of one component's hash alone changes the sum

pack_features = msgspec.msgpack.Encoder(order="deterministic").encode
_unpack_features = msgspec.msgpack.Decoder(dict[str, Any]).decode


def component_hash(component: bytes) -> int:
    """uint64: BLAKE2b-64 of the bytes of one component of an item, its features as msgpack, or the float32 numbers of its embedding."""
    return int.from_bytes(hashlib.blake2b(component, digest_size=8).digest(), "little")


class StoredFeatures(msgspec.Struct, frozen=True, gc=False):
    """The features component.

    raw          the features as msgpack bytes; empty when dead (a delete marker)
    changed      the stamp at which `dead` and `raw` last changed
    hash         of `raw`, 0 when dead; kept because a row's stamp and a full build need it
    statistics   those among the features, with their time under the name "", which no feature has; empty without any
    """

    stamp: FeaturesStamp
    dead: bool
    raw: bytes
    changed: FeaturesStamp
    hash: int
    statistics: bytes = b""


class StoredEmbedding(msgspec.Struct, frozen=True, gc=False):
    """The embedding component without its numbers: its stamp, the stamp at which they last changed, and their hash."""

    stamp: EmbeddingStamp
    changed: EmbeddingStamp
    hash: int


class StoredItem(msgspec.Struct, gc=False):
    """Both components of an item, None where it has none, and its features by name once they were asked for."""

    features: StoredFeatures | None
    embedding: StoredEmbedding | None
    values: Mapping[str, Any] | None = None

    def decoded(self) -> Mapping[str, Any]:
        """The features by name; empty if they are deleted. REQUIRES: there are features."""
        if self.values is None:
            assert self.features is not None
            self.values = {} if self.features.dead else unpack_features(self.features.raw)
        return self.values


NOT_STORED = StoredItem(None, None)


class FeaturesUpdate(msgspec.Struct, frozen=True, gc=False):
    """One accepted update of item-features.

    version        None: a record with a key and no value, which deletes at the version stored so far
    raw, features  the features as msgpack bytes, and decoded; both empty if it deletes
    is_statistics  its features hold over the record, and its version is their time
    """

    key: bytes
    version: int | None
    offset: int
    index: int
    dead: bool
    raw: bytes
    features: Mapping[str, Any]
    is_statistics: bool = False


class EmbeddingUpdate(msgspec.Struct, frozen=True, gc=False):
    """One accepted update of new-items. `values`: float32, little-endian."""

    key: bytes
    offset: int
    index: int
    values: bytes


def unpack_features(raw: bytes) -> dict[str, Any]:
    """The inverse of `pack_features`. Raises Corrupted (`bad_stored_features`)."""
    try:
        return _unpack_features(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupted("bad_stored_features", f"stored features of {len(raw)} bytes are not msgpack: {error}; {SHARD_REPAIR}") from error


def fold_features(stored: StoredFeatures | None, update: FeaturesUpdate) -> StoredFeatures | None:
    """The component after an update, or None when the update is superseded (I1: it is counted, and nothing changes)."""
    if update.is_statistics:
        return _fold_statistics(stored, update)
    version = update.version
    if version is None:
        version = stored.stamp[0] if stored is not None else 0
    stamp = (version, update.offset, update.index)
    if stored is not None and stamp <= stored.stamp:
        return None
    raw, statistics = update.raw, b""
    if stored is not None and stored.statistics and not update.dead:
        statistics = stored.statistics
        raw = pack_features({**update.features, **_values_of(statistics)})
    return _changed(stored, stamp, update.dead, raw, statistics)


def _fold_statistics(stored: StoredFeatures | None, update: FeaturesUpdate) -> StoredFeatures | None:
    """Later statistics replace those of the same names, and null removes one. They belong to a live item, whose own version they keep (A11)."""
    if stored is None or stored.dead or (update.offset, update.index) <= stored.stamp[1:]:
        return None
    before = unpack_features(stored.statistics) if stored.statistics else {}
    if before.get(_TIME, -1) >= (time_ms := update.version or 0):
        return None
    held = {name: value for name, value in {**before, **update.features}.items() if value is not None}
    raw = pack_features({**unpack_features(stored.raw), **update.features})
    stamp = (stored.stamp[0], update.offset, update.index)
    return _changed(stored, stamp, False, raw, pack_features({**held, _TIME: time_ms}))


def statistics_time(features: StoredFeatures) -> int:
    """As of when the statistics that hold over the record were counted, in ms; -1 without any."""
    return unpack_features(features.statistics)[_TIME] if features.statistics else -1


def _values_of(statistics: bytes) -> dict[str, Any]:
    return {name: value for name, value in unpack_features(statistics).items() if name != _TIME}


def _changed(stored: StoredFeatures | None, stamp: FeaturesStamp, dead: bool, raw: bytes, statistics: bytes) -> StoredFeatures:
    if stored is not None and stored.raw == raw and stored.dead == dead:
        return StoredFeatures(stamp, dead, stored.raw, stored.changed, stored.hash, statistics)
    return StoredFeatures(stamp, dead, raw, stamp, 0 if dead else component_hash(raw), statistics)


def fold_embedding(stored: StoredEmbedding | None, update: EmbeddingUpdate) -> StoredEmbedding | None:
    """The component after an update, or None when the update is superseded. Values with the stored hash are the stored values."""
    stamp = (update.offset, update.index)
    hashed = component_hash(update.values)
    if stored is None:
        return StoredEmbedding(stamp, stamp, hashed)
    if stamp <= stored.stamp:
        return None
    return StoredEmbedding(stamp, stored.changed if stored.hash == hashed else stamp, hashed)


# --- one item in one micro-batch ------------------------------------------------------------------------------------------

# Flags of parts of a row, as plain integers: the operators of an enum cost more than everything else here. VECTOR stands for vector and bridge weights, which
# are made together.
NOTHING, ROW, SIGNATURE, VECTOR = 0, 1, 2, 4
EVERYTHING = ROW | SIGNATURE | VECTOR


@dataclass(frozen=True)
class Dependencies:
    """The dependency table of one model: which features its item half reads, and the flags of what an embedding touches."""

    inputs: tuple[str, ...]
    by_embedding: int

    def by_features(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """The flags of what a change from `before` to `after` makes stale; the two are known to differ somewhere. A missing value and null are the same."""
        changed = pack_features(list(map(before.get, self.inputs))) != pack_features(list(map(after.get, self.inputs)))
        return ROW | VECTOR if changed else ROW


def dependencies_of(schema: FeatureSchema) -> Dependencies:
    """The table of a model with this schema. The multimodal embedding is a component of its own, never a feature."""
    by_embedding = ROW
    if schema.multimodal is not None:
        by_embedding |= SIGNATURE
        if schema.multimodal_is_input:
            by_embedding |= VECTOR
    return Dependencies(tuple(f.name for f in schema.item_half_inputs if f.name != schema.multimodal), by_embedding)


_Values = Mapping[str, Any] | None  # features by name; None: those before the batch, not yet decoded


class ItemChange:
    """One item in one micro-batch.

    before               as stored
    features, embedding  after the updates taken so far
    embedding_values     float32 bytes of the last embedding that the batch brought, or None
    """

    __slots__ = ("_embedding_changed", "_steps", "_values", "before", "embedding", "embedding_values", "features", "key")

    def __init__(self, key: bytes, before: StoredItem) -> None:
        self.key, self.before = key, before
        self.features: StoredFeatures | None = before.features
        self.embedding: StoredEmbedding | None = before.embedding
        self.embedding_values: bytes | None = None
        self._values: _Values = None
        self._steps: list[tuple[StoredFeatures | None, _Values, StoredFeatures, Mapping[str, Any]]] = []
        self._embedding_changed = False

    def take(self, update: FeaturesUpdate | EmbeddingUpdate) -> bool:
        """Folds an update in. False: it is superseded and changed nothing."""
        if isinstance(update, FeaturesUpdate):
            features = fold_features(self.features, update)
            if features is None:
                return False
            values = unpack_features(features.raw) if features.statistics else update.features
            self._steps.append((self.features, self._values, features, values))
            self.features, self._values = features, values
            return True
        embedding = fold_embedding(self.embedding, update)
        if embedding is None:
            return False
        self._embedding_changed |= self.embedding is None or self.embedding.hash != embedding.hash
        self.embedding, self.embedding_values = embedding, update.values
        return True

    @property
    def is_changed(self) -> bool:
        """Whether its stored value changed, if only by the stamp of an update that said nothing new."""
        return self.features is not self.before.features or self.embedding is not self.before.embedding

    @property
    def is_live(self) -> bool:
        """Whether the item has a row: live features. An embedding alone is only stored."""
        return self.features is not None and not self.features.dead

    @property
    def is_tombstone(self) -> bool:
        """Whether the batch must report to readers that the item is gone. Also when only the embedding of a dead item changed: a reader may have seen
        that embedding with a live row, from an earlier life of this shard. It would refuse a tombstone whose embedding stamp is older."""
        if self.features is None or not self.features.dead:
            return False
        return self._embedding_changed or any(before is None or before.dead != after.dead for before, _, after, _ in self._steps)

    def values(self) -> Mapping[str, Any]:
        """The features of a live item by name."""
        return self.before.decoded() if self._values is None else self._values

    def stale(self, dependencies: Dependencies) -> int:
        """Which parts of a live item's row the batch made stale: the flags above."""
        stale = dependencies.by_embedding if self._embedding_changed else NOTHING
        for before, before_values, after, after_values in self._steps:
            if before is None or before.dead != after.dead:
                return EVERYTHING
            if before.raw != after.raw:
                stale |= dependencies.by_features(self.before.decoded() if before_values is None else before_values, after_values)
        return stale


# --- stored bytes, and the stamp of a row ---------------------------------------------------------------------------------


def encode_item(features: StoredFeatures | None, embedding: StoredEmbedding | None) -> bytes:
    """Value in the column family `items`."""
    e = _NO_EMBEDDING if embedding is None else (*embedding.stamp, *embedding.changed, embedding.hash)
    if features is None:
        return ITEM_HEADER.pack(*NO_FEATURES_STAMP, *NO_FEATURES_STAMP, _ABSENT, 0, *e)
    if features.statistics:
        header = ITEM_HEADER.pack(*features.stamp, *features.changed, _COUNTED, features.hash, *e)
        return header + features.raw + features.statistics + _LENGTH.pack(len(features.statistics))
    return ITEM_HEADER.pack(*features.stamp, *features.changed, features.dead, features.hash, *e) + features.raw


def decode_item(value: bytes) -> StoredItem:
    """The inverse of `encode_item`. Raises Corrupted (`bad_item`)."""
    if len(value) < ITEM_HEADER.size:
        raise Corrupted("bad_item", f"stored item of {len(value)} bytes, expected at least {ITEM_HEADER.size}; {SHARD_REPAIR}")
    h = ITEM_HEADER.unpack_from(value)
    end = counted = len(value)
    if h[6] == _COUNTED:
        counted -= _LENGTH.size
        end = counted - _LENGTH.unpack_from(value, counted)[0]
        if not ITEM_HEADER.size <= end <= counted:
            raise Corrupted("bad_item", f"stored item of {len(value)} bytes whose statistics begin at {end}; {SHARD_REPAIR}")
    raw, statistics = value[ITEM_HEADER.size : end], value[end:counted]
    return StoredItem(
        None if h[6] == _ABSENT else StoredFeatures(h[0:3], h[6] == _DEAD, raw, h[3:6], h[7], statistics),
        None if h[8] < 0 else StoredEmbedding(h[8:10], h[10:12], h[12]),
    )


def input_hash_of(features: StoredFeatures, embedding: StoredEmbedding | None) -> int:
    """The `input_hash` of a live item's row (FORMAT.md section 3): uint64 of the hashes of both components."""
    return (features.hash + _HASH_FACTOR * (0 if embedding is None else embedding.hash)) & 0xFFFFFFFFFFFFFFFF


def stamp_of(features: StoredFeatures, embedding: StoredEmbedding | None) -> tuple[int, int, int, int, int, int, int]:
    """The stamp of an item's row or tombstone, as the fields of one STAMP element: where its components last changed. A tombstone has no input hash."""
    inputs = 0 if features.dead else input_hash_of(features, embedding)
    return (*features.changed, *(NO_EMBEDDING_STAMP if embedding is None else embedding.changed), inputs, features.dead)


def encode_stamp(features: StoredFeatures, embedding: StoredEmbedding | None) -> bytes:
    """One STAMP element: the fields of `stamp_of` as bytes."""
    return ONE_STAMP.pack(*stamp_of(features, embedding))


def is_covered(increment: bytes, before: Mapping[str, int]) -> bool:
    """Whether a row of the incremental part was made by updates before the offsets `before` of both topics. A tombstone never counts."""
    stamp = np.frombuffer(increment, STAMP, 1)[0]
    features_at, embeddings_at = (before[topic] for topic in SHARD_TOPICS)
    return not stamp["dead"] and stamp["features_offset"] < features_at and stamp["embedding_offset"] < embeddings_at
