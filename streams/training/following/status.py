"""A follower's reports: a status line of JSON and Prometheus metrics.

Here: the form of both. Not here: where the numbers come from (follower.py). A line is written every `every_s` seconds, and at once when the faults or
the newest publication change.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from infra.clock import Clock
from infra.metrics import Metrics
from streams.training.following.health import RoundCounts
from streams.training.following.publications import Published


@dataclass(frozen=True)
class Status:
    """How far a follower is. `progress` is called only for a line that is written, because it takes time; `newest` are the newest round's counts."""

    round: int
    steps: int
    requests: int
    lag_records: int
    event_age_s: float | None
    faults: tuple[str, ...]
    published: Published | None
    progress: Callable[[], dict[str, float | None]]
    newest: RoundCounts


class StatusTeller:
    """Writes `Status` as a line of JSON to `say` and as values to `metrics`."""

    def __init__(self, say: Callable[[str], None], metrics: Metrics, clock: Clock, every_s: float) -> None:
        self._say, self._metrics, self._clock, self._every_s = say, metrics, clock, every_s
        self._told_at, self._told_of, self._counted_round = -math.inf, object(), -1

    def tell(self, status: Status) -> None:
        """Counts the newest round; reports everything else if `every_s` is over or something changed."""
        self._count(status)
        kinds = tuple(fault.partition(":")[0] for fault in status.faults)
        about = (kinds, status.published and (status.published.version, status.published.state))
        if self._clock.monotonic() - self._told_at < self._every_s and about == self._told_of:
            return
        self._told_at, self._told_of = self._clock.monotonic(), about
        progress = status.progress()
        self._show(status, progress)
        line = {
            "round": status.round,
            "steps": status.steps,
            "requests": status.requests,
            "lag_records": status.lag_records,
            "event_age_s": status.event_age_s,
            "progressive": progress,
            "publishing": not status.faults,
            "faults": list(status.faults),
            "published": status.published and status.published.to_dict(),
        }
        self._say(json.dumps(line, allow_nan=False))

    def _count(self, status: Status) -> None:
        if status.round == self._counted_round:
            return
        self._counted_round, counts = status.round, status.newest
        for name, number in (("learnt", counts.records - counts.unreadable), ("unreadable", counts.unreadable)):
            self._metrics.counter("train_impressions").labels(name).inc(number)
        self._metrics.counter("train_items_unknown").inc(counts.unknown)
        for name, number in (("taken", counts.steps), ("refused", counts.refused)):
            self._metrics.counter("train_steps").labels(name).inc(number)

    def _show(self, status: Status, progress: dict[str, float | None]) -> None:
        for name, value in progress.items():
            if value is not None and name != "requests":
                self._metrics.gauge("train_progressive").labels(name).set(value)
        self._metrics.gauge("train_lag_records").set(status.lag_records)
        self._metrics.gauge("train_publishing").set(not status.faults)
        if status.event_age_s is not None:
            self._metrics.gauge("train_event_age_seconds").set(status.event_age_s)
        if status.published is not None:
            self._metrics.gauge("train_published_version").set(status.published.version)
            if status.published.live_s is not None:
                self._metrics.gauge("train_publish_to_live_seconds").set(status.published.live_s)
