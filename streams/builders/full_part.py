"""The full part of one shard of a version, from a checkpoint of the shard.

Invariants: items are read from the checkpoint in key order in slices, so memory does not grow with their number. The bits of a row depend on the row alone.
So the digest does not depend on the size of a slice or the number of processes. The checkpoint was taken after the batch that recorded `building v`, so the
increments have the rows that it lacks (B6). With `source_offsets` of the result the owner checks that again.

Processes work on different shards at the same time; one shard is one job. A build that was killed continues after its last finished slice (slices.py). Rows
that an earlier part has with the same inputs are taken over (base_rows.py).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from infra.index.parts import write_full_part
from infra.index.store import IndexStore
from schemas.errors import Incompatible
from schemas.index.layout import RowBlock
from schemas.limits import ROWS_PER_FILE_BLOCK
from streams.builders.base_rows import BaseRows, open_base
from streams.builders.jobs import BuildJob, BuildResult
from streams.builders.slices import SLICE_ITEMS, BuildSlices
from streams.encoder_protocol import Encoder
from streams.shard.shard_reader import ItemBlock, ShardReader, open_shard_reader

Progress = Callable[[int], None]  # rows done so far


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
