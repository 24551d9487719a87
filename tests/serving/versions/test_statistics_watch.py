"""How old a server says that the statistics of items are."""

from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from infra.kafka.reader import SourceRecord
from schemas.events import StatisticsReport, encode_record
from schemas.topics import STATISTICS_REPORTS
from serving.versions.freshness import StatisticsWatch


def open_watch() -> StatisticsWatch:
    kafka: Any = SimpleNamespace(bootstrap="", topic_prefix="")
    return StatisticsWatch(kafka)


def report(names: list[str], user_names: list[str] | None = None) -> SourceRecord:
    told = StatisticsReport(at_ms=2, as_of_ms=1, names=names, user_names=user_names or [])
    return SourceRecord(STATISTICS_REPORTS, 0, 0, None, encode_record(told))


def test_a_statistic_is_as_old_as_the_last_report_that_names_it() -> None:
    watch = open_watch()
    watch.take(report(["taken"], ["clicks"]))
    watch.take(SourceRecord(STATISTICS_REPORTS, 0, 1, None, b"no report"))
    ages = watch.ages_s(["taken", "other", "clicks", "user:clicks"])
    assert ages["taken"] is not None and ages["taken"] >= 0 and ages["other"] is None
    assert ages["user:clicks"] is not None and ages["clicks"] is None, "statistics of users have names of their own"
    assert watch.oldest_s(["taken", "other"]) > watch.oldest_s(["taken"]) > 0 == watch.oldest_s([])


def test_a_statistic_that_no_process_keeps_is_named_beyond_the_limit_and_never_without_one() -> None:
    watch = open_watch()
    assert watch.why_old(["taken"], 30.0) == "", "a server that just began has heard nothing yet"
    assert "taken" in watch.why_old(["taken"], 1e-9) and watch.why_old(["taken"], 0) == "" == watch.why_old([], 1e-9)


def test_reports_of_ever_other_names_do_not_fill_the_memory() -> None:
    watch = open_watch()
    for n in range(100):
        watch.take(report(["taken", *(f"forged_{n}_{m}" for m in range(255))]))
    assert len(watch._named_at_s) <= 3_000 and watch.ages_s(["taken"])["taken"] is not None


def test_forged_reports_do_not_fill_the_log() -> None:
    watch = open_watch()
    with capture_logs() as lines:
        for n in range(100):
            watch.take(SourceRecord(STATISTICS_REPORTS, 0, n, None, b"no report"))
    assert [(line["event"], line["count"]) for line in lines] == [("report_skipped", 1)]
