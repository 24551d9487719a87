"""Decisions and their costs, to the topic allocation-outcomes, from which `aif allocate fit` learns.

Here: a bounded queue and the thread that sends from it. Not here: the record (schemas/events.py `AllocationOutcome`), joining it with impressions
(streams/allocation).
Invariant: a request never waits for this. An outcome that finds the queue full, or that the broker does not take, is counted as lost
(`aif_allocation_outcomes_lost_total`); its request is answered all the same.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from infra.guarded_thread import OneThread
from infra.kafka.producer import open_producer
from infra.kafka.security import Bootstrap
from infra.metrics import Metrics
from schemas.actions import TWO_PASS, Action, Kind, count_second
from schemas.events import AllocationOutcome, encode_record
from schemas.ids import Id, encode_kafka_key, encode_wire_id
from schemas.topics import ALLOCATION_OUTCOMES
from serving.allocation.decisions import Choice
from serving.core.ladder import take_first

_WAITING_MAX = 10_000
_PROBES_MAX = 64  # that wait with all their scores; further ones are sent without sums
_SUMMED = 10  # best scores
_EVERY_S = 0.2
_DELIVERY_S_MAX = 10.0
_CLOSE_S_MAX = 1.0

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.allocation")


class Probe(NamedTuple):
    """All scores of a request that was ranked in full. `ids` and `scores_A`: known candidates, best first; first_A: the first pass's scores, if it differs."""

    item_ids: Sequence[Id] | np.ndarray
    retrieval_scores: Sequence[float] | None
    ids: Sequence[Id]
    scores_A: np.ndarray
    first_A: np.ndarray | None = None

    def sum_best(self, actions: Sequence[Action]) -> Mapping[str, float]:
        """For each action that ranks: the sum of the ten best scores among the candidates that it takes."""
        rank = {item: number for number, item in enumerate(self.ids)}
        rank_C = np.array([rank.get(item, -1) for item in np.asarray(self.item_ids, object).tolist()])
        sums = {}
        for action in actions:
            if action.kind is Kind.RANK:
                taken = np.unique(np.asarray(take_first(rank_C, action.candidates, self.retrieval_scores)))
                taken = taken[taken >= 0]
                if action.level == TWO_PASS and self.first_A is not None:
                    second = np.argsort(-self.first_A[taken], kind="stable")[: count_second(len(taken), _SUMMED)]
                    taken = np.sort(taken[second])
                sums[action.name] = float(self.scores_A[taken[:_SUMMED]].sum())
        return sums


class Given(NamedTuple):
    """The first items of a cached answer, and their logits before calibration, from which a calibration is fitted."""

    ids: Sequence[Id]
    logits: Sequence[float]


class Outcome(NamedTuple):
    """What became of a choice. `state`: ranked, cached, dropped, refused or failed; `took_ms`: of the engine, None if nothing was ranked."""

    user: Id
    choice: Choice
    state: str
    took_ms: float | None
    at_ms: int
    probe: Probe | None = None
    given: Given | None = None


class Outcomes(OneThread):
    """Sends outcomes from a thread of its own. `note` is called in the event loop."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, metrics: Metrics) -> None:
        self._bootstrap, self._topic = bootstrap, prefix + ALLOCATION_OUTCOMES
        self._lost = metrics.counter("allocation_outcomes_lost")
        self._waiting: deque[Outcome] = deque()
        self._probes = threading.BoundedSemaphore(_PROBES_MAX)
        self._said = ""
        super().__init__("allocation-outcomes")

    def note(
        self, user: Id, choice: Choice, state: str, took_ms: float | None, probe: Probe | None = None, given: Given | None = None
    ) -> None:
        """Queues an outcome, or counts it as lost."""
        if len(self._waiting) >= _WAITING_MAX:
            self._lost.inc()
        else:
            kept = probe if probe is not None and self._probes.acquire(blocking=False) else None
            self._waiting.append(Outcome(user, choice, state, took_ms, time.time_ns() // 1_000_000, kept, given))

    def _run(self) -> None:
        producer = open_producer(self._bootstrap, _DELIVERY_S_MAX)
        while not self.stopping.wait(_EVERY_S):
            self.send(producer)
        self.send(producer)
        self._lost.inc(producer.flush(_CLOSE_S_MAX))

    def send(self, producer: Producer) -> None:
        """Hands all queued outcomes to a producer."""
        while self._waiting:
            one = self._waiting.popleft()
            if one.probe is not None:
                self._probes.release()
            try:
                producer.produce(self._topic, encode_outcome(one), encode_kafka_key(one.user), on_delivery=self._delivered)
            except (KafkaException, BufferError, ValueError, TypeError) as error:  # the last two: the record cannot be made of it
                self._lose(str(error))
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._lose(str(error))

    def _lose(self, error: str) -> None:
        self._lost.inc()
        if error != self._said:
            logger.warning("allocation_outcome_lost", error=error, topic=self._topic)
        self._said = error


def encode_outcome(outcome: Outcome) -> bytes:
    """The record of an outcome."""
    return encode_record(AllocationOutcome.model_validate(_fields(outcome, outcome.choice.receipt())))


def _fields(outcome: Outcome, receipt: Mapping[str, Any]) -> Mapping[str, Any]:
    ask, decision = outcome.choice.ask, outcome.choice.decision
    assert decision is not None, "in mode off nothing is decided"
    facts, actions = ask.facts, decision.inputs.moment.prepared.table.actions
    sums = {} if outcome.probe is None else outcome.probe.sum_best(actions)
    return {
        "request_id": ask.request_id,
        "user_id": encode_wire_id(outcome.user),
        "time_ms": outcome.at_ms,
        "version": ask.version,
        "table": receipt["table"],
        "action": receipt["action"],
        "arm": receipt["arm"],
        "state": outcome.state,
        "propensity": receipt["propensity"],
        "price": receipt["lambda"],
        "source": receipt["lambda_source"],
        "cost_ms": receipt["cost_ms"],
        "value": max(0.0, receipt["value"]),
        "candidates": facts.candidates,
        "behaviours": facts.behaviours,
        "needs_user": facts.needs_user,
        "user_value": facts.user_value,
        "retrieval_top": facts.retrieval_top,
        "cached_s": facts.cached_s,
        "took_ms": outcome.took_ms,
        "actions": list(sums),
        "predicted": list(sums.values()) or None,
        "items": [] if outcome.given is None else [encode_wire_id(item) for item in outcome.given.ids],
        "logits": [] if outcome.given is None else list(outcome.given.logits),
    }
