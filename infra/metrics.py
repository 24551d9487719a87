"""Prometheus metrics: one prefix, base units, no ids as labels; and the small HTTP page a worker shows them on.

Invariant: a metric that is not in `METRICS` cannot be made, so the table below is complete and dashboards can rely on it. Next to it stand
the client's `process_...` (memory, processor time, files), and none of its `..._created`, which double the series and say nothing here.
Freshness is measured from just before the produce call; histograms are in seconds, never milliseconds.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics, start_http_server

from schemas.errors import Misconfigured

Kind = Literal["counter", "gauge", "histogram"]

_FRESHNESS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0)
_STAGE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_REQUEST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Metric:
    """One row of the table. The full name has the prefix `aif_`; a counter's ends in `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS = (
    # every process of the system
    Metric(
        "broker_silent_seconds",
        "gauge",
        "Time since the broker last answered, asked every 5 s. While this grows, the lag values are stale.",
    ),
    Metric("thread_faults", "counter", "Unexpected errors that ended the work of a thread; most threads restart.", ("thread",)),
    # streams
    Metric("topics_gone", "gauge", "Topics of the index that the broker does not have, checked every 5 s."),
    Metric("updates_consumed", "counter", "Updates read from a source topic.", ("topic", "shard")),
    Metric("updates_applied", "counter", "Updates that changed the shard.", ("topic", "shard")),
    Metric("updates_superseded", "counter", "Updates with an older stamp than the stored component.", ("topic", "shard")),
    Metric("dead_letters", "counter", "Rejected updates, by topic and disposition.", ("topic", "disposition")),
    Metric("rows_encoded", "counter", "Rows through the item half.", ("shard",)),
    Metric("work_skipped", "counter", "Rows that needed no network, and updates that needed no row, by cause.", ("shard", "cause")),
    Metric("micro_batch_seconds", "histogram", "One micro-batch from read to written.", ("shard",), _FRESHNESS_S),
    Metric("batch_stage_seconds", "histogram", "One micro-batch, by stage: decode, fold, rows, write.", ("stage",), _STAGE_S),
    Metric("stored_seconds", "histogram", "From a record's time to written in its shard.", ("topic",), _FRESHNESS_S),
    Metric("clock_ahead", "counter", "Records from the future by more than a second: a publisher's clock, or ours, is off.", ("topic",)),
    Metric("shard_keys", "gauge", "Keys in the shard's directory, estimated.", ("shard",)),
    Metric("shard_bytes", "gauge", "Bytes of the shard's table files.", ("shard",)),
    Metric("shard_compaction_debt_bytes", "gauge", "Bytes that compaction has yet to rewrite, estimated.", ("shard",)),
    Metric("shard_table_files", "gauge", "Table files of the shard's directory; each is an open file.", ("shard",)),
    Metric(
        "shard_disk_fault", "gauge", "1 while the shard's disk takes no writes (full or broken) and the shard waits, else 0.", ("shard",)
    ),
    Metric("versions", "gauge", "Versions of the index, by state.", ("state",)),
    Metric("lag_records", "gauge", "Records between the shard and the end of the partition.", ("topic", "shard")),
    Metric("lag_seconds", "gauge", "Time since the oldest record not yet applied was first seen.", ("topic", "shard")),
    Metric("shard_offset", "gauge", "Next offset of the shard.", ("topic", "shard")),
    Metric("build_seconds", "histogram", "Full build of one shard of a version.", (), (1.0, 5.0, 20.0, 60.0, 300.0, 1200.0, 3600.0)),
    Metric("version_wanted", "gauge", "The version that is building, -1 when none."),
    Metric("checkpoints_rejected", "counter", "Checkpoints refused, by reason.", ("reason",)),
    # training (aif train --follow)
    Metric("train_impressions", "counter", "Impressions followed: learnt, unreadable.", ("outcome",)),
    Metric("train_items_unknown", "counter", "Shown items that were not known at the time of their impression."),
    Metric("train_steps", "counter", "Steps: taken, or refused because the gradient was not finite.", ("outcome",)),
    Metric("train_progressive", "gauge", "Scored before it is learnt, newest requests: gauc, click, copr, calibration.", ("measure",)),
    Metric("train_lag_records", "gauge", "Impressions that came and are not learnt."),
    Metric("train_event_age_seconds", "gauge", "Age of the newest learnt impressions, by their own time."),
    Metric("train_publishing", "gauge", "1 while checkpoints may be published, 0 while the data is late or broken."),
    Metric("train_published_version", "gauge", "The version of the newest checkpoint that was published."),
    Metric("train_publish_to_live_seconds", "gauge", "From its announcement to live."),
    # serving
    Metric("requests", "counter", "Requests answered, by route and status.", ("route", "status")),
    Metric("request_seconds", "histogram", "One request from receipt to answer.", ("route",), _REQUEST_S),
    Metric("candidates", "counter", "Candidates scored."),
    Metric("candidates_unknown", "counter", "Candidates that the version does not have."),
    Metric("answers_degraded", "counter", "Answers that say so, by reason.", ("reason",)),
    Metric("user_state_events", "counter", "What became of states of call 1: hit, miss, stale, evicted, joined and so on.", ("event",)),
    Metric("users_decoded", "gauge", "Users whose history is in memory."),
    Metric("behaviours_decoded", "gauge", "Behaviours of these users together."),
    Metric(
        "degraded",
        "gauge",
        "1 while answers may be out of date: rows_behind, users_behind, broker_silent, statistics_behind; else 0.",
        ("reason",),
    ),
    Metric("statistics_age_seconds", "gauge", "Age of the oldest statistic of items that the served version reads; 0: it reads none."),
    Metric("answers", "counter", "Answers, by the rung of the ladder their user half stands on.", ("rung",)),
    Metric(
        "requests_refused",
        "counter",
        "Requests that were answered at once with a time to come back: queue, deadline, withdrawn.",
        ("reason",),
    ),
    Metric("relay_signals", "counter", "Signals for prefixes of final rankings, by decision.", ("decision",)),
    Metric("relay_rankings", "counter", "Final rankings, by the rung of their ladder.", ("rung",)),
    Metric("relay_prefixes", "counter", "Prefixes: wasted (no ranking came), evicted, reloaded from the host tier.", ("event",)),
    Metric("relay_resident_bytes", "gauge", "Memory of KV pages in use."),
    Metric("relay_host_bytes", "gauge", "Memory of prefixes in the host tier."),
    Metric("parity_samples", "counter", "Answers that were to be computed again: checked, moved, busy, failed.", ("outcome",)),
    Metric("parity_difference_max", "gauge", "Greatest difference of a probability from the fp64 reference since the start."),
    Metric("parity_overlap_min", "gauge", "Least share of the reference's top that an answer had since the start."),
    Metric("grpc_port_open", "gauge", "1 while the gRPC port accepts connections, else 0; looked at every second."),
    Metric("queue_seconds", "gauge", "How long a request that came now would wait for the engine."),
    Metric("allocation_mode", "gauge", "0 off, 1 shadow, 2 queue, 3 value."),
    Metric(
        "allocation_price",
        "gauge",
        "Price of a millisecond of the engine, by source: plan, queue (of the last request), floor.",
        ("source",),
    ),
    Metric("allocation_actions", "counter", "Requests by action; in mode shadow the actions that would have been.", ("mode", "action")),
    Metric("allocation_work_seconds", "counter", "Work of rankings: full, expected (of the chosen actions), measured.", ("kind",)),
    Metric("allocation_demand", "gauge", "Full work that is offered, over the engine's time; 1 = as much as it can do."),
    Metric("allocation_utilisation", "gauge", "Share of the last fifth of a second in which the engine ranked."),
    Metric("allocation_over_utilised_ticks", "counter", "Fifths of a second in which more work was let in than they can hold."),
    Metric("allocation_cost_scale", "gauge", "Measured work over the work that the table expected."),
    Metric("allocation_table_age_seconds", "gauge", "Age of the table that decides; NaN: the built-in one."),
    Metric("allocation_outcomes_lost", "counter", "Outcomes that did not reach the topic."),
    Metric("user_states", "gauge", "States of call 1 kept."),
    Metric("user_states_bytes", "gauge", "Memory they hold."),
    Metric("users_known", "gauge", "Users in the server's own view."),
    Metric("user_table_files", "gauge", "Table files of the view of users; each is an open file."),
    Metric(
        "user_disk_fault", "gauge", "1 while the disk of the view of users takes no writes (full or broken) and the view waits, else 0."
    ),
    Metric("user_updates_skipped", "counter", "Updates of the user topics that are wrong or do not fit.", ("topic",)),
    Metric("user_view_rebuilds", "counter", "Times the view of users was made again from the log, by reason.", ("reason",)),
    Metric("user_log_holes", "counter", "Gaps in user-behaviours that stayed."),
    Metric("flips", "counter", "Version switches of the engine."),
    Metric("version_live", "gauge", "The version that answers, -1 when none."),
    Metric("version_revision", "gauge", "Its revision."),
    Metric("version_load_seconds", "histogram", "From a version's manifest to the flip.", (), (0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 300.0)),
    Metric("delta_rows", "counter", "Row changes applied from index-deltas, of all versions in memory."),
    Metric("delta_strangers", "counter", "Records of index-deltas that no shard wrote; they are passed over."),
    Metric(
        "freshness_age_seconds",
        "gauge",
        "Time since the rows of the oldest shard had everything of both item topics; NaN while it is unknown.",
    ),
    Metric("shards_lagging", "gauge", "Shards whose rows in the live version are older than 2 s."),
    Metric("clock_ahead_seconds", "gauge", "This machine's clock minus the broker's; NaN while it is unknown."),
    Metric("visible_seconds", "histogram", "From a record's time to visible in answers of the live version.", ("topic",), _FRESHNESS_S),
    Metric("versions_corrupted", "counter", "Loads that failed because a file was not what its manifest says."),
    Metric("rows_not_servable", "gauge", "New ids that did not fit into the arena."),
)
disable_created_metrics()
_CLASSES: dict[Kind, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_BY_NAME = {metric.name: metric for metric in METRICS}


class Metrics:
    """The metrics of one process, made on first use. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()

    def counter(self, name: str) -> Counter:
        """The counter `aif_<name>_total`."""
        return cast(Counter, self._metric(name, "counter"))

    def count_to(self, name: str, total: float, *labels: str) -> None:
        """Raise a counter to a total that is kept elsewhere and never falls. Each counter by one thread."""
        counter, before = self.counter(name), self._totals.get((name, labels), 0.0)
        (counter.labels(*labels) if labels else counter).inc(total - before)
        self._totals[name, labels] = total

    def gauge(self, name: str) -> Gauge:
        """The gauge `aif_<name>`."""
        return cast(Gauge, self._metric(name, "gauge"))

    def histogram(self, name: str) -> Histogram:
        """The histogram `aif_<name>`, in the unit its name ends with."""
        return cast(Histogram, self._metric(name, "histogram"))

    def _metric(self, name: str, kind: Kind) -> Counter | Gauge | Histogram:
        with self._lock:
            if name not in self._made:
                assert name in _BY_NAME, f"{name} is not in the table METRICS of infra/metrics.py"
                metric = _BY_NAME[name]
                buckets = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
                self._made[name] = _CLASSES[metric.kind](f"aif_{name}", metric.help, metric.labels, registry=self.registry, **buckets)
            assert isinstance(self._made[name], _CLASSES[kind]), f"{name} is not a {kind}"
            return self._made[name]


def open_metrics_page(metrics: Metrics, port: int) -> tuple[int, Callable[[], None]]:
    """Serve `metrics` on loopback at `port` (0: any free one). Returns the port and the call that closes it. Misconfigured (`port_taken`)."""
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
    except OSError as error:
        raise Misconfigured(
            "port_taken", f"the metrics page cannot have port {port}: {error}; give another --metrics-port, or 0 for none"
        ) from error
    assert isinstance(server, WSGIServer)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close
