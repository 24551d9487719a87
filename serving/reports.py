"""What this server saw of the version that it serves, every few seconds as a record of server-reports, for the workers' rollback rule.

    answers, not finite, probabilities    of every ranking, by `note`, counted by the version that gave it
    failed, latencies                     from the process's metrics: what changed since the last report
    parity                                from the parity sampler, by `note_parity`

Here: counting and sending. Not here: what is too much (streams/core/misbehaviour.py), the metrics themselves.
Invariants: a report is of one version; an interval in which the version changed is not reported, because failures and times of it cannot be told apart.
A server that answers nothing reports too: it is alive. Nothing of serving waits for a report: one that cannot be sent is dropped, and said once.
Memory: one counter a version and a reservoir of probabilities.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample

from infra.metrics import Metrics
from schemas.events import ServerReport, encode_record
from schemas.token import VersionToken
from schemas.topics import SERVER_REPORTS
from serving.core.parity_figures import ParityFigures
from serving.engine.work import RankResult, RankWork

OWN_FAULTS = frozenset({"500", "INTERNAL", "UNKNOWN"})  # statuses of HTTP and gRPC
PARITY_OFF = 0.01  # of a probability: a hundred times what fp32 loses
_PROBABILITIES_KEPT = 4_096
_CLOSE_S_MAX = 2.0
_QUANTILES = (0.05, 0.5, 0.95)

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.reports")


@dataclass
class _Counts:
    """Of one version since the last report."""

    answers: int = 0
    not_finite: int = 0
    parity_checked: int = 0
    parity_mismatched: int = 0
    probabilities: list[np.ndarray] = field(default_factory=list)


class Reporter:
    """`note` and `note_parity` from any thread; `start` begins to send every `every_s`, `close` ends. current: what the server serves now."""

    def __init__(
        self, metrics: Metrics, bootstrap: str, prefix: str, server_id: str, every_s: float, current: Callable[[], VersionToken | None]
    ) -> None:
        self._metrics, self._bootstrap, self._topic, self._server_id = metrics, bootstrap, prefix + SERVER_REPORTS, server_id
        self._every_s, self._current = every_s, current
        self._lock = threading.Lock()
        self._counts: dict[int, _Counts] = {}
        self._before = (current(), *self._totals(), time.monotonic())
        self._said = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        """Begins to report."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, work: RankWork, result: RankResult) -> None:
        """A ranking that was given."""
        fine = bool(np.isfinite(result.scores_A).all() and np.isfinite(result.probabilities_AT).all())
        with self._lock:
            counts = self._counts.setdefault(result.token.version, _Counts())
            counts.answers += 1
            counts.not_finite += not fine
            if fine and len(counts.probabilities) * len(result.ids) < _PROBABILITIES_KEPT:
                counts.probabilities.append(result.probabilities_AT[:, 0])

    def note_parity(self, version: int, figures: ParityFigures) -> None:
        """An answer that the reference computed again."""
        with self._lock:
            counts = self._counts.setdefault(version, _Counts())
            counts.parity_checked += 1
            counts.parity_mismatched += figures.difference_max > PARITY_OFF

    def make_report(self) -> ServerReport | None:
        """What happened since the last call; None where it was not all of one version."""
        token, failed, latencies, now_s = current = (self._current(), *self._totals(), time.monotonic())
        with self._lock:
            seen, self._counts = self._counts, {}
        (former, failed_before, latencies_before, since_s), self._before = self._before, current
        if token is None or former is None or former.version != token.version:
            return None
        counts = seen.get(token.version, _Counts())
        p50_ms, p99_ms = quantiles_ms({edge: n - latencies_before.get(edge, 0) for edge, n in latencies.items()}, (0.5, 0.99))
        probabilities = np.quantile(np.concatenate(counts.probabilities), _QUANTILES).tolist() if counts.probabilities else [None] * 3
        return ServerReport(
            schema=1,
            server_id=self._server_id,
            at_ms=time.time_ns() // 1_000_000,
            version=token.version,
            version_token=str(token),
            seconds=now_s - since_s,
            answers=counts.answers,
            not_finite=counts.not_finite,
            failed=failed - failed_before,
            parity_checked=counts.parity_checked,
            parity_mismatched=counts.parity_mismatched,
            latency_p50_ms=p50_ms,
            latency_p99_ms=p99_ms,
            probability_p05=probabilities[0],
            probability_p50=probabilities[1],
            probability_p95=probabilities[2],
        )

    def _totals(self) -> tuple[int, Mapping[float, int]]:
        """Since the start: requests that failed by the server's own fault, and answers up to each edge of the latency histogram, in seconds."""
        failed = sum(s.value for s in _samples(self._metrics.counter("requests"), "_total") if s.labels["status"] in OWN_FAULTS)
        edges: dict[float, int] = {}
        for sample in _samples(self._metrics.histogram("request_seconds"), "_bucket"):
            edge = float(sample.labels["le"])
            edges[edge] = edges.get(edge, 0) + int(sample.value)
        return int(failed), edges

    # --- sending -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "allow.auto.create.topics": False, "message.timeout.ms": 10_000, "log_level": 2}
        )
        while not self._stopped.wait(self._every_s):
            report = self.make_report()
            if report is not None:
                self._send(producer, report)
        producer.flush(_CLOSE_S_MAX)

    def _send(self, producer: Producer, report: ServerReport) -> None:
        try:
            producer.produce(self._topic, encode_record(report), self._server_id, partition=0, on_delivery=self._delivered)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._say(str(error))

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        self._say("" if error is None else str(error))

    def _say(self, error: str) -> None:
        if error and error != self._said:
            logger.warning("report_not_sent", error=error)
        self._said = error


def _samples(metric: Counter | Histogram, ending: str) -> list[Sample]:
    return [sample for family in metric.collect() for sample in family.samples if sample.name.endswith(ending)]


def quantiles_ms(counts: Mapping[float, int], shares: Sequence[float]) -> list[float | None]:
    """Quantiles from a histogram's cumulated counts by upper edge in seconds: straight inside a bucket, the last finite edge beyond it."""
    edges = sorted(counts)
    total = counts[edges[-1]] if edges else 0
    return [_quantile_ms(counts, edges, share * total) if total else None for share in shares]


def _quantile_ms(counts: Mapping[float, int], edges: Sequence[float], rank: float) -> float:
    low_s, below = 0.0, 0
    for edge in edges:
        if counts[edge] >= rank:
            if math.isinf(edge):
                return low_s * 1000
            return (low_s + (edge - low_s) * (rank - below) / max(counts[edge] - below, 1)) * 1000
        low_s, below = edge, counts[edge]
    return low_s * 1000
