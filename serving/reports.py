"""What this server observed of the version it serves: a record in server-reports every few seconds, for the workers' rollback rule.

    answers, their candidates and processor time, not finite, probabilities    from every ranking (`note`), by the version that answered
    failed, latencies                     from the process's metrics: the change since the last report
    parity                                from the parity sampler (`note_parity`)

Invariants: a report is about one version. An interval in which the version changed is not reported, because its failures and times may belong to either.
The broker dates each report, which shows how far this machine's clock is from it.
A server without requests reports too, which shows that it is alive. Nothing waits for a report: one that cannot be sent is dropped and logged once.
Memory: one counter per version and a bounded sample of probabilities.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer
from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample

from infra.guarded_thread import OneThread
from infra.kafka.producer import open_producer
from infra.kafka.security import Bootstrap, refusal
from infra.metrics import Metrics
from schemas.events import ServerReport, encode_record
from schemas.token import VersionToken
from schemas.topics import SERVER_REPORTS
from serving.audit.parity_sampler import ParityFigures
from serving.core.broker_clock import BrokerClock
from serving.engine.work import RankResult
from serving.protocols.front import OWN_FAULTS

PARITY_OFF = 0.01  # difference of a probability: a hundred times the rounding of fp32
_PROBABILITIES_KEPT = 4_096
_DELIVERY_S_MAX = 10.0
_CLOSE_S_MAX = 2.0
_QUANTILES = (0.05, 0.5, 0.95)

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.reports")


@dataclass
class _Counts:
    """The counts of one version since the last report."""

    answers: int = 0
    not_finite: int = 0
    candidates: int = 0
    processor_ms: float = 0.0
    parity_checked: int = 0
    parity_mismatched: int = 0
    probabilities: list[np.ndarray] = field(default_factory=list)


class Reporter(OneThread):
    """Counts answers and sends a report every `every_s`. `note` and `note_parity` may be called from any thread. `current`: the version served now."""

    def __init__(
        self,
        metrics: Metrics,
        bootstrap: Bootstrap,
        prefix: str,
        server_id: str,
        every_s: float,
        current: Callable[[], VersionToken | None],
    ) -> None:
        self._metrics, self._bootstrap, self._topic, self._server_id = metrics, bootstrap, prefix + SERVER_REPORTS, server_id
        self._every_s, self._current = every_s, current
        self._lock = threading.Lock()
        self._counts: dict[int, _Counts] = {}
        self._before = (current(), *self._totals(), time.monotonic())
        metrics.gauge("clock_ahead_seconds").set(math.nan)
        self._said = ""
        self.clock = BrokerClock(time.time)
        super().__init__("reports")

    def note(self, result: RankResult) -> None:
        """Counts a ranking that was answered."""
        fine = bool(np.isfinite(result.scores_A).all() and np.isfinite(result.probabilities_AT).all())
        with self._lock:
            counts = self._counts.setdefault(result.token.version, _Counts())
            counts.answers += 1
            counts.not_finite += not fine
            counts.candidates += result.candidates
            counts.processor_ms += result.processor_ms
            if fine and result.ids and len(counts.probabilities) * len(result.ids) < _PROBABILITIES_KEPT:
                counts.probabilities.append(result.probabilities_AT[:, 0])

    def note_parity(self, version: int, figures: ParityFigures) -> None:
        """Counts an answer of `version` that the reference recomputed."""
        with self._lock:
            counts = self._counts.setdefault(version, _Counts())
            counts.parity_checked += 1
            counts.parity_mismatched += figures.difference_max > PARITY_OFF

    def make_report(self) -> ServerReport | None:
        """What happened since the last call; None if the version changed in between, or none is live."""
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
            candidates=counts.candidates,
            processor_ms=counts.processor_ms,
            probability_p05=probabilities[0],
            probability_p50=probabilities[1],
            probability_p95=probabilities[2],
        )

    def _totals(self) -> tuple[int, Mapping[float, int]]:
        """Totals since the start: (requests that failed through the server's fault, answers up to each edge of the latency histogram in seconds)."""
        failed = sum(s.value for s in _samples(self._metrics.counter("requests"), "_total") if s.labels["status"] in OWN_FAULTS)
        edges: dict[float, int] = {}
        for sample in _samples(self._metrics.histogram("request_seconds"), "_bucket"):
            edge = float(sample.labels["le"])
            edges[edge] = edges.get(edge, 0) + int(sample.value)
        return int(failed), edges

    # --- sending -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        producer = open_producer(self._bootstrap, _DELIVERY_S_MAX)
        while not self.stopping.wait(self._every_s):
            try:
                self._send(producer, self.make_report())
            except Exception as error:  # without reports a version would never be rolled back: log it, and make the next one
                self._say(repr(error))
        producer.flush(_CLOSE_S_MAX)

    def _send(self, producer: Producer, report: ServerReport | None) -> None:
        if report is None:
            return
        try:
            on_delivery = partial(self._delivered, time.time())
            producer.produce(self._topic, encode_record(report), self._server_id, partition=0, on_delivery=on_delivery)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._say(str(error))

    def _delivered(self, sent_s: float, error: KafkaError | None, message: Message) -> None:
        self._say("" if error is None else str(refusal(self._bootstrap, error, f"topic {self._topic}") or error))
        kind, broker_ms = message.timestamp()
        if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
            self.clock.note(sent_s, (message.latency() or 0.0), broker_ms / 1000)
            self._metrics.gauge("clock_ahead_seconds").set(self.clock.ahead_s or 0.0)

    def _say(self, error: str) -> None:
        if error and error != self._said:
            logger.warning("report_not_sent", error=error)
        self._said = error


def _samples(metric: Counter | Histogram, ending: str) -> list[Sample]:
    return [sample for family in metric.collect() for sample in family.samples if sample.name.endswith(ending)]


def quantiles_ms(counts: Mapping[float, int], shares: Sequence[float]) -> list[float | None]:
    """Quantiles in ms from cumulated counts by upper edge in seconds: linear inside a bucket, the last finite edge for the open bucket."""
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
