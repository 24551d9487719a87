"""Replay: a fresh directory and fresh consumers read the topics from offset 0 to a seal's source offsets; its digest must be the seal's (I4, B15).

Here: which manifest is compared, the checks before the first record, the way of one shard. Not here: applying (shard.py), rows (encoder.py, builder.py),
the command (replay_cli.py).

Nothing of the running system is used but its topics, its control log, the manifest and the checkpoint that the manifest names: no shard
directory, no part, no delta, no consumer group. Batches and the interleaving of topics are others than the worker's (one topic after the
other), and every row is encoded anew: an equal digest says that the index is a function of the log.
Equal data digests with different row digests mean another arithmetic (look at the encoder fingerprints), not other data.
"""

import itertools
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.clock import Clock
from infra.index_parts import read_manifest
from infra.index_store import IndexStore
from infra.kafka.admin import start_offsets, topic_ids
from infra.kafka.reader import SourceRecord, read_topic
from schemas.errors import Incompatible, Misconfigured, Unavailable
from schemas.index.control import ControlState, Init
from schemas.index.digest import version_digest
from schemas.index.manifest import Manifest, Seal, decode_manifest, manifest_path
from schemas.topics import SHARD_TOPICS
from streams.builder import encode_blocks
from streams.encoder import EncoderCache, RowEncoder
from streams.sealer import digest_blocks
from streams.shard import open_shard
from streams.shard_reader import open_shard_reader

DEFAULT_BATCH_RECORDS = 97  # not the worker's, on purpose
_SEAL = re.compile(r"(\d{1,18})\.(\d{1,9})(-[0-9a-f]{8}.*)?")

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, slots=True)
class ReplayedShard:
    """One shard's outcome beside its seal."""

    shard: int
    records: int
    rows: int
    digest: str
    data_digest: str
    seal: Seal

    @property
    def equal(self) -> bool:
        """Whether every row is the same, to the bit."""
        return (self.rows, self.digest, self.data_digest) == (self.seal.rows, self.seal.digest, self.seal.data_digest)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay's outcome beside the manifest it was compared with. `encoder_fingerprint` is this process's."""

    manifest: Manifest
    encoder_fingerprint: str
    shards: tuple[ReplayedShard, ...]

    @property
    def digest(self) -> str:
        """Digest over all rows of the replay."""
        return version_digest([s.digest for s in self.shards])

    @property
    def data_digest(self) -> str:
        """Digest over all inputs of the replay."""
        return version_digest([s.data_digest for s in self.shards])

    @property
    def digest_equal(self) -> bool:
        """Whether the replay has exactly the rows of the version."""
        return self.digest == self.manifest.digest

    @property
    def data_digest_equal(self) -> bool:
        """Whether the replay has exactly the inputs of the version."""
        return self.data_digest == self.manifest.data_digest


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Where a replay reads from."""

    bootstrap: str
    prefix: str
    init: Init
    store: IndexStore


def choose_manifest(store: IndexStore, state: ControlState, to: str) -> Manifest:
    """`live`: the newest manifest of the version that is served; `V.R` or a version token: that revision's.

    Raises Unavailable (`no_version`, `missing_file`), Misconfigured (`bad_seal_name`), Incompatible (`no_index`).
    """
    if state.init is None:
        raise Incompatible("no_index", f"the index store {store.url} is empty; start a worker first")
    if to == "live":
        if state.current is None:
            raise Unavailable("no_version", "no version is live yet; publish a checkpoint and wait for it, or name a revision as V.R")
        return read_manifest(store, state.current)
    named = _SEAL.fullmatch(to)
    if named is None:
        raise Misconfigured("bad_seal_name", f"{to!r} is not `live`, <version>.<revision> or a version token; see `aif index list`")
    version, revision = int(named[1]), int(named[2])
    status = state.versions.get(version)
    newest = status is not None and status.revision == revision
    return decode_manifest(store.get(manifest_path(version, revision)), status.manifest_sha256 if status is not None and newest else None)


