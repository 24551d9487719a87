"""Replay: a directory of its own and fresh consumers read the topics to a fixed offset vector; the digest is that of live processing (I4, B15).

Of the running system a replay uses only topics, the control log, a manifest, a checkpoint, and a snapshot if one was asked for as base. It uses no shard
directory, no part, no delta, and no consumer group. It has other batches than the worker, reads topics sequentially, and encodes every row again. So an equal
digest says that the index is a function of the log. Equal data digests with different row digests mean other arithmetic (compare the encoder fingerprints),
not other data.

Invariants: the offsets of the replay are in the same WriteBatch as the applied records, so after a kill it continues there. The plan is in the
directory, so a replay "to the end" has the same end when it continues later.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.clock import Clock
from infra.figures import Figures, Measured
from infra.files import write_file_durably
from infra.kafka.log_gaps import with_skipped_offsets
from infra.kafka.reader import SourceRecord, read_topic
from schemas.errors import Misconfigured
from schemas.fields import corrupted_as
from schemas.index.digest import ShardDigest, version_digest
from schemas.index.layout import RowBlock
from schemas.index.manifest import Manifest, Seal
from schemas.index.shard_snapshot import snapshot_manifest_path
from schemas.topics import SHARD_TOPICS
from streams.builders.full_part import encode_blocks
from streams.core.replay_plan import ShardReplay
from streams.encoder import RowEncoder
from streams.replay.points import ReplayPlan, ReplaySource
from streams.shard.shard import Shard, open_shard
from streams.shard.shard_reader import open_shard_reader
from streams.shard.snapshot_files import decode_stored_snapshot, restore_snapshot

DEFAULT_BATCH_RECORDS = 97  # not the worker's, on purpose
_PLAN_NAME = "replay.json"

REPLAY = Measured(
    "replay", {"digest_equal": "1 or 0", "data_digest_equal": "1 or 0", "items": "count", "records": "records", "replay_s": "s"}
)

Progress = Callable[[str, int, int], None]  # what, done, of how many
Keep = Callable[[int, Iterator[RowBlock], Mapping[str, int]], None]  # given a shard, reads all of its rows; and its next offsets


@dataclass(frozen=True, slots=True)
class ReplayedShard:
    """One shard's outcome, with its seal if the replay ended at one."""

    shard: int
    records: int
    rows: int
    digest: str
    data_digest: str
    source_offsets: Mapping[str, int]
    seal: Seal | None = None

    @property
    def equal(self) -> bool | None:
        """Whether every row is the same as in the seal, to the bit; None: there is nothing to compare with."""
        seal = self.seal
        return None if seal is None else (self.rows, self.digest, self.data_digest) == (seal.rows, seal.digest, seal.data_digest)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay's outcome, with the manifest it was compared with. `encoder_fingerprint` is this process's."""

    manifest: Manifest | None
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
        return self.manifest is not None and self.digest == self.manifest.digest

    @property
    def data_digest_equal(self) -> bool:
        """Whether the replay has exactly the inputs of the version."""
        return self.manifest is not None and self.data_digest == self.manifest.data_digest


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """How fast a replay runs; none of it changes a row. rate: records a second at most, None = as fast as possible."""

    batch_records: int = DEFAULT_BATCH_RECORDS
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The plan of an earlier attempt; `seal`: the V.R that it is compared with, "" = none."""

    shards: tuple[ShardReplay, ...]
    seal: str


def keep_plan(directory: Path, plan: ReplayPlan, asked: Mapping[str, str]) -> None:
    """Puts the plan into a new directory. Raises Misconfigured (`directory_not_empty`, `replay_directory`: it cannot be written)."""
    said = {"asked": dict(asked), "seal": plan.seal, "shards": [dataclasses.asdict(s) for s in plan.shards]}
    try:
        if directory.exists() and any(directory.iterdir()):
            raise Misconfigured("directory_not_empty", f"{directory} is not empty and holds no replay; give a new directory")
        write_file_durably(directory / _PLAN_NAME, json.dumps(said, default=dict).encode())
    except OSError as error:
        raise _no_directory(directory, error) from error


def _no_directory(directory: Path, error: OSError) -> Misconfigured:
    return Misconfigured("replay_directory", f"{directory} cannot be worked in: {error}; give another directory")


def read_plan(directory: Path, asked: Mapping[str, str]) -> KeptPlan | None:
    """The plan of an interrupted replay in `directory`, with which it continues; None if there is no such plan.

    Raises Misconfigured (`other_replay`: something else was asked for then; `replay_directory`), Corrupted (`bad_replay_plan`).
    """
    path = directory / _PLAN_NAME
    try:
        if not path.exists():
            return None
        raw = path.read_bytes()
    except OSError as error:
        raise _no_directory(directory, error) from error
    with corrupted_as("bad_replay_plan", f"{path} does not read", "give a new directory"):
        said = json.loads(raw)
        kept = KeptPlan(tuple(ShardReplay(**one) for one in said["shards"]), said["seal"])
        found = said["asked"]
    if other := [f"{name} {found.get(name)}, not {value}" for name, value in asked.items() if found.get(name) != value]:
        raise Misconfigured("other_replay", f"{directory} holds a replay with {'; '.join(other)}: ask for that, or give a new directory")
    return kept


