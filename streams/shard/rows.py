"""Rows of one version for the items of one micro-batch, one by one: which to encode, which to rewrite without the network, which items are gone.

Here: the plan for one version, and the calls of its encoder. Not here: many upserts at once (upsert_rows.py), what is stale (core/stale.py), the
arithmetic (streams/encoder.py), the WriteBatch (shard.py).
Invariant: a row is rewritten without the network only from a stored row whose input hash is that of the components before the batch; any
other row is encoded. Both ways give the same bits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from infra.joined import Joined, join_runs, join_stored
from schemas.index.layout import ORDER, RowLayout, decode_increment
from schemas.index.manifest import ENCODED, REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES
from streams.core.item_change import ItemChange
from streams.core.item_state import encode_order, order_of
from streams.core.stale import Dependencies, Stale
from streams.encoder_protocol import Encoder
from streams.stored.feature_texts import FeatureTexts
from streams.stored.item_block import EmbeddingValues

REMOVED = "rows_removed"  # a cause of work, as those in schemas/index/manifest.py
_VECTOR, _SIGNATURE = int(Stale.VECTOR), int(Stale.SIGNATURE)  # as numbers: operators of flags cost more than the rest of the plan
_HASH_AT = int(ORDER.fields["input_hash"][1]) if ORDER.fields else 0
_DEAD_AT = ORDER.itemsize - 1  # the byte after the hash, and the last
OldValues = Callable[[Sequence[bytes]], Sequence[bytes | None]]  # stored increments of this version by index key


@dataclass(slots=True)
class RowChanges:
    """New rows of a version: as pairs (index key, increment value), or as keys and values side by side; and the work that they took."""

    changes: list[tuple[bytes, bytes]] = field(default_factory=list)
    together: list[tuple[Joined, Joined]] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "RowChanges") -> Self:
        self.changes += other.changes
        self.together += other.together
        self.work += other.work
        return self

    def joined(self) -> tuple[Joined, Joined] | None:
        """All keys and values side by side, those of the pairs first; None if nothing changed."""
        runs = list(self.together)
        if self.changes:
            runs.insert(0, (join_stored([key for key, _ in self.changes]), join_stored([value for _, value in self.changes])))
        return (join_runs([keys for keys, _ in runs]), join_runs([values for _, values in runs])) if runs else None


def encode_row_changes(encoder: Encoder, dependencies: Dependencies, items: Sequence[ItemChange], old_values: OldValues) -> RowChanges:
    """The increments of one version for the items of one micro-batch."""
    result = RowChanges()
    to_encode: list[ItemChange] = []
    to_rewrite: list[tuple[ItemChange, Stale]] = []
    for item in items:
        if not item.is_live:
            _remove(item, result)
            continue
        stale = item.stale(dependencies)
        if stale is Stale.NOTHING:
            result.work[SKIPPED_IDENTICAL] += 1
        elif int(stale) & _VECTOR:
            to_encode.append(item)
        else:
            to_rewrite.append((item, stale))
    to_encode += _rewrite(encoder, to_rewrite, old_values, result)
    _encode(encoder, to_encode, result)
    return result


def _remove(item: ItemChange, result: RowChanges) -> None:
    if item.is_tombstone:
        assert item.features is not None
        result.changes.append((item.key, encode_order(item.features, item.embedding)))
        result.work[REMOVED] += 1
    else:
        result.work[SKIPPED_NO_FEATURES if item.features is None else SKIPPED_IDENTICAL] += 1


def _rewrite(encoder: Encoder, items: Sequence[tuple[ItemChange, Stale]], old_values: OldValues, result: RowChanges) -> list[ItemChange]:
    """Rewrites the items that have a usable old row. Returns the others, which are to be encoded."""
    if not items:
        return []
    kept, old_rows, left = [], [], []
    for (item, stale), value in zip(items, old_values([item.key for item, _ in items]), strict=True):
        row = None if value is None else _usable_row(encoder.layout, item, value)
        if row is None:
            left.append(item)
        else:
            kept.append((item, stale))
            old_rows.append(row)
    if kept:
        changed = [item for item, _ in kept]
        signature_stale = np.array([bool(int(stale) & _SIGNATURE) for _, stale in kept])
        rows = encoder.rewrite(np.frombuffer(b"".join(old_rows), encoder.layout.dtype), *_inputs(changed), signature_stale)
        _add(changed, rows, result)
        result.work[REWRITTEN] += len(kept)
    return left


def _usable_row(layout: RowLayout, item: ItemChange, value: bytes) -> bytes | None:
    """The bytes of the stored row if it was made from the components as they were before this batch. Raises Corrupted (`bad_increment`)."""
    inputs = decode_increment_hash(layout, value)
    if item.before_features is None or inputs is None:
        return None
    before = order_of(item.before_features, item.before_embedding)
    return value[ORDER.itemsize :] if inputs == before[5] else None


def decode_increment_hash(layout: RowLayout, value: bytes) -> int | None:
    """The input hash of an increment, None for a tombstone. Makes no array, which would cost more. Raises Corrupted (`bad_increment`)."""
    if len(value) != ORDER.itemsize + layout.row_bytes or value[_DEAD_AT]:
        decode_increment(layout, value)  # a tombstone, or not what was written
        return None
    return int.from_bytes(value[_HASH_AT:_DEAD_AT], "little")


def _encode(encoder: Encoder, items: Sequence[ItemChange], result: RowChanges) -> None:
    if items:
        _add(items, encoder.encode(*_inputs(items)), result)
        result.work[ENCODED] += len(items)


def _inputs(items: Sequence[ItemChange]) -> tuple[FeatureTexts, EmbeddingValues]:
    texts = [item.features.raw for item in items if item.features is not None]
    return FeatureTexts.join(texts), EmbeddingValues.join([None if item.embedding is None else item.embedding.values for item in items])


def _add(items: Sequence[ItemChange], rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(items),), f"encoder gave {rows.shape} rows for {len(items)} items"
    whole, size = rows.tobytes(), rows.dtype.itemsize
    for at, item in zip(range(0, len(whole), size), items, strict=True):
        assert item.features is not None
        result.changes.append((item.key, encode_order(item.features, item.embedding) + whole[at : at + size]))
