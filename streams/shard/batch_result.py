"""The results of one micro-batch of a shard, for metrics and the sender: numbers by topic, work by cause, seconds by stage.

None of this is stored: the counters that survive a crash are in the shard.
"""

from collections import Counter
from dataclasses import dataclass, field

from streams.core.shard_state import TopicCounts
from streams.shard.outbox import OutboxEntry


@dataclass(slots=True)
class BatchResult:
    """The results of one call of `apply`: counts by topic, work by cause, and its new entries of the outbox."""

    at_s: float = 0.0  # monotonic
    counts: dict[str, TopicCounts] = field(default_factory=dict)
    work: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, disposition)
    outbox: list[OutboxEntry] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)  # seconds by stage: decode, fold, rows, write
    record_times_ms: dict[str, list[int]] = field(default_factory=dict)  # of the records that were new, by topic

    def lap(self, stage: str, now_s: float) -> None:
        """Spend the time since the last lap, or since `at_s`, on `stage`."""
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + now_s - self.at_s
        self.at_s = now_s
