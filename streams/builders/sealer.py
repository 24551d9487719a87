"""The seal of one shard of a revision: a frozen, complete, checkable view of it (protocol B7, B8).

Order, in `read_seal_point`, `prepare_seal` and `write_seal`:
1. the end offset of the shard's partition of index-deltas is read: a reader of this seal starts there;
2. then the ends of the source topics are read, and the shard continues until it has applied everything before them;
3. then a checkpoint of the shard is taken;
4. increments with tombstones, counts, source offsets, digests and the sample of items come from that checkpoint only, never from the live shard.

Every delta before the position is then in the checkpoint. If this owner sent it, it was written to the shard before it was sent. If another owner sent it, it
was made from records before the ends of step 2. Without step 2, a former owner that does not know yet that it has lost the shard would seal without rows that
the new owner has already sent. No reader of that seal would meet them again (found by simulation). With steps 1 and 3 exchanged, a delta sent between them
would be neither in the seal nor after it. Deltas that are still in the shard's outbox at the checkpoint come to a reader twice: in the exported increments,
and after the position. That is harmless, because a reader never lets the stamp of a component go back.

A shard may have several seals of one revision (a restart makes another one). Each is correct, and every file has a unique name.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.failpoints import failpoint
from infra.index.parts import new_unique, read_full_part, write_incremental_part
from infra.index.store import IndexStore
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.item_sample import KeySampler, encode_sample, sample_path
from schemas.index.manifest import Seal, checked_name, encode_seal, seal_path
from streams.builders.full_part import Progress, check_encoder
from streams.builders.jobs import SealJob
from streams.encoder_protocol import Encoder
from streams.shard.log_ends import LogEnds
from streams.shard.shard_reader import open_shard_reader


@dataclass(frozen=True, slots=True)
class SealPoint:
    """The delta position of a seal, and what the shard must have applied before the checkpoint of that seal."""

    delta_position: int
    source_ends: Mapping[str, int]

    def is_reached(self, next_offsets: Mapping[str, int]) -> bool:
        """Whether a shard at `next_offsets` holds every row whose delta lies before the position, whoever sent it."""
        return all(next_offsets.get(topic, 0) >= end for topic, end in self.source_ends.items())


def read_seal_point(log_ends: LogEnds, shard: int) -> SealPoint:
    """Steps 1 and 2: the position, *then* the ends of the sources."""
    delta_position = log_ends.deltas_end(shard)
    return SealPoint(delta_position, log_ends.sources_end(shard))


def prepare_seal(job: SealJob, point: SealPoint, create_checkpoint: Callable[[Path], None], into: Path) -> SealJob:
    """Step 3, once the shard has reached the point: the checkpoint of the shard in the new folder `into`."""
    create_checkpoint(into)
    return dataclasses.replace(job, delta_position=point.delta_position, checkpoint_directory=str(into))


def write_seal(store: IndexStore, encoder: Encoder, job: SealJob, progress: Progress = lambda _: None) -> Seal:
    """Step 4: writes the incremental part, a sample of items, and the seal file. Raises Incompatible (`other_encoder`), Corrupted, Unavailable."""
    check_encoder(encoder, job.encoder_fingerprint, job.version)
    with open_shard_reader(Path(job.checkpoint_directory)) as reader:
        incremental = write_incremental_part(store, job.version, job.revision, job.shard, reader.scan_increments(job.version))
        merged = merge_parts(encoder.layout, read_full_part(store, job.full, encoder.layout), reader.scan_increments(job.version))
        sampler, digest = KeySampler(), ShardDigest(encoder.layout, encoder.model_id, encoder.lsh_version)
        for block in merged:
            sampler.add(block.keys, block.stamps["input_hash"])
            digest.update(block)
            progress(digest.rows)
        sample = encode_sample(reader.find_inputs(sampler.keys))
        source_offsets, source_ms = reader.next_offsets, reader.state.source_ms
        work = {**reader.state.work.get(str(job.version), {}), **job.built}
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
        work,
    )
    store.put_bytes(sample_path(job.version, job.revision, job.shard, seal.data_digest), sample)
    failpoint("before-seal")
    raw = encode_seal(seal)
    store.put_bytes(seal_path(job.version, job.revision, job.shard, checked_name(new_unique(), raw)), raw)
    return seal
