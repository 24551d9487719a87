"""Outcomes of decisions: every field of the record, and losses that harm no request."""

import json
from typing import Any

import numpy as np
from confluent_kafka import KafkaError

from infra.metrics import Metrics
from schemas.actions import list_actions
from schemas.allocation import Facts
from schemas.events import AllocationOutcome
from serving.allocation.allocator import Allocator
from serving.allocation.decisions import Choice
from serving.allocation.outcomes import Outcomes, Probe
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables, built_in_table
from serving.core.choice import Ask
from tests.serving.allocation.test_allocator import FakeQueue


class FakeProducer:
    """A producer whose topic is a list; None: it is full."""

    def __init__(self, fault: KafkaError | None = None, full: bool = False) -> None:
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.fault, self.full = fault, full

    def produce(self, topic: str, value: bytes, key: bytes, on_delivery: Any) -> None:
        if self.full:
            raise BufferError("queue full")
        self.sent.append((topic, value, key))
        on_delivery(self.fault, None)

    def poll(self, seconds: float) -> int:
        return 0


def decide(metrics: Metrics, mode: str = "queue") -> tuple[Outcomes, Choice, Allocator]:
    allocator = Allocator(AllocationSection.model_validate({"mode": mode}), Tables(None, lambda: None), metrics, FakeQueue())
    allocator.outcomes = Outcomes("localhost:1", "p.", metrics)
    return allocator.outcomes, allocator.decide(Ask("r1", 7, Facts(10_000, 50, True, 2.0, 0.5), 100, 1e3)), allocator


def lost(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("aif_allocation_outcomes_lost_total") or 0.0


def test_an_outcome_has_the_decision_the_facts_and_the_measured_cost() -> None:
    metrics = Metrics()
    outcomes, choice, allocator = decide(metrics)
    allocator.end(choice, 5, "ranked", 3.25)
    producer = FakeProducer()
    outcomes.send(producer)
    [(topic, value, key)] = producer.sent
    record = AllocationOutcome.model_validate_json(value)
    assert topic == "p.allocation-outcomes" and key == b"5" and json.loads(value)["user_id"] == 5
    assert (record.action, record.state, record.took_ms, record.version, record.arm, record.propensity) == (
        "full/10000",
        "ranked",
        3.25,
        7,
        "policy",
        1.0,
    )
    assert (record.candidates, record.behaviours, record.needs_user, record.user_value, record.retrieval_top) == (
        10_000,
        50,
        True,
        2.0,
        0.5,
    )
    assert lost(metrics) == 0


def test_a_broker_that_takes_nothing_costs_outcomes_and_no_request() -> None:
    metrics = Metrics()
    outcomes, choice, allocator = decide(metrics)
    for producer in (FakeProducer(full=True), FakeProducer(KafkaError(KafkaError._MSG_TIMED_OUT))):
        allocator.end(choice, 5, "ranked", 1.0)
        outcomes.send(producer)
    assert lost(metrics) == 2
    for _ in range(10_005):
        allocator.end(choice, 5, "late", None)
    assert lost(metrics) == 7, "the queue is bounded"


def test_in_mode_off_there_is_nothing_to_learn_from() -> None:
    metrics = Metrics()
    outcomes, choice, allocator = decide(metrics, "off")
    allocator.end(choice, 5)
    producer = FakeProducer()
    outcomes.send(producer)
    assert producer.sent == []


def test_a_probe_has_the_ten_best_of_each_length_and_few_of_them_wait() -> None:
    """Item i scores i / 8; item 0 is unknown, item 999 is there twice. Sums of more probes than may wait are left out, not their outcomes."""
    ids = list(range(999, 0, -1))
    probe = Probe([*range(1_000), 999], None, ids, np.array(ids, np.float32) / 8)
    by_retrieval = probe._replace(retrieval_scores=[*(float(-n) for n in range(1_000)), -2_000.0])
    sums = probe.sum_best(built_in_table().actions)
    assert sums["full/500"] == sum(range(490, 500)) / 8 and sums["full/10000"] == sum(range(990, 1_000)) / 8
    assert by_retrieval.sum_best(built_in_table().actions)["full/700"] == sum(range(690, 700)) / 8 and len(sums) == 20
    assert sums["twopass/10000"] == sums["full/10000"], "both passes have the same scores"
    outcomes, choice, allocator = decide(Metrics())
    for _ in range(2):  # what was sent makes room
        for _ in range(70):
            allocator.end(choice, 5, "ranked", None, probe)
        producer = FakeProducer()
        outcomes.send(producer)
        said = [AllocationOutcome.model_validate_json(value).predicted is not None for _, value, _ in producer.sent]
        assert said == [True] * 64 + [False] * 6


def test_a_probe_knows_what_two_passes_would_have_lost() -> None:
    """Item i scores i. The first pass takes items of even number for better than all others, so a tenth of 100 candidates are the last even ones."""
    ids = list(range(999, -1, -1))
    scores_A = np.array(ids, np.float32)
    probe = Probe(list(range(1_000)), None, ids, scores_A, np.where(scores_A % 2, scores_A - 5_000, scores_A))
    sums = probe.sum_best(list_actions(("twopass", "full"), (100, 1_000)))
    assert sums["full/100"] == sum(range(90, 100)) and sums["full/1000"] == sum(range(990, 1_000))
    assert sums["twopass/100"] == sum(range(80, 100, 2)) and sums["twopass/1000"] == sum(range(980, 1_000, 2))


def test_an_outcome_that_no_record_can_be_made_of_is_counted_and_the_next_one_is_sent() -> None:
    metrics = Metrics()
    outcomes, choice, allocator = decide(metrics)
    allocator.end(choice, 5, "no state of a request", 1.0)
    allocator.end(choice, 5, "ranked", 1.0)
    producer = FakeProducer()
    outcomes.send(producer)
    assert len(producer.sent) == 1 and lost(metrics) == 1
