"""Row changes of one version for the folded upserts of a micro-batch: the same rows as shard_rows.py makes item by item, from whole columns.

Here: which rows to rewrite without the network, which to encode, and their bytes. Not here: the fold (stored/folded_upserts.py), the arithmetic
(streams/encoder.py), the WriteBatch (streams/shard.py).
Invariant: as in shard_rows.py: a row is rewritten only from a stored row whose input hash is that of the components before the batch.

Arrays: I items, S steps of them, R rows, B bytes of an order and a row.
"""

from collections.abc import Sequence

import numpy as np

from schemas.index.layout import ORDER
from schemas.index.manifest import ENCODED, REWRITTEN, SKIPPED_IDENTICAL
from streams.core.stale import Dependencies, Stale
from streams.shard_rows import OldValues, RowChanges, RowEncoder, decode_increment_hash
from streams.stored.changed_inputs import compare_inputs
from streams.stored.folded_upserts import APPEARED, CHANGED, FoldedUpserts


def encode_upsert_rows(encoder: RowEncoder, dependencies: Dependencies, upserts: FoldedUpserts, old_values: OldValues) -> RowChanges:
    """The increments of one version. Raises Corrupted (`bad_increment`)."""
    result = RowChanges()
    changed, appeared = upserts.places(CHANGED), upserts.places(APPEARED)
    result.work[SKIPPED_IDENTICAL] += len(upserts) - len(changed) - len(appeared)
    differ_I = _find_changed_inputs(upserts, dependencies)
    kept, old_rows = _find_usable_rows(encoder, upserts, changed[~differ_I[changed]], old_values)
    to_encode = np.concatenate((appeared, np.setdiff1d(changed, kept, assume_unique=True)))
    if len(kept):
        block = upserts.after.take(kept)
        _add(block.keys, block.orders_R, encoder.rewrite(old_rows, block.features, block.embeddings, np.zeros(len(kept), np.bool_)), result)
        result.work[REWRITTEN] += len(kept)
    if len(to_encode):
        block = upserts.after.take(to_encode)
        _add(block.keys, block.orders_R, encoder.encode(block.features, block.embeddings), result)
        result.work[ENCODED] += len(to_encode)
    return result


def _find_changed_inputs(upserts: FoldedUpserts, dependencies: Dependencies) -> np.ndarray:
    """Of every item, whether a step changed an input of the item half (bool). A text that is not plain is decoded, as ItemChange does."""
    steps, differ_I = upserts.steps, np.zeros(len(upserts), np.bool_)
    differ_S, known_S = compare_inputs(steps.before, steps.after, dependencies.inputs)
    for step in np.flatnonzero(~known_S).tolist():
        differ_S[step] = bool(dependencies.by_features(steps.before[step], steps.after[step]) & Stale.VECTOR)
    differ_I[steps.items_S[differ_S]] = True
    return differ_I


def _find_usable_rows(
    encoder: RowEncoder, upserts: FoldedUpserts, places: np.ndarray, old_values: OldValues
) -> tuple[np.ndarray, np.ndarray]:
    """The places whose stored row was made from the components as they were before this batch, and those rows."""
    keys, places_list = upserts.after.keys, places.tolist()
    values = old_values([keys[place] for place in places_list])
    row_bytes = ORDER.itemsize + encoder.layout.row_bytes
    is_row_R = np.fromiter((value is not None and len(value) == row_bytes for value in values), np.bool_, len(values))
    for place in np.flatnonzero(~is_row_R).tolist():
        if (value := values[place]) is not None:
            decode_increment_hash(encoder.layout, value)  # a tombstone, or Corrupted
    rows = [value for value, is_row in zip(values, is_row_R.tolist(), strict=True) if is_row and value is not None]
    values_RB = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), row_bytes)
    orders_R = np.ascontiguousarray(values_RB[:, : ORDER.itemsize]).view(ORDER).reshape(-1)
    is_usable_R = (orders_R["input_hash"] == upserts.hashes_before(places[is_row_R])) & (orders_R["dead"] == 0)
    old_rows = np.ascontiguousarray(values_RB[is_usable_R, ORDER.itemsize :]).view(encoder.layout.dtype).reshape(-1)
    return places[is_row_R][is_usable_R], old_rows


def _add(keys: Sequence[bytes], orders_R: np.ndarray, rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(keys),), f"encoder gave {rows.shape} rows for {len(keys)} items"
    values_RB = np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(keys), -1) for part in (orders_R, rows)], axis=1)
    whole, size = values_RB.tobytes(), values_RB.shape[1]
    result.changes += zip(keys, [whole[at : at + size] for at in range(0, len(whole), size)], strict=True)
