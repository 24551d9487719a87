"""Rows of one version for the items of one micro-batch: which to encode, which to rewrite without the network, which items are gone.

Invariant: a row is rewritten without the network only from a stored row whose input hash is that of the components before the batch. Every other row is
encoded. Both ways give the same bits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.index.layout import STAMP, RowLayout, decode_increment
from schemas.index.manifest import ENCODED, REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES
from streams.core.item import NOTHING, SIGNATURE, VECTOR, Dependencies, ItemChange, encode_stamp, input_hash_of
from streams.encoder_protocol import Encoder

REMOVED = "rows_removed"  # a cause of work, as those in schemas/index/manifest.py
_HASH_AT = int(STAMP.fields["input_hash"][1]) if STAMP.fields else 0
_DEAD_AT = STAMP.itemsize - 1  # the byte after the hash, and the last
OldValues = Callable[[Sequence[bytes]], Sequence[bytes | None]]  # stored increments of this version by index key
EmbeddingsOf = Callable[[Sequence[ItemChange]], Sequence[bytes | None]]  # float32 bytes after the batch


@dataclass(slots=True)
class RowChanges:
    """New rows of a version, as (index key, increment value), and the work that they took."""

    changes: list[tuple[bytes, bytes]] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)


def encode_row_changes(
    encoder: Encoder, dependencies: Dependencies, items: Sequence[ItemChange], old_values: OldValues, embeddings_of: EmbeddingsOf
) -> RowChanges:
    """The increments of one version for the items of one micro-batch."""
    result = RowChanges()
    to_encode: list[ItemChange] = []
    to_rewrite: list[tuple[ItemChange, int]] = []
    for item in items:
        if not item.is_live:
            _remove(item, result)
            continue
        stale = item.stale(dependencies)
        if stale == NOTHING:
            result.work[SKIPPED_IDENTICAL] += 1
        elif stale & VECTOR:
            to_encode.append(item)
        else:
            to_rewrite.append((item, stale))
    to_encode += _rewrite(encoder, to_rewrite, old_values, result)
    if to_encode:
        _add(to_encode, encoder.encode([item.values() for item in to_encode], embeddings_of(to_encode)), result)
        result.work[ENCODED] += len(to_encode)
    return result


def _remove(item: ItemChange, result: RowChanges) -> None:
    if item.is_tombstone:
        assert item.features is not None
        result.changes.append((item.key, encode_stamp(item.features, item.embedding)))
        result.work[REMOVED] += 1
    else:
        result.work[SKIPPED_NO_FEATURES if item.features is None else SKIPPED_IDENTICAL] += 1


def _rewrite(encoder: Encoder, items: Sequence[tuple[ItemChange, int]], old_values: OldValues, result: RowChanges) -> list[ItemChange]:
    """Rewrites the items that have a usable old row. Returns the others, which are to be encoded."""
    kept: list[ItemChange] = []
    left: list[ItemChange] = []
    old_rows: list[bytes] = []
    signature_stale: list[bool] = []
    for (item, stale), value in zip(items, old_values([item.key for item, _ in items]) if items else (), strict=True):
        row = None if value is None else _usable_row(encoder.layout, item, value)
        if row is None:
            left.append(item)
        else:
            kept.append(item)
            old_rows.append(row)
            signature_stale.append(stale & SIGNATURE != 0)
    if kept:
        # A signature is stale only where the batch brought the embedding, so none is read here.
        embeddings = [item.embedding_values for item in kept]
        old = np.frombuffer(b"".join(old_rows), encoder.layout.dtype)
        _add(kept, encoder.rewrite(old, [item.values() for item in kept], embeddings, np.array(signature_stale)), result)
        result.work[REWRITTEN] += len(kept)
    return left


def _usable_row(layout: RowLayout, item: ItemChange, value: bytes) -> bytes | None:
    """The bytes of the stored row if it was made from the components as they were before this batch. Raises Corrupted (`bad_increment`)."""
    if len(value) != STAMP.itemsize + layout.row_bytes or value[_DEAD_AT]:
        decode_increment(layout, value)  # a tombstone, or damaged
        return None
    if item.before.features is None:
        return None
    hashed = input_hash_of(item.before.features, item.before.embedding)
    return value[STAMP.itemsize :] if int.from_bytes(value[_HASH_AT:_DEAD_AT], "little") == hashed else None


def _add(items: Sequence[ItemChange], rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(items),), f"encoder gave {rows.shape} rows for {len(items)} items"
    whole, size = rows.tobytes(), rows.dtype.itemsize
    for at, item in zip(range(0, len(whole), size), items, strict=True):
        assert item.features is not None
        result.changes.append((item.key, encode_stamp(item.features, item.embedding) + whole[at : at + size]))
