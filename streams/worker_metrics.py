"""The worker's numbers for Prometheus: what every micro-batch did, and lag against the end of the partitions.

Here: from results and offsets to metrics. Not here: the table of names and the page (infra/metrics.py). The exact counts are the shards' own
(streams/shard.py); these begin at 0 with the process.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from infra.kafka.admin import end_offsets
from infra.metrics import Metrics
from schemas.topics import SHARD_TOPICS
from streams.shard import BatchResult
from streams.shard_rows import ENCODED, REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES

EndOffsets = Callable[[str], Mapping[int, int]]  # by whole topic name
_SKIPPED = (REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES)


class WorkerMetrics:
    """Thread-safe, as its metrics are."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def count(self, shard: int, result: BatchResult, seconds: float) -> None:
        """One micro-batch of a shard."""
        counter = self._metrics.counter
        for topic, counts in result.counts.items():
            counter("updates_consumed").labels(topic, shard).inc(counts.consumed)
            counter("updates_applied").labels(topic, shard).inc(counts.applied)
            counter("updates_superseded").labels(topic, shard).inc(counts.superseded)
        for (topic, disposition), count in result.dead_letters.items():
            counter("dead_letters").labels(topic, disposition).inc(count)
        counter("rows_encoded").labels(shard).inc(result.work[ENCODED])
        counter("rows_skipped").labels(shard).inc(sum(result.work[cause] for cause in _SKIPPED))
        self._metrics.histogram("micro_batch_seconds").labels(shard).observe(seconds)

    def show_offsets(self, prefix: str, shards: Sequence[tuple[int, Mapping[str, int], int]], ends: EndOffsets) -> None:
        """Offsets and lag of (shard, next offsets, newest record time in ms). Lag in seconds is the age of the newest applied record while behind."""
        for topic in SHARD_TOPICS:
            end = ends(prefix + topic)
            for shard, next_offsets, source_ms in shards:
                lag = max(0, end[shard] - next_offsets[topic])
                self._metrics.gauge("shard_offset").labels(topic, shard).set(next_offsets[topic])
                self._metrics.gauge("lag_records").labels(topic, shard).set(lag)
                self._metrics.gauge("lag_seconds").labels(topic, shard).set(max(0.0, time.time() - source_ms / 1000) if lag else 0.0)

    def show_wanted(self, version: int | None) -> None:
        """The version that builds."""
        self._metrics.gauge("version_wanted").set(-1 if version is None else version)


def fetch_ends(bootstrap: str) -> EndOffsets:
    """End offsets of a topic by its whole name."""
    return lambda topic: end_offsets(bootstrap, topic)
