"""What one micro-batch of a shard did, for those who count and send: numbers by topic, work by cause, seconds by stage.

None of this is stored: the counters that survive a crash are in the shard.
"""

from collections import Counter
from dataclasses import dataclass, field

from infra.clock import Clock
from streams.core.shard_state import TopicCounts
from streams.shard.outbox import OutboxEntry


@dataclass(slots=True)
class BatchResult:
    """What one call of `apply` did: counts by topic, work by cause, and what it put into the outbox."""

    counts: dict[str, TopicCounts] = field(default_factory=dict)
    work: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, disposition)
    outbox: list[OutboxEntry] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)  # seconds by stage: decode, fold, rows, write
    record_times_ms: dict[str, list[int]] = field(default_factory=dict)  # of the records that were new, by topic

    @property
    def updates(self) -> int:
        """Updates consumed."""
        return sum(c.consumed for c in self.counts.values())


class StageWatch:
    """Seconds between laps, added to a result."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._at = clock, clock.monotonic()

    def lap(self, result: BatchResult, stage: str) -> None:
        """The time since the last lap, or since the beginning, was spent on `stage`."""
        now = self._clock.monotonic()
        result.stage_s[stage] = result.stage_s.get(stage, 0.0) + (now - self._at)
        self._at = now
