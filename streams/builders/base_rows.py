"""Rows of earlier parts, taken over by a build where an item's inputs are still the same: only what is stale is computed (protocol B11).

Here: the merge of items in key order with rows in key order. Not here: which parts are the base of a build (streams/versions/reconcile.py), encoding
(full_part.py).
Invariant: a row is taken only for an item with the same input hash, from parts of the same version: same checkpoint, same LSH, same encoder
fingerprint. So it has the bits that encoding would give, whatever happened to the shard in between; its order is the item's own, not the base's.

A revive, the first full part of a new owner, a full part written anew and the adoption of a replay are all builds with a base. The base may be of
any age: what it lacks or has too much only costs computing.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from infra.index.parts import read_full_part, read_incremental_part, verify_part
from infra.index.store import IndexStore
from schemas.errors import AifError
from schemas.index.digest import merge_parts
from schemas.index.layout import RowBlock, RowLayout
from streams.builders.jobs import BuildJob
from streams.shard_reader import ShardReader


class BaseRows:
    """Rows by key, asked for in ascending runs of keys. `reused` counts rows that were taken over. None: there is nothing to take."""

    def __init__(self, blocks: Iterable[RowBlock] | None = None) -> None:
        self.is_empty = blocks is None
        self._blocks: Iterator[RowBlock] = (block for block in blocks or () if len(block) > 0)
        self._held: dict[bytes, tuple[RowBlock, int]] = {}
        self._last = b""
        self.reused = 0

    def take(self, keys: Sequence[bytes], input_hashes_R: np.ndarray, into_R: np.ndarray) -> np.ndarray:
        """Fills rows of `into_R` that are known with these inputs; bool [R], which ones. The next call's keys come after these."""
        self._read_to(keys[-1])
        known_R = np.zeros(len(keys), bool)
        for at, key in enumerate(keys):
            found = self._held.pop(key, None)
            if found is not None and found[0].orders["input_hash"][found[1]] == input_hashes_R[at]:
                into_R[at] = found[0].rows[found[1]]
                known_R[at] = True
        self._held = {key: held for key, held in self._held.items() if key > keys[-1]}
        self.reused += int(known_R.sum())
        return known_R

    def _read_to(self, key: bytes) -> None:
        while self._last < key and (block := next(self._blocks, None)) is not None:
            self._last = block.keys[-1]
            self._held |= {k: (block, i) for i, k in enumerate(block.keys)}


def open_base(store: IndexStore, job: BuildJob, reader: ShardReader, layout: RowLayout) -> BaseRows:
    """The base of a job; an empty one if it has none, or if its files are gone or damaged: then every row is computed."""
    base = job.base
    if base is None:
        return BaseRows()
    try:
        for part in (base.full, base.incremental):
            if part is not None:
                verify_part(store, part)
    except AifError:
        return BaseRows()
    full = read_full_part(store, base.full, layout, verify=False)
    if base.incremental is None:
        return BaseRows(merge_parts(layout, full, reader.scan_increments(job.version)))
    return BaseRows(merge_parts(layout, full, read_incremental_part(store, base.incremental, verify=False)))
