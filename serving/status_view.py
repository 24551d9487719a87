"""The server's state for others: plain values for `/v1/status` and the readiness routes, and metrics of the engine and its versions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.metrics import Metrics
from serving.core.broker_clock import BrokerClock
from serving.core.row_ages import RowAges
from serving.engine.loop.engine import Engine
from serving.engine.work import EngineStatus, VersionReport
from serving.health import Health
from serving.users.user_follower import UserFollower
from serving.versions.version_follower import VersionFollower

STALE = ("rows_behind", "users_behind", "broker_silent", "statistics_behind")


def readiness(
    versions: VersionFollower, users: UserFollower | None, health: Health, draining: bool, opens_ranker: bool
) -> tuple[bool, str]:
    """(is ready, why not). Ready = a version is live, the users' logs were read up to their end at the start, and the process is able to answer.
    `opens_ranker`: the live version's ranker was not tried yet, which is so only at a start.

    A server that is ready and leaves items out of its answers, or whose disk takes no changes of users, says so in the second.
    """
    if draining:
        return False, "the server is stopping"
    if not versions.ready:
        return False, f"no version is live yet; {versions.why_none()}"
    if users is None or not users.ready:
        return False, f"the users' logs are not read yet; {(users and users.last_error) or 'reading'}"
    if opens_ranker:
        return False, "the ranker of the second stage is being opened"
    why = health.why_not()
    disk = f"the view of users takes no changes: {users.last_error}" if users.waits_for_disk else ""
    return not why, why or "; ".join(filter(None, (versions.why_incomplete(), disk)))


def find_stale(versions: VersionFollower, users: UserFollower | None, silent_s_max: float, why_statistics: str = "") -> dict[str, str]:
    """Why answers of this server may be out of date, by the reason that each of them names in `degraded`: those of STALE. Every answer asks.
    `why_statistics`: which statistics are not current, empty if all are."""
    stale = {"rows_behind": why} if (why := versions.behind) else {}
    if users is None:
        return stale
    if why := users.behind:
        stale["users_behind"] = why
    if why_statistics:
        stale["statistics_behind"] = why_statistics
    if (silent_s := users.silent_s()) > silent_s_max:
        stale["broker_silent"] = (
            f"the broker has not answered for {silent_s:.0f} s, expected at most {silent_s_max:g} s; is it up, and can this server reach it?"
        )
    return stale


def server_status(
    status: EngineStatus,
    versions: VersionFollower,
    users: UserFollower | None,
    topics_error: str,
    health: Health,
    stale: Mapping[str, str],
    states: int,
    ready: tuple[bool, str],
    ages: Callable[[Sequence[Mapping[str, int]]], RowAges],
    clock: BrokerClock,
    statistics: Callable[[Sequence[str]], Mapping[str, float | None]],
    allocation: Mapping[str, Any],
) -> Mapping[str, Any]:
    """The whole state of a server as plain values. `topics_error`: the fault of the index's topics, or ""."""
    return {
        "ready": ready[0],
        "not_ready_because": "" if ready[0] else ready[1],
        "degraded": dict(stale),
        "broker_silent_s": None if users is None else round(users.silent_s(), 1),
        "version_token": None if status.current is None else str(status.current),
        "device": status.device,
        "residents": [_resident(report, ages(report.watermark), statistics(report.statistics)) for report in status.residents],
        "clock_ahead_s": clock.ahead_s,
        "queued": {"requests": status.queued_work, "changes": status.queued_changes},
        "answered": status.answered,
        "failed": status.failed,
        "flips": status.flips,
        "user_states": states,
        "allocation": allocation,
        "quality_by_rung": versions.quality_by_rung(),
        "user_positions": {} if users is None else users.positions,
        "user_view_rebuilt_because": "" if users is None else users.rebuilt_because,
        "threads": health.describe(),
        "last_error": topics_error or versions.last_error or (users.last_error if users else "") or clock.why_wrong(),
    }


def _resident(report: VersionReport, ages: RowAges, statistics: Mapping[str, float | None]) -> Mapping[str, Any]:
    return {
        "version_token": str(report.token),
        "rows": report.rows,
        "capacity": report.capacity,
        "not_servable": report.not_servable,
        "watermark": [dict(shard) for shard in report.watermark],
        "age_s": ages.worst_s,
        "shard_ages_s": list(ages.shards),
        "lagging_shards": list(ages.lagging),
        "source_ms": dict(report.source_ms),
        "delta_positions": dict(report.positions),
        "statistic_ages_s": {name: None if age_s is None else round(age_s, 1) for name, age_s in statistics.items()},
        "tiers_by": report.tiers_by,
        "device_error": report.device_error,
    }


class EngineMetrics:
    """`show` is called again and again, by one thread."""

    def __init__(
        self, metrics: Metrics, engine: Engine, versions: VersionFollower, ages: Callable[[Sequence[Mapping[str, int]]], RowAges]
    ) -> None:
        """`ages`: how old the rows of a watermark are now."""
        self._metrics, self._engine, self._versions, self._ages = metrics, engine, versions, ages
        self._applied: dict[int, int] = {}  # row changes of each resident version that were already counted

    def show(self) -> None:
        """Copies the current numbers into the metrics."""
        status, gauge, count_to = self._engine.status(), self._metrics.gauge, self._metrics.count_to
        count_to("flips", status.flips)
        count_to("thread_faults", status.faults, "engine")
        count_to("versions_corrupted", self._versions.counters["corrupted"])
        count_to("delta_strangers", self._versions.counters["strangers"])
        gauge("version_live").set(status.current.version if status.current else -1)
        gauge("version_revision").set(status.current.revision if status.current else -1)
        for topic, age_s in self._engine.take_arrivals():
            self._metrics.histogram("visible_seconds").labels(topic).observe(age_s)
        for seconds in self._versions.take_load_seconds():
            self._metrics.histogram("version_load_seconds").observe(seconds)
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
