"""Where the partitions of a shard begin and end at this moment.

A shard seals only after it has applied every record that the log had when it first saw the version (B7). A seal names the end of index-deltas before its
checkpoint (B8).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.security import Bootstrap
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets that a partition holds now: from `start` to before `end`."""

    start: int
    end: int


def fetch_log_ranges(bootstrap: Bootstrap, prefix: str) -> dict[str, dict[int, LogRange]]:
    """By source topic and partition."""
    ranges = {}
    for topic in SHARD_TOPICS:
        starts, ends = start_offsets(bootstrap, prefix + topic), end_offsets(bootstrap, prefix + topic)
        ranges[topic] = {p: LogRange(starts[p], ends[p]) for p in ends}
    return ranges


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where the topics of a shard end now, as the broker says."""

    bootstrap: Bootstrap
    prefix: str

    def sources_end(self, shard: int) -> Mapping[str, int]:
        """End offset of the shard's partition of every source topic."""
        return {topic: end_offsets(self.bootstrap, self.prefix + topic)[shard] for topic in SHARD_TOPICS}

    def deltas_end(self, shard: int) -> int:
        """End offset of the shard's partition of index-deltas."""
        return end_offsets(self.bootstrap, self.prefix + INDEX_DELTAS)[shard]
