"""From what people write as --from and --to to offsets for every shard."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from infra.index.parts import read_manifest
from infra.index.store import IndexStore
from infra.kafka.admin import check_partitions, fetch_topics, offsets_at, other_topic
from infra.kafka.security import Bootstrap
from schemas.errors import Incompatible, Misconfigured, Unavailable
from schemas.index.control import ControlState, Init
from schemas.index.manifest import Manifest, decode_manifest, manifest_path
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.topics import SHARD_TOPICS
from streams.core.replay_plan import Begin, Offsets, ShardLog, ShardReplay, plan_shard_replay
from streams.core.shard_state import encode_identity
from streams.shard.log_ends import fetch_log_ranges
from streams.shard.snapshot_files import list_snapshots

_SEAL = re.compile(r"\d{1,18}\.\d{1,9}(-[0-9a-f]{8}.*)?")
_OFFSET = re.compile(r"\d{1,18}")
_VECTOR = re.compile(r"(?:[a-z-]+=\d{1,18}(?:,\d{1,18})*)(?:;[a-z-]+=\d{1,18}(?:,\d{1,18})*)*")


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of that time (milliseconds since 1970) or later."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The same offset in every partition of both topics, or the partition's end where that is lower."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtVector:
    """An offset for every shard, by topic."""

    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Named:
    """earliest, snapshot, live, end, or a seal as V.R or a version token."""

    name: str


Point = AtTime | AtOffset | AtVector | Named


def parse_point(text: str, names: Sequence[str], seals: bool) -> Point:
    """A point as people write it. Raises Misconfigured (`replay_point`) with the possible forms."""
    if text in names or (seals and _SEAL.fullmatch(text)):
        return Named(text)
    if _OFFSET.fullmatch(text):
        return AtOffset(int(text))
    if _VECTOR.fullmatch(text):
        vector = {topic: tuple(map(int, some.split(","))) for topic, _, some in (one.partition("=") for one in text.split(";"))}
        if set(vector) == set(SHARD_TOPICS):
            return AtVector(vector)
    try:
        time = datetime.fromisoformat(text)
        # A broker takes a time before 1970 for "the newest" and "the oldest", or refuses it.
        return AtTime(max(0, int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)))
    except ValueError:
        possible = [
            *names,
            *(["V.R"] if seals else []),
            "an offset",
            "item-features=1,2;new-items=3,4 (one a shard)",
            "2026-01-31T12:00 (UTC)",
        ]
        raise Misconfigured("replay_point", f"{text!r} is no point of a log; give {', '.join(possible)}") from None


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Where a replay reads from."""

    bootstrap: Bootstrap
    prefix: str
    init: Init
    store: IndexStore


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The part of every shard. `manifest`: the one whose seals say where the shards end; None if no seal does."""

    shards: tuple[ShardReplay, ...]
    manifest: Manifest | None = None

    @property
    def seal(self) -> str:
        """The manifest's name as V.R, "" if absent."""
        return "" if self.manifest is None else f"{self.manifest.version}.{self.manifest.revision}"

    @property
    def records(self) -> int:
        """Records to read."""
        return sum(s.records for s in self.shards)


def open_replay_source(bootstrap: Bootstrap, prefix: str, store: IndexStore, state: ControlState) -> ReplaySource:
    """Raises Incompatible: an empty index (`no_index`); other topics than those that the index was built from (`other_topic`, `other_partitions`)."""
    if state.init is None:
        raise Incompatible("no_index", f"the index store {store.url} is empty; start a worker first")
    topics, known = fetch_topics(bootstrap, prefix), state.init.topic_ids
    check_partitions(topics, prefix, state.init.shards)
    for topic in SHARD_TOPICS:
        found = topics[topic].topic_id if topic in topics else ""
        if not found or known.get(topic, found) != found:
            raise other_topic(prefix + topic, known.get(topic, "any"), found)
    return ReplaySource(bootstrap, prefix, state.init, store)


