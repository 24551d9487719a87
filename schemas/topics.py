"""Every topic of the system with all its settings, as one table. `aif topics plan|apply` compares it with the broker.

Names here are without the deployment's prefix. N = shards of the index, M = user partitions; both fixed per index by its init entry.
Only user-features is compacted: with offsets that have no gaps, a gap is a hole and counts of updates are exact (A6, A8).
Retention is in hours; -1 keeps permanently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.limits import RECORD_BYTES_MAX

ITEM_FEATURES = "item-features"
NEW_ITEMS = "new-items"
MODEL_CHECKPOINTS = "model-checkpoints"
USER_FEATURES = "user-features"
USER_BEHAVIOURS = "user-behaviours"
IMPRESSIONS = "impressions"
INDEX_DELTAS = "index-deltas"
INDEX_EVENTS = "index-events"
SERVER_REPORTS = "server-reports"
ALLOCATION_OUTCOMES = "allocation-outcomes"
STATISTICS_REPORTS = "statistics-reports"
REPORTS = (SERVER_REPORTS, ALLOCATION_OUTCOMES, STATISTICS_REPORTS)  # no part of an index: what processes say of themselves
DEAD_LETTER_PREFIX = "dlq."

FOR_EVER = -1
SNAPSHOT_INTERVAL_HOURS = 24 * 3  # item topics keep at least twice this
RESEAL_INTERVAL_HOURS = 24  # index-deltas keeps at least three of these


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `partitions` is "N", "M" or a number."""

    name: str
    partitions: str | int
    retention_hours: int
    compacted: bool = False
    why: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def partition_count(self, shards: int, user_partitions: int) -> int:
        """Partitions for an index with N = shards and M = user_partitions."""
        return {"N": shards, "M": user_partitions}[self.partitions] if isinstance(self.partitions, str) else self.partitions

    def config(self) -> dict[str, str]:
        """Topic configuration for the broker."""
        retention_ms = -1 if self.retention_hours == FOR_EVER else self.retention_hours * 3_600_000
        return {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": str(retention_ms),
            "retention.bytes": "-1",
            "max.message.bytes": str(RECORD_BYTES_MAX + 64 * 1024),
            "message.timestamp.type": "CreateTime",
            **self.extra,
        }


# One clock for all writers, because theirs may be wrong. A broker refuses records of more than an hour ahead, and removes those of days ago, applied or not.
_BROKERS_CLOCK = {"message.timestamp.type": "LogAppendTime"}
_INPUTS = (
    Topic(ITEM_FEATURES, "N", 2 * SNAPSHOT_INTERVAL_HOURS, why="features and existence of items", extra=_BROKERS_CLOCK),
    Topic(NEW_ITEMS, "N", 2 * SNAPSHOT_INTERVAL_HOURS, why="multimodal embeddings of items", extra=_BROKERS_CLOCK),
    Topic(MODEL_CHECKPOINTS, 1, FOR_EVER, why="pointers to checkpoints; the offset is the version"),
    Topic(USER_FEATURES, "M", FOR_EVER, compacted=True, why="profiles of users, and statistics over them"),
    Topic(USER_BEHAVIOURS, "M", FOR_EVER, why="the one central sequence log"),
    Topic(IMPRESSIONS, "M", 30 * 24, why="shown items and their outcomes"),
)
_OUTPUTS = (
    Topic(INDEX_DELTAS, "N", 3 * RESEAL_INTERVAL_HOURS, why="row changes of versions that receive increments", extra=_BROKERS_CLOCK),
    Topic(INDEX_EVENTS, 1, 7 * 24, why="events of versions", extra=_BROKERS_CLOCK),
    Topic(SERVER_REPORTS, 1, 24, why="reports of servers on the served version", extra=_BROKERS_CLOCK),
    Topic(ALLOCATION_OUTCOMES, "M", 7 * 24, why="decisions of servers on requests, and their costs", extra=_BROKERS_CLOCK),
    Topic(STATISTICS_REPORTS, 1, 24, why="statistics that are kept current", extra=_BROKERS_CLOCK),
)
# The largest record of an input must also fit together with the headers that give the reason.
_WITH_REASONS = {"max.message.bytes": str(RECORD_BYTES_MAX + 128 * 1024), **_BROKERS_CLOCK}
TOPICS: tuple[Topic, ...] = (
    *_INPUTS,
    *_OUTPUTS,
    *(Topic(DEAD_LETTER_PREFIX + t.name, 1, FOR_EVER, why=f"rejected records of {t.name}", extra=_WITH_REASONS) for t in _INPUTS),
)

SHARD_TOPICS = (ITEM_FEATURES, NEW_ITEMS)  # the inputs of one shard, in the order of its offset vectors

assert all(t.retention_hours == FOR_EVER or t.retention_hours >= 2 * SNAPSHOT_INTERVAL_HOURS for t in TOPICS if t.name in SHARD_TOPICS)


def encode_headers(event_type: str, event_id: str, source: str, time_rfc3339: str) -> Sequence[tuple[str, bytes]]:
    """CloudEvents 1.0, Kafka binding, binary mode, plus the schema number of the payload. Publishers send them; readers need none."""
    pairs = {
        "ce_specversion": "1.0",
        "ce_type": event_type,
        "ce_id": event_id,
        "ce_source": source,
        "ce_time": time_rfc3339,
        "content-type": "application/json",
        "schema": "1",
    }
    return [(name, value.encode()) for name, value in pairs.items()]
