"""A follower's reports: a status line of JSON and Prometheus metrics.

Here: the form of both. Not here: where the numbers come from (follower.py). A line is written every `every_s` seconds, and at once when the faults or
the newest publication change.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from infra.clock import Clock
from infra.metrics import Metrics
from streams.training.following.health import RoundCounts


class StatusTeller:
    """Writes a follower's status as a line of JSON to `say` and as values to `metrics`."""

    def __init__(self, say: Callable[[str], None], metrics: Metrics, clock: Clock, every_s: float) -> None:
        self._say, self._metrics, self._clock, self._every_s = say, metrics, clock, every_s
        self._told_at, self._told_of, self._counted_round = -math.inf, object(), -1

    def tell(self, line: Mapping[str, Any], progress: Callable[[], dict[str, float | None]], newest: RoundCounts) -> None:
        """Counts the newest round; reports everything else if `every_s` is over or something changed. Only then it calls `progress`, which takes time; its
        result replaces the line's own "progressive"."""
        self._count(line["round"], newest)
        kinds, published = [fault.partition(":")[0] for fault in line["faults"]], line["published"]
        about = (kinds, published and (published["version"], published["state"]))
        if self._clock.monotonic() - self._told_at < self._every_s and about == self._told_of:
            return
        self._told_at, self._told_of = self._clock.monotonic(), about
        line = {**line, "progressive": progress()}
        self._show(line)
        self._say(json.dumps(line, allow_nan=False))

    def _count(self, number: int, counts: RoundCounts) -> None:
        if number == self._counted_round:
            return
        self._counted_round = number
        for name, records in (("learnt", counts.records - counts.unreadable), ("unreadable", counts.unreadable)):
            self._metrics.counter("train_impressions").labels(name).inc(records)
        self._metrics.counter("train_items_unknown").inc(counts.unknown)
        for name, steps in (("taken", counts.steps), ("refused", counts.refused)):
            self._metrics.counter("train_steps").labels(name).inc(steps)

    def _show(self, line: Mapping[str, Any]) -> None:
        for name, value in line["progressive"].items():
            if value is not None and name != "requests":
                self._metrics.gauge("train_progressive").labels(name).set(value)
        self._metrics.gauge("train_lag_records").set(line["lag_records"])
        self._metrics.gauge("train_publishing").set(line["publishing"])
        if line["event_age_s"] is not None:
            self._metrics.gauge("train_event_age_seconds").set(line["event_age_s"])
        if line["published"] is not None:
            self._metrics.gauge("train_published_version").set(line["published"]["version"])
            if line["published"]["live_s"] is not None:
                self._metrics.gauge("train_publish_to_live_seconds").set(line["published"]["live_s"])