def run_replay(
    source: ReplaySource,
    plan: ReplayPlan,
    encoder: RowEncoder,
    directory: Path,
    clock: Clock,
    pace: ReplayPace = ReplayPace(),
    progress: Progress = lambda *_: None,
    keep: Keep | None = None,
) -> Replayed:
    """Replays every shard of a plan in `directory`, where an earlier attempt is continued. `keep` gets the rows of each shard."""
    shards = []
    for one in plan.shards:
        apply_shard(source, one, directory, clock, pace, progress)
        seal = plan.manifest.seals[one.shard] if plan.manifest is not None else None
        shards.append(_encode_shard(one, encoder, directory, seal, progress, keep))
    return Replayed(plan.manifest, encoder.fingerprint, tuple(shards))


def apply_shard(
    source: ReplaySource,
    one: ShardReplay,
    directory: Path,
    clock: Clock,
    pace: ReplayPace,
    progress: Progress,
    records_max: int | None = None,
) -> None:
    """Applies the shard's part of the log, or the next `records_max` records of it, from where an earlier attempt stopped; then takes a checkpoint."""
    checkpoint = checkpoint_place(directory, one.shard)
    shutil.rmtree(checkpoint, ignore_errors=True)
    with contextlib.closing(_open(source, one, directory, clock)) as shard:
        for version in shard.versions:  # those of a snapshot: a replay keeps rows of no version
            shard.stop_version(version)
        at, began_s = shard.next_offsets, clock.monotonic()
        done = before = one.records - sum(one.end[topic] - at[topic] for topic in SHARD_TOPICS)
        with contextlib.closing(_read_shard(source, one.shard, at, one.end)) as read:
            records = itertools.islice(read, records_max)
            while batch := list(itertools.islice(records, pace.batch_records)):
                shard.apply(batch)
                done += len(batch)
                progress(f"shard {one.shard}: apply", done, one.records)
                if pace.rate is not None:
                    time.sleep(max(0.0, began_s + (done - before) / pace.rate - clock.monotonic()))
        shard.create_checkpoint(checkpoint)


def _open(source: ReplaySource, one: ShardReplay, directory: Path, clock: Clock) -> Shard:
    """The shard of the replay as an earlier attempt left it, else from its base."""
    place = directory / f"{one.shard:05d}"
    if one.snapshot and not place.exists():
        restore_snapshot(source.store, decode_stored_snapshot(source.store, snapshot_manifest_path(one.shard, one.snapshot)), place)
    return open_shard(place, one.shard, source.init, clock)


def _encode_shard(
    one: ShardReplay, encoder: RowEncoder, directory: Path, seal: Seal | None, progress: Progress, keep: Keep | None
) -> ReplayedShard:
    """Rows of everything that the shard holds, and their digests."""
    checkpoint = checkpoint_place(directory, one.shard)
    digest = ShardDigest(encoder.layout, encoder.model_id, encoder.lsh_version)
    with open_shard_reader(checkpoint) as reader:
        offsets = reader.next_offsets
        assert offsets == dict(one.end), f"replayed to {offsets}, the plan says {one.end}"

        def digested() -> Iterator[RowBlock]:
            for block in encode_blocks(encoder, reader.scan_blocks()):
                digest.update(block)
                progress(f"shard {one.shard}: encode", digest.rows, max(digest.rows, seal.rows if seal is not None else 0))
                yield block

        if keep is not None:
            keep(one.shard, digested(), offsets)
        else:
            collections.deque(digested(), maxlen=0)
    shutil.rmtree(checkpoint)
    return ReplayedShard(one.shard, one.records, digest.rows, digest.hexdigest, digest.data_hexdigest, offsets, seal)


def checkpoint_place(directory: Path, shard: int) -> Path:
    """Where the checkpoint of a replayed shard lies while it is needed."""
    return directory / f"{shard:05d}-checkpoint"


def _read_shard(source: ReplaySource, shard: int, start: Mapping[str, int], end: Mapping[str, int]) -> Generator[SourceRecord]:
    """The shard's records, one topic after another. To be closed: it holds a consumer."""
    for topic in SHARD_TOPICS:
        if end[topic] > start[topic]:
            begin, until = start[topic], end[topic]
            records = read_topic(source.bootstrap, topic, start={shard: begin}, end={shard: until}, prefix=source.prefix)
            yield from with_skipped_offsets(records, source.bootstrap, source.prefix, topic, shard, begin, until)


# --- figures -----------------------------------------------------------------------------------------------------------


def replay_figures(outcome: Replayed, version: int | None, batch_size: int, seconds: float) -> Figures:
    """What a replay found; `version`: as which it was adopted."""
    manifest = outcome.manifest
    config: dict[str, Any] = {
        "batch_size": batch_size,
        "digest": outcome.digest,
        "data_digest": outcome.data_digest,
        "source_offsets": {s.shard: dict(s.source_offsets) for s in outcome.shards},
        "encoder_fingerprint": outcome.encoder_fingerprint,
    }
    if version is not None:
        config["adopted"] = version
    if manifest is not None:
        config |= {
            "version": f"{manifest.version}.{manifest.revision}",
            "live_digest": manifest.digest,
            "live_data_digest": manifest.data_digest,
            "live_encoder_fingerprint": manifest.encoder_fingerprint,
        }
    figures = Figures(REPLAY, config)
    if manifest is not None:
        figures.add("digest_equal", int(outcome.digest_equal))
        figures.add("data_digest_equal", int(outcome.data_digest_equal))
    figures.add("items", sum(s.rows for s in outcome.shards))
    figures.add("records", sum(s.records for s in outcome.shards))
    figures.add("replay_s", seconds)
    return figures
