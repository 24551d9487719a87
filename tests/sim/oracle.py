"""What must be true: a plain fold of one shard's topics, written for clarity, sharing no code with streams/core.

Here: `ShardOracle`, told every update when it is published. It knows the state at every offset, so it can say what a view must hold whose offsets
are anywhere. Not here: who is compared with it (checks.py).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from schemas.topics import ITEM_FEATURES, NEW_ITEMS

NO_EMBEDDING = (-1, 0)


@dataclass(frozen=True, slots=True)
class ItemFeatures:
    """Features of an item: the stamp of its last event, the stamp of its last change, and the value (None = deleted)."""

    stamp: tuple[int, int, int]
    changed: tuple[int, int, int]
    features: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ItemEmbedding:
    """Embedding of an item, likewise."""

    changed: tuple[int, int]
    values: bytes


Counts = tuple[int, int, int, int]  # consumed, applied, superseded, dead-lettered


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """One row of a view: its stamp without the input hash, features (None = deleted), embedding."""

    stamp: tuple[int, int, int, int, int]
    features: Mapping[str, Any] | None
    embedding: bytes


class ShardOracle:
    """States by offset. `features[o]`, `embeddings[o]` = by index key, after all records below o; counts likewise."""

    def __init__(self) -> None:
        self.features: list[dict[bytes, ItemFeatures]] = [{}]
        self.embeddings: list[dict[bytes, ItemEmbedding]] = [{}]
        self.counts: dict[str, list[Counts]] = {ITEM_FEATURES: [(0, 0, 0, 0)], NEW_ITEMS: [(0, 0, 0, 0)]}
        self.dead_letters: set[tuple[str, int, int]] = set()  # topic, offset, index
        self.features_at: dict[tuple[bytes, tuple[int, ...]], Mapping[str, Any] | None] = {}
        self.embedding_at: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._views: dict[tuple[int, int], dict[bytes, ExpectedRow]] = {}

    def publish_features(self, updates: list[tuple[bytes, int | None, Mapping[str, Any] | None] | None]) -> None:
        """A record: (key, event version or None = as stored, features or None = delete); None = an update that must be rejected."""
        offset, state, counts = len(self.features) - 1, dict(self.features[-1]), [0, 0, 0, 0]
        for index, update in enumerate(updates):
            if update is None:
                self._reject(ITEM_FEATURES, offset, index, counts)
                continue
            key, version, features = update
            known = state.get(key)
            stamp = ((known.stamp[0] if known else 0) if version is None else version, offset, index)
            if known and stamp <= known.stamp:
                counts[2] += 1
                continue
            same = known is not None and _canonical(known.features) == _canonical(features)
            state[key] = ItemFeatures(stamp, known.changed if known and same else stamp, features)
            self.features_at[key, state[key].changed] = features
            counts[1] += 1
        self.features.append(state)
        self._count(ITEM_FEATURES, counts)

    def publish_embeddings(self, updates: list[tuple[bytes, bytes] | None]) -> None:
        """A record: (key, embedding); None = an update that must be rejected."""
        offset, state, counts = len(self.embeddings) - 1, dict(self.embeddings[-1]), [0, 0, 0, 0]
        for index, update in enumerate(updates):
            if update is None:
                self._reject(NEW_ITEMS, offset, index, counts)
                continue
            key, values = update
            known = state.get(key)
            state[key] = ItemEmbedding(known.changed if known and known.values == values else (offset, index), values)
            self.embedding_at[key, state[key].changed] = values
            counts[1] += 1
        self.embeddings.append(state)
        self._count(NEW_ITEMS, counts)

    def _reject(self, topic: str, offset: int, index: int, counts: list[int]) -> None:
        self.dead_letters.add((topic, offset, index))
        counts[3] += 1

    def _count(self, topic: str, counts: list[int]) -> None:
        counts[0] = sum(counts)
        before = self.counts[topic][-1]
        self.counts[topic].append((before[0] + counts[0], before[1] + counts[1], before[2] + counts[2], before[3] + counts[3]))

    @property
    def ends(self) -> dict[str, int]:
        """End offsets of both topics."""
        return {ITEM_FEATURES: len(self.features) - 1, NEW_ITEMS: len(self.embeddings) - 1}

    def view(self, next_offsets: Mapping[str, int]) -> Mapping[bytes, ExpectedRow]:
        """What every version's merged view must hold at these offsets, deleted items included."""
        at = next_offsets[ITEM_FEATURES], next_offsets[NEW_ITEMS]
        if at not in self._views:
            self._views[at] = self._join(*at)
        return self._views[at]

    def _join(self, features: int, embeddings_to: int) -> dict[bytes, ExpectedRow]:
        embeddings, view = self.embeddings[embeddings_to], {}
        for key, item in self.features[features].items():
            embedding = embeddings.get(key)
            stamp = (*item.changed, *(embedding.changed if embedding else NO_EMBEDDING))
            view[key] = ExpectedRow(stamp, item.features, embedding.values if embedding else b"")
        return view


def _canonical(features: Mapping[str, Any] | None) -> bytes:
    return b"" if features is None else _encode(tuple(features.items()))


@cache
def _encode(features: tuple[tuple[str, Any], ...]) -> bytes:
    return msgspec.msgpack.encode(dict(sorted(features)))


@cache
def _hash_of(packed: bytes, embedding: bytes) -> int:
    features, values = (int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") for raw in (packed, embedding))
    return (features + 0x9E3779B97F4A7C15 * (values if embedding else 0)) % (1 << 64)


def input_hash_of(row: ExpectedRow) -> int:
    """The input hash that a stamp of this row carries: of the features as msgpack and the embedding's bytes; 0 for a deleted one."""
    return 0 if row.features is None else _hash_of(_canonical(row.features), row.embedding)