def check_log(source: ReplaySource) -> None:
    """Raises Incompatible: other topics than the index's (`other_topic`), or a log that has lost its beginning (`log_start_gone`)."""
    found = topic_ids(source.bootstrap, source.prefix)
    for topic in SHARD_TOPICS:
        if topic not in found or source.init.topic_ids.get(topic, found[topic]) != found[topic]:
            raise Incompatible(
                "other_topic",
                f"{source.prefix}{topic} has id {found.get(topic, 'none')}, the index was built from {source.init.topic_ids.get(topic)}; "
                "use the broker and prefix of this index",
            )
        oldest = start_offsets(source.bootstrap, source.prefix + topic)
        gone = {p: offset for p, offset in sorted(oldest.items()) if offset > 0 and p < source.init.shards}
        if gone:
            raise Incompatible(
                "log_start_gone",
                f"{source.prefix}{topic} begins at {gone} (partition: oldest retained offset), not at 0: a replay from the log start "
                "needs all of it; lengthen the retention, or replay from a shard snapshot",
            )


def run_replay(
    source: ReplaySource,
    manifest: Manifest,
    directory: Path,
    clock: Clock,
    batch_records: int = DEFAULT_BATCH_RECORDS,
    progress: Progress = lambda *_: None,
) -> Replayed:
    """Replays every shard of a manifest in `directory`, which must be empty. Raises Misconfigured (`directory_not_empty`) and as check_log."""
    if directory.exists() and any(directory.iterdir()):
        raise Misconfigured("directory_not_empty", f"{directory} is not empty; a replay starts from nothing, give it a new directory")
    check_log(source)
    encoder = EncoderCache(source.store).get(manifest.version, manifest.checkpoint_sha256)
    shards = tuple(_replay_shard(source, encoder, seal, directory, clock, batch_records, progress) for seal in manifest.seals)
    return Replayed(manifest, encoder.fingerprint, shards)


def _replay_shard(
    source: ReplaySource, encoder: RowEncoder, seal: Seal, directory: Path, clock: Clock, batch_records: int, progress: Progress
) -> ReplayedShard:
    """Applies the shard's part of the log to a fresh shard, then encodes what it holds."""
    total, done = sum(seal.source_offsets.values()), 0
    checkpoint = directory / f"{seal.shard:05d}-checkpoint"
    shard = open_shard(directory / f"{seal.shard:05d}", seal.shard, source.init, clock)
    try:
        for batch in _batches(_read_shard(source, seal.shard, seal.source_offsets), batch_records):
            shard.apply(batch)
            done += len(batch)
            progress(f"shard {seal.shard}: apply", done, total)
        shard.create_checkpoint(checkpoint)
    finally:
        shard.close()
    with open_shard_reader(checkpoint) as reader:
        assert reader.next_offsets == dict(seal.source_offsets), f"replayed to {reader.next_offsets}, the seal says {seal.source_offsets}"
        blocks = encode_blocks(encoder, reader.scan_items())
        digest = digest_blocks(encoder, blocks, lambda rows: progress(f"shard {seal.shard}: encode", rows, max(rows, seal.rows)))
    shutil.rmtree(checkpoint)
    return ReplayedShard(seal.shard, done, digest.rows, digest.hexdigest, digest.data_hexdigest, seal)


def _read_shard(source: ReplaySource, shard: int, ends: Mapping[str, int]) -> Iterator[SourceRecord]:
    """The shard's records up to the ends, one topic after the other."""
    for topic in SHARD_TOPICS:
        if ends[topic] > 0:
            yield from read_topic(source.bootstrap, topic, start={shard: 0}, end={shard: ends[topic]}, prefix=source.prefix)


def _batches(records: Iterator[SourceRecord], size: int) -> Iterator[list[SourceRecord]]:
    while batch := list(itertools.islice(records, size)):
        yield batch