def choose_manifest(store: IndexStore, state: ControlState, to: str) -> Manifest:
    """`live`: the newest manifest of the version that is served; `V.R` or a version token: that revision's.

    Raises Unavailable (`no_version`, `missing_file`), Misconfigured (`replay_point`).
    """
    if to == "live":
        if state.current is None:
            raise Unavailable("no_version", "no version is live yet; publish a checkpoint and wait for it, or name a revision as V.R")
        return read_manifest(store, state.current)
    point = parse_point(to, (), seals=True)
    if not isinstance(point, Named):
        raise Misconfigured("replay_point", f"{to!r} is not `live`, <version>.<revision> or a version token; see `aif index list`")
    version, revision = (int(part) for part in to.partition("-")[0].split("."))
    status = state.versions.get(version)
    if status is None:
        raise Misconfigured("replay_point", f"the index has no version {version}; `aif index list` shows those that it has")
    newest = status.revision == revision
    raw = store.get(manifest_path(version, revision))
    manifest = decode_manifest(raw, status.manifest_sha256 if newest else None)
    digest, asked = hashlib.sha256(raw).hexdigest(), to.partition("-")[2]
    if asked and not digest.startswith(asked[:8]):
        raise Misconfigured(
            "replay_point", f"{to!r} is a token of another index: here {version}.{revision} is {version}.{revision}-{digest[:8]}"
        )
    return manifest


def plan_replay(source: ReplaySource, state: ControlState, start: str, to: str) -> ReplayPlan:
    """The plan of `--from` and `--to`. Raises as choose_manifest and streams/core/replay_plan.py do."""
    begin, end = parse_point(start, ("earliest", "snapshot"), seals=False), parse_point(to, ("live", "end"), seals=True)
    manifest = choose_manifest(source.store, state, end.name) if isinstance(end, Named) and end.name != "end" else None
    logs = fetch_logs(source)
    begins = Begin(
        begin == Named("earliest"), None if isinstance(begin, Named) else {n: _offsets(source, begin, log) for n, log in logs.items()}
    )
    if manifest is not None:
        ends = {seal.shard: dict(seal.source_offsets) for seal in manifest.seals}
    else:
        ends = {n: dict(log.end) if end == Named("end") else dict(_offsets(source, end, log)) for n, log in logs.items()}
    return ReplayPlan(tuple(plan_shard_replay(log, begins, ends[n]) for n, log in sorted(logs.items())), manifest)


def fetch_logs(source: ReplaySource) -> dict[int, ShardLog]:
    """What there is of every shard now."""
    ranges = fetch_log_ranges(source.bootstrap, source.prefix)
    return {
        n: ShardLog(n, {t: ranges[t][n].start for t in SHARD_TOPICS}, {t: ranges[t][n].end for t in SHARD_TOPICS}, _snapshots(source, n))
        for n in range(source.init.shards)
    }


def _snapshots(source: ReplaySource, shard: int) -> list[ShardSnapshot]:
    identity = encode_identity(shard, source.init).decode()
    found, _ = list_snapshots(source.store, shard)
    return [f.snapshot for f in found if f.snapshot.identity == identity]


def _offsets(source: ReplaySource, point: Point, log: ShardLog) -> Offsets:
    match point:
        case AtOffset(offset):
            return {topic: min(offset, log.end[topic]) for topic in SHARD_TOPICS}
        case AtTime(time_ms):
            return {topic: offsets_at(source.bootstrap, source.prefix + topic, time_ms)[log.shard] for topic in SHARD_TOPICS}
        case AtVector(vector):
            if wrong := {topic: len(some) for topic, some in vector.items() if len(some) != source.init.shards}:
                message = f"offsets for {wrong} shards, the index has {source.init.shards}: give one a shard, in their order"
                raise Misconfigured("replay_point", message)
            return {topic: vector[topic][log.shard] for topic in SHARD_TOPICS}
        case Named(name):
            raise AssertionError(name)
