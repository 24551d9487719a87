"""The seal of one shard of a revision: a frozen, complete, checkable view of it (protocol B7, B8).

Here: what a seal is made of, in the one right order. Not here: when a shard may seal (core/versions.py), the processes (builder_pool.py),
the manifest (publication.py).

Order, in `prepare_seal` and then `write_seal`:
1. the end offset of the shard's partition of index-deltas is read: a reader of this seal starts there;
2. then a checkpoint of the shard is taken;
3. increments with tombstones, counts, source offsets and digests come from that checkpoint only, never from the live shard.

A delta before the position was written to the shard before it was sent, so it is in the checkpoint. Deltas that were still in the shard's
outbox at the checkpoint are in the exported increments too and come to a reader again after the position: harmless, because a reader never
lets a component's order go back. With 1 and 2 exchanged, a delta sent between them would be in neither.

Several seals of one shard may exist (a restart makes another one); each is a correct prefix, and every file has a unique name.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.failpoints import failpoint
from infra.index_parts import new_unique, read_full_part, write_incremental_part
from infra.index_store import IndexStore
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.layout import RowBlock
from schemas.index.manifest import Seal, encode_seal, seal_path
from streams.build_jobs import SealJob
from streams.builder import Progress, check_encoder
from streams.encoders import Encoder
from streams.shard_reader import open_shard_reader


def prepare_seal(job: SealJob, fetch_deltas_end: Callable[[], int], create_checkpoint: Callable[[Path], None], into: Path) -> SealJob:
    """Steps 1 and 2: the delta position, *then* the checkpoint of the shard in the new folder `into`."""
    delta_position = fetch_deltas_end()
    create_checkpoint(into)
    return dataclasses.replace(job, delta_position=delta_position, checkpoint_directory=str(into))


def write_seal(store: IndexStore, encoder: Encoder, job: SealJob, progress: Progress = lambda _: None) -> Seal:
    """Step 3: writes the incremental part and the seal file. Raises Incompatible (`other_encoder`), Corrupted, Unavailable."""
    check_encoder(encoder, job.encoder_fingerprint, job.version)
    with open_shard_reader(Path(job.checkpoint_directory)) as reader:
        incremental = write_incremental_part(store, job.version, job.revision, job.shard, reader.scan_increments(job.version))
        merged = merge_parts(encoder.layout, read_full_part(store, job.full, encoder.layout), reader.scan_increments(job.version))
        digest = digest_blocks(encoder, merged, progress)
        source_offsets, source_ms = reader.next_offsets, reader.source_ms
    seal = Seal(
        job.shard,
        job.full,
        incremental,
        job.delta_position,
        source_offsets,
        digest.rows,
        digest.hexdigest,
        digest.data_hexdigest,
        job.encoder_fingerprint,
        source_ms,
    )
    failpoint("before-seal")
    store.put_bytes(seal_path(job.version, job.revision, job.shard, new_unique()), encode_seal(seal))
    return seal


def digest_blocks(encoder: Encoder, blocks: Iterator[RowBlock], progress: Progress = lambda _: None) -> ShardDigest:
    """Both digests of a merged view, block by block."""
    digest = ShardDigest(encoder.layout, encoder.model_id, encoder.lsh_version)
    for block in blocks:
        digest.update(block)
        progress(digest.rows)
    return digest
