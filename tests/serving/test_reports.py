"""What a server reports: counts of one version between two reports, by what the engine and the metrics say."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.token import VersionToken
from serving.audit.parity_sampler import ParityFigures
from serving.engine.work import RankResult
from serving.reports import Reporter, quantiles_ms

FOUR, FIVE = VersionToken(4, 0, "aaaaaaaa"), VersionToken(5, 0, "bbbbbbbb")


class Served:
    """A server that answers from `token`."""

    def __init__(self) -> None:
        self.token: VersionToken | None = FOUR
        self.metrics = Metrics()
        self.reporter = Reporter(self.metrics, "nowhere:1", "", "host:1", 10.0, lambda: self.token)

    def answer(
        self, token: VersionToken = FOUR, probability: float = 0.25, seconds: float = 0.0015, status: str = "200", known: int = 2
    ) -> None:
        probabilities = np.full((known, 1), probability, np.float32)
        result = RankResult(token, list(range(known)), probabilities[:, 0], probabilities, [], 0, 2, [], Any, processor_ms=1.5)  # type: ignore[arg-type]
        self.metrics.counter("requests").labels("/v1/rank", status).inc()
        self.metrics.histogram("request_seconds").labels("/v1/rank").observe(seconds)
        if status == "200":
            self.reporter.note(result)


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_report_counts_what_was_since_the_last_one(served: Served) -> None:
    for _ in range(97):
        served.answer()
    served.answer(probability=np.nan)
    served.answer(status="500")
    served.answer(status="404", seconds=0.4)
    served.reporter.note_parity(4, ParityFigures(0.2, 1.0))
    served.reporter.note_parity(4, ParityFigures(1e-7, 1.0))
    report = served.reporter.make_report()
    assert report is not None
    assert (report.version, report.version_token, report.answers, report.not_finite, report.failed) == (4, "4.0-aaaaaaaa", 98, 1, 1)
    assert (report.parity_checked, report.parity_mismatched) == (2, 1)
    assert report.processor_ms == pytest.approx(1.5 * 98) and report.candidates == 2 * 98
    assert report.probability_p05 == report.probability_p50 == report.probability_p95 == 0.25
    assert (
        report.latency_p50_ms is not None and 1.0 <= report.latency_p50_ms <= 2.0 and report.latency_p99_ms == pytest.approx(2.0, rel=0.1)
    )
    idle = served.reporter.make_report()
    assert idle is not None and (idle.answers, idle.failed, idle.latency_p99_ms, idle.probability_p50) == (0, 0, None, None)


def test_an_interval_with_two_versions_is_not_reported_and_the_next_one_is_whole(served: Served) -> None:
    served.answer(status="500")
    served.token = FIVE
    served.answer(FIVE)
    assert served.reporter.make_report() is None
    served.answer(FIVE)
    served.answer(FOUR)  # a request that was pinned to the former version
    report = served.reporter.make_report()
    assert report is not None and (report.version, report.answers, report.failed) == (5, 1, 0)


def test_answers_to_candidates_that_are_all_unknown_are_reported_too(served: Served) -> None:
    served.answer(known=0)
    report = served.reporter.make_report()
    assert report is not None and (report.answers, report.not_finite, report.probability_p50) == (1, 0, None)


def test_without_a_version_there_is_nothing_to_report(served: Served) -> None:
    served.token = None
    assert served.reporter.make_report() is None and served.reporter.make_report() is None


def test_a_new_revision_of_the_version_is_the_same_version(served: Served) -> None:
    served.token = dataclasses.replace(FOUR, revision=1, digest8="cccccccc")
    served.answer(served.token)
    report = served.reporter.make_report()
    assert report is not None and report.answers == 1


def test_quantiles_of_a_histogram_lie_in_their_bucket() -> None:
    counts = {0.001: 10, 0.01: 90, 0.1: 99, float("inf"): 100}
    p50, p99, p100 = quantiles_ms(counts, (0.5, 0.99, 1.0))
    assert p50 is not None and 1.0 < p50 < 10.0 and p99 == pytest.approx(100.0) and p100 == pytest.approx(100.0)
    assert quantiles_ms({}, (0.5,)) == quantiles_ms({0.1: 0}, (0.5,)) == [None]


def test_a_report_that_cannot_be_made_is_no_end_of_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, calls = Reporter(Metrics(), "127.0.0.1:9", "", "host:1", 0.01, lambda: FOUR), list[int]()

    def fail() -> None:
        calls.append(1)
        raise ValueError("odd")

    monkeypatch.setattr(reporter, "make_report", fail)
    reporter.start()
    wait_until(lambda: len(calls) > 1, 10, "a second report to be tried")
    reporter.close()
