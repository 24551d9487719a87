"""The state of the engine and its versions as metrics: which version answers, flips, loads, how fresh the rows are."""

import math
from collections.abc import Callable, Mapping, Sequence

from infra.metrics import Metrics
from serving.core.row_ages import RowAges
from serving.engine.loop.engine import Engine
from serving.engine.work import VersionReport
from serving.versions.version_follower import VersionFollower


class EngineMetrics:
    """`show` is called again and again, by one thread."""

    def __init__(
        self, metrics: Metrics, engine: Engine, versions: VersionFollower, ages: Callable[[Sequence[Mapping[str, int]]], RowAges]
    ) -> None:
        """`ages`: how old the rows of a watermark are now."""
        self._metrics, self._engine, self._versions, self._ages = metrics, engine, versions, ages
        self._flips, self._corrupted, self._strangers, self._faults = 0, 0, 0, 0
        self._applied: dict[int, int] = {}  # row changes of each resident version that were already counted

    def show(self) -> None:
        """Copies the current numbers into the metrics."""
        status, gauge, counter = self._engine.status(), self._metrics.gauge, self._metrics.counter
        counter("flips").inc(status.flips - self._flips)
        self._flips = status.flips
        counter("thread_faults").labels("engine").inc(status.faults - self._faults)
        self._faults = status.faults
        gauge("version_live").set(status.current.version if status.current else -1)
        gauge("version_revision").set(status.current.revision if status.current else -1)
        for topic, age_s in self._engine.take_arrivals():
            self._metrics.histogram("visible_seconds").labels(topic).observe(age_s)
        for seconds in self._versions.take_load_seconds():
            self._metrics.histogram("version_load_seconds").observe(seconds)
        counter("versions_corrupted").inc(self._versions.counters["corrupted"] - self._corrupted)
        self._corrupted = self._versions.counters["corrupted"]
        counter("delta_strangers").inc(self._versions.counters["strangers"] - self._strangers)
        self._strangers = self._versions.counters["strangers"]
        self._count_rows({report.token.version: report.changes_applied for report in status.residents})
        current = next((r for r in status.residents if r.token == status.current), None)
        if current is not None:
            self._show_current(current)

    def _count_rows(self, applied: dict[int, int]) -> None:
        """Counts the row changes since the last call. The count of a version that was loaded again starts at 0."""
        new = {version: rows - self._applied.get(version, 0) for version, rows in applied.items()}
        self._metrics.counter("delta_rows").inc(sum(rows if rows >= 0 else applied[version] for version, rows in new.items()))
        self._applied = applied

    def _show_current(self, current: VersionReport) -> None:
        self._metrics.gauge("rows_not_servable").set(current.not_servable)
        ages = self._ages(current.watermark)
        self._metrics.gauge("freshness_age_seconds").set(math.nan if ages.worst_s is None else ages.worst_s)
        self._metrics.gauge("shards_lagging").set(len(ages.lagging))
