"""The sampler next to a real engine: right answers agree with fp64, a planted fault is seen, rows that moved are not compared, nothing waits for it."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from infra.metrics import Metrics
from infra.processes import wait_until
from serving.audit.parity_sampler import ParityFigures, ParitySampler, compare_answer
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import ChangeBatch
from serving.engine.work import RankResult, RankWork, UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version, running_engine


@dataclass
class Sampled:
    version: Version
    engine: Engine
    metrics: Metrics = field(default_factory=Metrics)

    def sampler(self, share: float = 1.0, every_s: float = 0.0) -> ParitySampler:
        return ParitySampler(self.engine, self.metrics, share, every_s)

    def ask(self) -> tuple[RankWork, RankResult]:
        work = RankWork(self.version.ids, 10, user=UserWork(PROFILE, make_behaviours(self.version, 40)), context=CONTEXT)
        return work, self.engine.submit_rank(work).result(60)

    def count(self, outcome: str) -> float:
        return float(self.metrics.counter("parity_samples").labels(outcome)._value.get())

    def gauge(self, name: str) -> float:
        return float(self.metrics.gauge(name)._value.get())


@pytest.fixture(params=["full", "no_bid_text_ids"])
def sampled(request: pytest.FixtureRequest) -> Iterator[Sampled]:
    version = make_version(SPECS[request.param], 120)
    with running_engine(version) as engine:
        yield Sampled(version, engine)


def test_right_answers_agree_with_the_reference_in_fp64(sampled: Sampled) -> None:
    sampler = sampled.sampler()
    sampler.offer(*sampled.ask())
    wait_until(lambda: sampled.count("checked") == 1, 30, "the sample")
    sampler.close()
    assert 0 < sampled.gauge("parity_difference_max") < 1e-5, "exactly equal would mean that fp32 was compared with itself"
    assert sampled.gauge("parity_overlap_min") == 1.0


def test_a_planted_fault_is_seen(sampled: Sampled) -> None:
    work, result = sampled.ask()
    worst = min(sampled.version.ids, key=lambda one: one in result.ids)
    wrong = dataclasses.replace(result, ids=[*result.ids[:-1], worst], probabilities_AT=result.probabilities_AT + np.float32(0.25))
    sampler = sampled.sampler()
    sampler.offer(work, wrong)
    wait_until(lambda: sampled.count("checked") == 1, 30, "the sample")
    sampler.close()
    assert sampled.gauge("parity_difference_max") > 0.2 and sampled.gauge("parity_overlap_min") == 0.9


def test_rows_that_moved_on_since_the_answer_are_not_compared(sampled: Sampled) -> None:
    work, result = sampled.ask()
    assert sampled.engine.offer_changes(ChangeBatch(1, 0, None, 2, {"index-deltas": 2}))
    sampled.engine.run(lambda: None).result(60)
    sampled.ask()
    sampler = sampled.sampler()
    sampler.offer(work, result)
    wait_until(lambda: sampled.count("moved") == 1, 30, "the sample to be dropped")
    sampler.close()


def test_only_its_share_is_taken_and_never_more_than_one_in_a_while(sampled: Sampled) -> None:
    asked = sampled.ask()
    none, rarely = sampled.sampler(share=0.0), sampled.sampler(every_s=1_000.0)
    for _ in range(5):
        none.offer(*asked)
        rarely.offer(*asked)
    wait_until(lambda: sampled.count("checked") == 1, 30, "the one sample")
    none.close()
    rarely.close()
    assert sum(sampled.count(outcome) for outcome in ("checked", "moved", "busy", "failed")) == 1


PLACE = {7: 0, 8: 1, 9: 2}
SCORES = np.array([0.9, 0.5, 0.1])
REFERENCE = SCORES[:, None]


def test_the_same_answer_has_no_difference_and_the_whole_top() -> None:
    assert compare_answer(PLACE, SCORES, REFERENCE, [7, 8], REFERENCE[:2]) == ParityFigures(0.0, 1.0)


def test_a_wrong_item_lowers_the_overlap_and_a_wrong_probability_is_the_difference() -> None:
    figures = compare_answer(PLACE, SCORES, REFERENCE, [7, 9], np.array([[0.9], [0.35]]))
    assert figures.overlap == 0.5 and np.isclose(figures.difference_max, 0.25)


def test_an_empty_answer_agrees_with_anything() -> None:
    assert compare_answer({}, np.zeros(0), np.zeros((0, 1)), [], np.zeros((0, 1))) == ParityFigures(0.0, 1.0)
