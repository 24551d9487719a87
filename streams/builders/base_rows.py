"""Rows that a build takes over from earlier parts, for items whose inputs are still the same: only stale rows are computed (protocol B11).

Invariant: a row is taken over only for an item with the same input hash, and from parts of the same version (checkpoint, LSH, encoder fingerprint). So it
has the bits that encoding would give, whatever happened to the shard in between. Its stamp is the item's own, not the base's.

A revive, the first full part of a new owner, a full part written again and the adoption of a replay are all builds with a base. The base may be of
any age: rows that it lacks are computed, and rows that are too many are left.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from infra.index.parts import read_full_part, read_incremental_part, verify_part
from infra.index.store import IndexStore
from schemas.errors import AifError
from schemas.index.digest import merge_parts
from schemas.index.layout import RowBlock, RowLayout
from schemas.limits import BUILD_ROWS_AT_ONCE
from streams.builders.jobs import BuildJob
from streams.core.ascending import AscendingLookup
from streams.shard.shard_reader import ShardReader


class BaseRows:
    """Rows by key, to be asked for in ascending order of keys. `blocks` None: there is no base. `reused` counts the rows that were taken over."""

    def __init__(self, blocks: Iterable[RowBlock] | None = None) -> None:
        self.is_empty = blocks is None
        self._blocks = (block for block in blocks or () if len(block) > 0)
        self._places = AscendingLookup(self._next_block, BUILD_ROWS_AT_ONCE)
        self.reused = 0

    def take(self, keys: Sequence[bytes], input_hashes_R: np.ndarray, into_R: np.ndarray) -> np.ndarray:
        """Fills those rows of `into_R` whose items the base has with the same inputs; returns which (bool [R]). The keys of the next call come after these."""
        known_R = np.zeros(len(keys), bool)
        for at, found in enumerate(self._places.take(keys)):
            if found is not None and has_inputs(*found, input_hashes_R[at]):
                block, place = found
                into_R[at], known_R[at] = block.rows[place], True
        self.reused += int(known_R.sum())
        return known_R

    def _next_block(self, _: int) -> list[tuple[bytes, tuple[RowBlock, int]]]:
        block = next(self._blocks, None)
        return [] if block is None else [(key, (block, place)) for place, key in enumerate(block.keys)]


def has_inputs(block: RowBlock, place: int, input_hash: int) -> bool:
    """Whether the row at a place was made from these inputs."""
    return bool(block.stamps["input_hash"][place] == input_hash)


def open_base(store: IndexStore, job: BuildJob, reader: ShardReader, layout: RowLayout) -> BaseRows:
    """The base of a job. It is empty if the job has none or its files are gone or damaged; then every row is computed."""
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
