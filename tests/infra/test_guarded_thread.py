"""A thread that fails is logged and counted, and begins again; one that must not begin again calls what ends the process."""

import logging
import threading

import pytest

from infra.guarded_thread import GuardedThread, count_faults, report_threads, watch_threads
from infra.metrics import Metrics
from infra.processes import wait_until
from tests.infra.threads import raise_in

WAIT_S = 20.0


class Work:
    """Fails so many times, then waits for its end."""

    def __init__(self, failures: int, error: BaseException) -> None:
        self.begun, self._failures, self._error, self.stopping = 0, failures, error, threading.Event()

    def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self._failures:
            raise self._error
        self.stopping.wait(WAIT_S)


def report_of(name: str):
    return next((report for report in report_threads() if report.name == name), None)


def faults_in(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value("aif_thread_faults_total", {"thread": name}) or 0.0


@pytest.mark.parametrize("error", [KeyError("no-such-row"), SystemExit(1)])
def test_a_thread_that_fails_is_logged_and_counted_and_begins_again(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    metrics, work = Metrics(), Work(1, error)
    count_faults(metrics)
    thread = GuardedThread(work, "follower-7", work.stopping)
    assert report_of("follower-7") is None, "it has not started"
    thread.start()
    wait_until(lambda: work.begun == 2, WAIT_S, "its second beginning")
    report = report_of("follower-7")
    assert report is not None and (report.alive, report.faults, report.last_fault) == (True, 1, repr(error))
    assert faults_in(metrics, "follower") == 1, "labels have no numbers"
    logged = next(record for record in caplog.records if "follower-7" in record.message)
    assert logged.levelno == logging.ERROR and logged.exc_info is not None
    work.stopping.set()
    thread.join(WAIT_S)
    assert not thread.is_alive() and report_of("follower-7") is None


def test_a_thread_that_is_stopped_during_its_pause_ends_and_one_whose_work_returns_is_no_fault() -> None:
    work = Work(1_000, KeyError())
    failing, done = GuardedThread(work, "failing", work.stopping), GuardedThread(lambda: None, "done", threading.Event())
    failing.start()
    done.start()
    done.join(WAIT_S)
    assert report_of("done") is None
    wait_until(lambda: work.begun > 1, WAIT_S, "its second beginning")
    work.stopping.set()
    failing.join(WAIT_S)
    assert not failing.is_alive()


def test_a_thread_that_must_not_begin_again_says_so_once_and_is_reported_as_dead() -> None:
    failed, work = list[BaseException](), Work(1, KeyError("half done"))
    thread = GuardedThread(work, "outbox", work.stopping, on_fault=failed.append)
    thread.start()
    thread.join(WAIT_S)
    report = report_of("outbox")
    assert [str(error) for error in failed] == ["'half done'"] and work.begun == 1
    assert report is not None and not report.alive
    work.stopping.set()


def test_the_error_of_any_other_thread_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics, before = Metrics(), threading.excepthook
    count_faults(metrics)
    try:
        watch_threads()
        thread = threading.Thread(target=lambda: {}["no-such-row"], name="stray")
        thread.start()
        thread.join(WAIT_S)
    finally:
        threading.excepthook = before
    assert faults_in(metrics, "stray") == 1 and any("stray" in record.message and record.exc_info for record in caplog.records)


def test_an_error_that_comes_from_outside_is_survived_too() -> None:
    work = Work(0, KeyError())
    turns = list[int]()

    def turn() -> None:
        while not work.stopping.wait(0.01):
            turns.append(1)

    thread = GuardedThread(turn, "turning", work.stopping)
    thread.start()
    raise_in(thread, SystemExit)
    wait_until(lambda: (report := report_of("turning")) is not None and report.faults == 1, WAIT_S, "its fault")
    seen = len(turns)
    wait_until(lambda: len(turns) > seen, WAIT_S, "it to turn again")
    work.stopping.set()
    thread.join(WAIT_S)
