"""What a shard knows about itself besides its items: next offsets, counters, sequences, its versions, its identity; and their bytes.

Invariant (I1): per topic consumed = applied + superseded + dead_lettered, counted in updates, written in the batch that does them.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.fields import corrupted_as, read_fields
from schemas.index.control import Init
from schemas.index.layout import FORMAT
from schemas.index.manifest import Part
from schemas.topics import SHARD_TOPICS

# What to do about a shard's directory with an entry that does not read, for messages.
SHARD_REPAIR = "restart the worker: it sets the shard's directory aside and restores the shard from a snapshot or the log"
COMPONENTS_FORMAT = 4  # of the bytes in item.py and streams/shard/outbox.py; a directory of another one is refused, not misread


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """Updates of one topic: what came in and what became of each."""

    consumed: int = 0
    applied: int = 0
    superseded: int = 0
    dead_lettered: int = 0

    def __add__(self, other: "TopicCounts") -> "TopicCounts":
        return TopicCounts(
            self.consumed + other.consumed,
            self.applied + other.applied,
            self.superseded + other.superseded,
            self.dead_lettered + other.dead_lettered,
        )


Counters = Mapping[str, TopicCounts]  # by topic


@dataclass(frozen=True)
class ShardVersion:
    """One version that this shard keeps rows for (its `building v`, and what came after).

    behind                 the worker's encoder is another one than the version's: components go on, rows do not (B5)
    want_end_offsets       end of the partitions when the shard first saw the version: it seals only after them (B7)
    building_from_offsets  next offsets at which its increments begin, at first and after a full part: no later part may be older (B6)
    full                   its full part once built; sealed_revision: last revision this shard has sealed, -1 = none
    sealed_increments      rows of the last sealed incremental part, 0 after the full part was written again
    built                  rows of the full part by cause: computed, taken over
    """

    version: int
    checkpoint_sha256: str
    encoder_fingerprint: str
    behind: bool = False
    want_end_offsets: Mapping[str, int] = field(default_factory=dict)
    building_from_offsets: Mapping[str, int] = field(default_factory=dict)
    full: Part | None = None
    sealed_revision: int = -1
    sealed_increments: int = 0
    built: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardState:
    """What changes with every micro-batch. `source_ms` is the record time of the newest source record, 0 before the first.

    work: by version (as text) and cause, rows computed and work that was not needed, since the version began here (streams/shard/shard.py).
    """

    next_offsets: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SHARD_TOPICS, 0))
    counters: Counters = field(default_factory=lambda: {topic: TopicCounts() for topic in SHARD_TOPICS})
    next_outbox: int = 0
    next_delta: int = 0
    source_ms: int = 0
    work: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def delta_offsets(self) -> tuple[int, int]:
        """Next offsets in the order of a delta header."""
        return self.next_offsets[SHARD_TOPICS[0]], self.next_offsets[SHARD_TOPICS[1]]


def fold_work(state: ShardState, done: Mapping[int, Mapping[str, int]]) -> ShardState:
    """The state with the work of one batch, by version; versions that did not take part are over and forgotten."""
    work = {}
    for version, causes in done.items():
        before = state.work.get(str(version), {})
        work[str(version)] = {cause: before.get(cause, 0) + causes.get(cause, 0) for cause in before.keys() | causes.keys()}
    return dataclasses.replace(state, work=work)


_COUNTS = tuple(f.name for f in dataclasses.fields(TopicCounts))
_STATE = tuple(f.name for f in dataclasses.fields(ShardState))
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode_shard_state(state: ShardState) -> bytes:
    """JSON of a state. Field by field: it is written with every micro-batch, and `asdict` would copy everything first."""
    counters = {t: {name: getattr(counts, name) for name in _COUNTS} for t, counts in state.counters.items()}
    fields = {name: getattr(state, name) for name in _STATE} | {"next_offsets": dict(state.next_offsets), "counters": counters}
    return _JSON.encode(fields).encode()


def decode_shard_state(raw: bytes) -> ShardState:
    """Raises Corrupted (`bad_shard_state`)."""
    with corrupted_as("bad_shard_state", "the state of the shard does not read", SHARD_REPAIR):
        return read_fields(ShardState, {"counters": None, "next_offsets": None} | json.loads(raw))  # both are needed


def encode_shard_version(version: ShardVersion) -> bytes:
    """JSON of a version's entry."""
    return _JSON.encode(dataclasses.asdict(version)).encode()


def decode_shard_version(raw: bytes) -> ShardVersion:
    """Raises Corrupted (`bad_shard_version`)."""
    with corrupted_as("bad_shard_version", "a version's entry in the shard does not read", SHARD_REPAIR):
        return read_fields(ShardVersion, json.loads(raw), least=-1)


def encode_identity(number: int, init: Init) -> bytes:
    """What a directory belongs to: the shard's number, N, id kind, format, topics (A1). Another identity is another index."""
    identity: dict[str, Any] = {
        "format": FORMAT,
        "components": COMPONENTS_FORMAT,
        "shard": number,
        "shards": init.shards,
        "id_kind": str(init.id_kind),
        "topics": {topic: [init.topics.get(topic, topic), init.topic_ids.get(topic, "")] for topic in SHARD_TOPICS},
    }
    return _JSON.encode(identity).encode()
