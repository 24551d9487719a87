"""The full part of one shard of a version, from a checkpoint of the shard.

Invariants: items are read from the checkpoint in key order in slices, so memory does not grow with their number. The bits of a row depend on the row alone.
So the digest does not depend on the size of a slice or the number of processes. The checkpoint was taken after the batch that recorded `building v`, so the
increments have the rows that it lacks (B6). With `source_offsets` of the result the owner checks that again.

Processes work on different shards at the same time; one shard is one job. A build that was killed continues after its last finished slice (slices.py).

A build may have a base: earlier parts of the same version, that is, of its checkpoint, LSH and encoder fingerprint. Their rows with the same input hash are
taken over, and only the others are computed (B11). So a row has the bits that encoding would give, whatever happened to the shard in between. Its stamp is the
item's own, not the base's. The base may be of any age. A revive has one, and so have the first full part of a new owner, a full part written again, and the
adoption of a replay.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from infra.index.parts import read_full_part, read_incremental_part, verify_part, write_full_part
from infra.index.store import IndexStore
from schemas.errors import AifError, Incompatible
from schemas.index.digest import merge_parts
from schemas.index.layout import RowBlock, RowLayout
from schemas.limits import BUILD_ROWS_AT_ONCE, ROWS_PER_FILE_BLOCK
from streams.builders.jobs import BuildJob, BuildResult
from streams.builders.slices import SLICE_ITEMS, BuildSlices
from streams.core.ascending import AscendingLookup
from streams.encoder_protocol import Encoder
from streams.shard.shard_reader import ItemBlock, ShardReader, open_shard_reader

Progress = Callable[[int], None]  # rows done so far


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


def build_full_part(store: IndexStore, encoder: Encoder, job: BuildJob, progress: Progress = lambda _: None) -> BuildResult:
    """Writes the full part of a shard into the store. Raises Incompatible (`other_encoder`), Corrupted, Unavailable."""
    check_encoder(encoder, job.encoder_fingerprint, job.version)
    with open_shard_reader(Path(job.checkpoint_directory)) as reader:
        base = open_base(store, job, reader, encoder.layout)
        if job.slices_directory:
            return _build_in_slices(store, encoder, job, reader, base, progress)
        blocks = encode_blocks(encoder, reader.scan_blocks(rows=job.slice_rows), progress, base)
        return BuildResult(write_full_part(store, job.version, job.shard, blocks, encoder.layout), reader.next_offsets, base.reused)


def _build_in_slices(
    store: IndexStore, encoder: Encoder, job: BuildJob, reader: ShardReader, base: BaseRows, progress: Progress
) -> BuildResult:
    slices = BuildSlices(Path(job.slices_directory), job, encoder.layout)
    rows_at_once = min(job.slice_rows, SLICE_ITEMS)
    items = reader.scan_blocks(slices.next_key, rows=rows_at_once)
    while (first := next(items, None)) is not None:
        run = itertools.chain((first,), itertools.islice(items, SLICE_ITEMS // rows_at_once - 1))
        done, reused = slices.rows, base.reused
        blocks = encode_blocks(encoder, run, lambda rows, done=done: progress(done + rows), base)  # type: ignore[misc] # mypy: a lambda with a default
        slices.add(blocks, reader.next_offsets, lambda reused=reused: base.reused - reused)  # type: ignore[misc] # mypy: a lambda with a default
    return slices.finish(store, reader.next_offsets)


def check_encoder(encoder: Encoder, wanted_fingerprint: str, version: int) -> None:
    """Raises Incompatible (`other_encoder`): rows of two fingerprints never mix in one version (I9)."""
    if encoder.fingerprint != wanted_fingerprint:
        raise Incompatible(
            "other_encoder",
            f"version {version} is written by the encoder {wanted_fingerprint}, this process has {encoder.fingerprint}; "
            "publish the checkpoint again after an upgrade of the fleet",
        )


def encode_blocks(
    encoder: Encoder, items: Iterable[ItemBlock], progress: Progress = lambda _: None, base: BaseRows | None = None
) -> Iterator[RowBlock]:
    """Rows of items in key order, in blocks of at most ROWS_PER_FILE_BLOCK; each block of items is encoded at once."""
    done = 0
    for block in items:
        rows = _encode_block(encoder, block, base)
        for at in range(0, len(block), ROWS_PER_FILE_BLOCK):
            cut = slice(at, at + ROWS_PER_FILE_BLOCK)
            yield RowBlock(block.keys[cut], block.stamps_R[cut], rows[cut])
        done += len(block)
        progress(done)


def _encode_block(encoder: Encoder, block: ItemBlock, base: BaseRows | None) -> np.ndarray:
    """Rows of a block of items; those that the base has are not computed."""
    if base is None or base.is_empty:
        return encoder.encode(block.features, block.embeddings)
    rows_R = np.zeros(len(block), encoder.layout.dtype)
    missing = np.flatnonzero(~base.take(block.keys, block.stamps_R["input_hash"], rows_R))
    if len(missing):
        some = block.take(missing.tolist())
        rows_R[missing] = encoder.encode(some.features, some.embeddings)
    return rows_R
