"""The worker's numbers for Prometheus: what every micro-batch did, and lag against the end of the partitions.

The exact counts are the shards' own (streams/shard/shard.py); these begin at 0 with the process.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from infra.clock import Clock, SystemClock
from infra.metrics import Metrics
from infra.rocks import DiskFacts
from schemas.index.lifecycle import State
from schemas.index.manifest import ENCODED, WORK_SKIPPED
from schemas.topics import SHARD_TOPICS
from streams.shard.batch_result import BatchResult

EndOffsets = Callable[[str], Mapping[int, int]]  # by whole topic name
Place = tuple[str, int]  # topic, shard
_SEEN_MAX = 1_000  # observations of one partition's end that are kept
_CLOCK_AHEAD_MS = 1_000


class LagClock:
    """How long the oldest record not yet applied has been there, from observations of a partition's end: exact to the time between two.

    Not from record times: a publisher's clock may be off, and the newest applied record of a quiet topic is old without any lag.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque()  # (end offset, when it was first seen), both ascending

    def lag_s(self, next_offset: int, end: int, now: float) -> float:
        """Seconds since the record at `next_offset` was first seen; 0 if absent. `now` is monotonic."""
        while self._seen and self._seen[0][0] <= next_offset:
            self._seen.popleft()
        newest = self._seen[-1][0] if self._seen else next_offset
        if end > newest and len(self._seen) < _SEEN_MAX:
            self._seen.append((end, now))
        return now - self._seen[0][1] if self._seen else 0.0


class WorkerMetrics:
    """Thread-safe, as its metrics are."""

    def __init__(self, metrics: Metrics, clock: Clock | None = None) -> None:
        self._metrics, self._clock = metrics, clock or SystemClock()
        self._clocks: dict[Place, LagClock] = {}  # of the shards shown now
        self._shown: dict[str, frozenset[tuple[object, ...]]] = {}  # labels of each gauge
        self.show_versions(None, (), (), {})
        self.note_answer()
        metrics.gauge("broker_silent_seconds").set_function(lambda: self._clock.monotonic() - self._answered_s)

    def note_answer(self) -> None:
        """The broker has answered just now."""
        self._answered_s = self._clock.monotonic()

    def show_topics_gone(self, count: int) -> None:
        """How many topics of the index the broker does not have."""
        self._metrics.gauge("topics_gone").set(count)

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
        for cause in WORK_SKIPPED & result.work.keys():
            counter("work_skipped").labels(shard, cause).inc(result.work[cause])
        self._metrics.histogram("micro_batch_seconds").labels(shard).observe(seconds)
        for stage, spent_s in result.stage_s.items():
            self._metrics.histogram("batch_stage_seconds").labels(stage).observe(spent_s)
        self._count_ages(result.record_times_ms)

    def _count_ages(self, times_ms: Mapping[str, Sequence[int]]) -> None:
        """How old records were when they were written, by the publishers' clocks against ours; one from the future counts as 0 old."""
        now_ms = self._clock.now_ms()
        for topic, times in times_ms.items():
            stored = self._metrics.histogram("stored_seconds").labels(topic)
            for time_ms in times:
                stored.observe(max(0, now_ms - time_ms) / 1_000)
            ahead = sum(time_ms - now_ms > _CLOCK_AHEAD_MS for time_ms in times)
            self._metrics.counter("clock_ahead").labels(topic).inc(ahead)

    def show_disk(self, shards: Mapping[int, DiskFacts]) -> None:
        """Size and compaction debt of every shard owned; those of a shard that was given away disappear."""
        for name in ("keys", "bytes", "compaction_debt_bytes", "table_files"):
            self._show(f"shard_{name}", {(shard,): getattr(facts, name) for shard, facts in shards.items()})

    def show_disk_faults(self, shards: Mapping[int, bool]) -> None:
        """1 for an owned shard whose disk takes no writes, else 0."""
        self._show("shard_disk_fault", {(shard,): waits for shard, waits in shards.items()})

    def show_offsets(self, prefix: str, shards: Sequence[tuple[int, Mapping[str, int]]], ends: EndOffsets, now: float) -> None:
        """Offsets and lag of every owned (shard, next offsets); those of a shard that was given away disappear. `now` is monotonic."""
        end_of = {topic: ends(prefix + topic) if shards else {} for topic in SHARD_TOPICS}
        places = {(topic, shard): (next_offsets[topic], end_of[topic][shard]) for topic in SHARD_TOPICS for shard, next_offsets in shards}
        self._clocks = {place: self._clocks.get(place) or LagClock() for place in places}
        self._show("shard_offset", {place: offset for place, (offset, _) in places.items()})
        self._show("lag_records", {place: max(0, end - offset) for place, (offset, end) in places.items()})
        self._show("lag_seconds", {place: self._clocks[place].lag_s(offset, end, now) for place, (offset, end) in places.items()})

    def _show(self, name: str, values: Mapping[tuple[object, ...], float]) -> None:
        """The values of a gauge by its labels; those that it had before and has no more disappear."""
        gauge = self._metrics.gauge(name)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        for gone in self._shown.get(name, frozenset()) - values.keys():
            gauge.remove(*gone)
        self._shown[name] = frozenset(values)

    def show_versions(self, wanted: int | None, states: Iterable[str], build_seconds: Sequence[float], rejected: Mapping[str, int]) -> None:
        """The version that builds, how many versions are in each state of the life cycle, new build times, and rejected checkpoints so far, by reason."""
        self._metrics.gauge("version_wanted").set(-1 if wanted is None else wanted)
        counts = Counter(states)
        for state in State:
            self._metrics.gauge("versions").labels(str(state)).set(counts[str(state)])
        for seconds in build_seconds:
            self._metrics.histogram("build_seconds").observe(seconds)
        for reason, count in dict(rejected).items():
            self._metrics.count_to("checkpoints_rejected", count, reason)
