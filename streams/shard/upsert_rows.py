"""Rows of one version for the folded upserts of a micro-batch: the same rows that rows.py makes item by item, made from whole columns.

Here: which rows to rewrite without the network, which to encode, and their bytes. Not here: the fold (stored/folded_upserts.py), the arithmetic
(streams/encoder.py), the WriteBatch (shard.py).
Invariant: as in rows.py: a row is rewritten only from a stored row whose input hash is that of the components before the batch.

Arrays: I items, S steps of them, R rows, B bytes of an order and a row.
"""

from collections.abc import Callable

import numpy as np

from infra.joined import Joined, join_rows, pack_into
from schemas.index.layout import ORDER
from schemas.index.manifest import ENCODED, REWRITTEN, SKIPPED_IDENTICAL
from streams.core.stale import Dependencies, Stale
from streams.encoder_protocol import Encoder
from streams.shard.rows import RowChanges, decode_increment_hash
from streams.stored.changed_inputs import compare_inputs
from streams.stored.folded_upserts import APPEARED, CHANGED, FoldedUpserts

OldRows = Callable[[Joined], Joined]  # stored increments of this version by index key


def encode_upsert_rows(encoder: Encoder, dependencies: Dependencies, upserts: FoldedUpserts, old_rows_of: OldRows) -> RowChanges:
    """The increments of one version. Raises Corrupted (`bad_increment`)."""
    result = RowChanges()
    changed, appeared = upserts.places(CHANGED), upserts.places(APPEARED)
    result.work[SKIPPED_IDENTICAL] += len(upserts) - len(changed) - len(appeared)
    differ_I = _find_changed_inputs(upserts, dependencies)
    kept, old_rows = _find_usable_rows(encoder, upserts, changed[~differ_I[changed]], old_rows_of)
    to_encode = np.concatenate((appeared, np.setdiff1d(changed, kept, assume_unique=True)))
    if len(kept):
        no_signature = np.zeros(len(kept), np.bool_)
        rows = encoder.rewrite(old_rows, upserts.features(kept), upserts.embedding_values(kept), no_signature)
        _add(upserts, kept, rows, result)
        result.work[REWRITTEN] += len(kept)
    if len(to_encode):
        _add(upserts, to_encode, encoder.encode(upserts.features(to_encode), upserts.embedding_values(to_encode)), result)
        result.work[ENCODED] += len(to_encode)
    return result


def _find_changed_inputs(upserts: FoldedUpserts, dependencies: Dependencies) -> np.ndarray:
    """Whether a step changed an input of the item half, for each item (bool). A text that is not plain is decoded, as ItemChange does."""
    steps, differ_I = upserts.steps, np.zeros(len(upserts), np.bool_)
    differ_S, known_S = compare_inputs(steps.before, steps.after, dependencies.inputs)
    for step in np.flatnonzero(~known_S).tolist():
        differ_S[step] = bool(dependencies.by_features(steps.before[step], steps.after[step]) & Stale.VECTOR)
    differ_I[steps.items_S[differ_S]] = True
    return differ_I


def _find_usable_rows(encoder: Encoder, upserts: FoldedUpserts, places: np.ndarray, old_rows_of: OldRows) -> tuple[np.ndarray, np.ndarray]:
    """The places of items whose stored row was made from the components as they were before this batch, and these rows."""
    values = old_rows_of(upserts.keys.take(places))
    row_bytes = ORDER.itemsize + encoder.layout.row_bytes
    is_row_R = values.sizes() == row_bytes
    for value in values.take(np.flatnonzero(~is_row_R)).to_list():
        if value is not None:
            decode_increment_hash(encoder.layout, value)  # a tombstone, or Corrupted
    rows_T = np.empty(np.count_nonzero(is_row_R) * row_bytes, np.uint8)
    pack_into(values.take(is_row_R), rows_T, 0)
    values_RB = rows_T.reshape(-1, row_bytes)
    orders_R = np.ascontiguousarray(values_RB[:, : ORDER.itemsize]).view(ORDER).reshape(-1)
    is_usable_R = (orders_R["input_hash"] == upserts.hashes_before(places[is_row_R])) & (orders_R["dead"] == 0)
    old_rows = np.ascontiguousarray(values_RB[is_usable_R, ORDER.itemsize :]).view(encoder.layout.dtype).reshape(-1)
    return places[is_row_R][is_usable_R], old_rows


def _add(upserts: FoldedUpserts, places: np.ndarray, rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(places),), f"encoder gave {rows.shape} rows for {len(places)} items"
    parts = (upserts.orders(places), rows)
    values_RB = np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(places), -1) for part in parts], axis=1)
    result.together.append((upserts.keys.take(places), join_rows(values_RB)))
