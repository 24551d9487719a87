"""Where the partitions of a shard end at this moment.

It is needed twice: a shard seals only after it has applied what was there when it first saw the version (B7), and a seal names the end of index-deltas as
previously the seal's checkpoint (B8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from infra.kafka.admin import end_offsets
from infra.kafka.security import Bootstrap
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS


class LogEnds(Protocol):
    """Where the topics of a shard end now."""

    def sources_end(self, shard: int) -> Mapping[str, int]:
        """End offset of the shard's partition of every source topic."""

    def deltas_end(self, shard: int) -> int:
        """End offset of the shard's partition of index-deltas."""


@dataclass(frozen=True, slots=True)
class KafkaLogEnds:
    """Ends of the logs as the broker says."""

    bootstrap: Bootstrap
    prefix: str

    def sources_end(self, shard: int) -> Mapping[str, int]:
        """See LogEnds."""
        return {topic: end_offsets(self.bootstrap, self.prefix + topic)[shard] for topic in SHARD_TOPICS}

    def deltas_end(self, shard: int) -> int:
        """See LogEnds."""
        return end_offsets(self.bootstrap, self.prefix + INDEX_DELTAS)[shard]
