"""Row changes of one version for the folded upserts of a micro-batch: the same rows as shard_rows.py makes item by item, from whole columns.

Here: which rows to rewrite without the network, which to encode, and their bytes. Not here: the fold (stored/folded_upserts.py), the arithmetic
(streams/encoder.py), the WriteBatch (streams/shard.py).
Invariant: as in shard_rows.py: a row is rewritten only from a stored row whose input hash is that of the components before the batch.

Arrays: R upserts, B bytes of an order and a row.
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
    differ = _find_changed_inputs(upserts, changed, dependencies)
    kept, old_rows = _find_usable_rows(encoder, upserts, changed[~differ], old_values)
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


def _find_changed_inputs(upserts: FoldedUpserts, places: np.ndarray, dependencies: Dependencies) -> np.ndarray:
    """Of changed items, whether an input of the item half is another (bool). A text that is not plain is decoded, as ItemChange does."""
    before, after = upserts.texts_before(places), upserts.after.features.take(places)
    differ, known = compare_inputs(before, after, dependencies.inputs)
    for place in np.flatnonzero(~known).tolist():
        differ[place] = bool(dependencies.by_features(before[place], after[place]) & Stale.VECTOR)
    return differ


def _find_usable_rows(
    encoder: RowEncoder, upserts: FoldedUpserts, places: np.ndarray, old_values: OldValues
) -> tuple[np.ndarray, np.ndarray]:
    """The places whose stored row was made from the components as they were before this batch, and those rows."""
    keys = [upserts.after.keys[place] for place in places.tolist()]
    values = old_values(keys)
    hashes = upserts.hashes_before(places).tolist()
    usable = [
        value is not None and decode_increment_hash(encoder.layout, value) == expected
        for value, expected in zip(values, hashes, strict=True)
    ]
    rows = b"".join(_rows_of(values, usable))
    return places[np.array(usable, np.bool_)], np.frombuffer(rows, encoder.layout.dtype)


def _rows_of(values: Sequence[bytes | None], usable: Sequence[bool]) -> list[bytes]:
    return [value[ORDER.itemsize :] for value, good in zip(values, usable, strict=True) if good and value is not None]


def _add(keys: Sequence[bytes], orders_R: np.ndarray, rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(keys),), f"encoder gave {rows.shape} rows for {len(keys)} items"
    values_RB = np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(keys), -1) for part in (orders_R, rows)], axis=1)
    whole, size = values_RB.tobytes(), values_RB.shape[1]
    result.changes += [(key, whole[at : at + size]) for key, at in zip(keys, range(0, len(whole), size), strict=True)]
