"""Readiness falls when a server cannot answer, and every one of its threads that is ended begins again."""

import threading
import time
from pathlib import Path

import pytest

from infra.guarded_thread import report_threads
from infra.processes import wait_until
from serving.engine.loop import engine
from serving.engine.work import EngineStatus
from serving.health import FAULTS_MIN, HUNG_S_MAX, TURN_S_MAX, WINDOW_S, Health
from tests.infra.threads import raise_in
from tests.serving.test_server import WAIT_S, serve, write_identity


class Process:
    """What a server's health is read from, without the server."""

    def __init__(self) -> None:
        self.now_s, self.answers, self.faults, self.turn_age_s = 0.0, 0, 0, 0.0
        self.health = Health(self.status, lambda: (self.answers, self.faults), lambda: self.now_s)

    def status(self) -> EngineStatus:
        return EngineStatus("cpu", None, (), 0, 0, 0, 0, 0, turn_age_s=self.turn_age_s)

    def after(self, seconds: float, answers: int = 0, faults: int = 0) -> str:
        self.now_s, self.answers, self.faults = self.now_s + seconds, self.answers + answers, self.faults + faults
        self.health.look()
        return self.health.why_not()


def test_readiness_falls_while_most_recent_rankings_fail_and_heals_after_them() -> None:
    process = Process()
    assert process.after(1, answers=100) == ""
    assert process.after(WINDOW_S * 2, answers=FAULTS_MIN - 1, faults=FAULTS_MIN - 1) == "", "a few say nothing"
    assert "12 of the last 20 rankings" in process.after(WINDOW_S * 2, answers=20, faults=12)
    assert "12 of the last 20 rankings" in process.after(1)
    assert process.after(1, answers=10) == "", "now most succeed"
    assert "rankings" in process.after(1, answers=50, faults=50)
    assert process.after(WINDOW_S + 1) == "", "they are no longer recent"


def test_readiness_falls_when_the_engine_hangs_or_has_ended_and_then_the_process_ends() -> None:
    process = Process()
    process.turn_age_s = TURN_S_MAX + 1
    assert "has not turned for 11 s" in process.after(1) and not process.health.is_hung
    process.turn_age_s = HUNG_S_MAX + 1
    assert process.health.is_hung
    process.turn_age_s = float("inf")
    assert "the engine has not turned" in process.after(1) and process.health.describe()["engine"]["alive"] is False


def test_a_process_that_was_stopped_as_a_whole_has_no_engine_that_hangs() -> None:
    process = Process()
    process.after(1)
    process.turn_age_s = 2 * HUNG_S_MAX
    assert process.after(2 * HUNG_S_MAX) == "" and not process.health.is_hung, "SIGSTOP, a frozen container, a paused machine"
    for _ in range(round(HUNG_S_MAX)):
        process.after(1)
    assert not process.health.is_hung
    process.after(1)
    assert process.health.is_hung, "it has not turned since then either"


def test_a_server_whose_engine_hangs_ends_though_changes_wait_for_it(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that follows index-deltas waited for room in the engine's queue, and the end of the server for that thread."""
    monkeypatch.setattr(engine, "CHANGES_QUEUED_MAX", 1)
    monkeypatch.setattr(engine, "CLOSE_S_MAX", 0.1)
    goes_on = threading.Event()
    try:
        with serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
            write_identity(served.log, served.versions[1])
            served.publish(1)
            served.client.wait_ready(WAIT_S)
            served.server.engine.run(goes_on.wait)
            for place in range(4):
                served.change(1, place)
            wait_until(lambda: served.server.engine.status().queued_changes == 1, WAIT_S, "the queue to be full")
            time.sleep(1.0)  # the next change has come
    finally:
        goes_on.set()


def test_every_thread_of_a_server_that_is_ended_begins_again(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    with serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
        write_identity(served.log, served.versions[1])
        served.publish(1)
        served.client.wait_ready(WAIT_S)
        guarded = {report.name for report in report_threads()}
        assert {"versions", "deltas-1", "user-follower", "user-dead-letters", "reports"} <= guarded
        before = served.client.status()["threads"]
        for thread in threading.enumerate():
            if thread.name in guarded | {"engine"}:
                raise_in(thread, SystemExit)
        for name in guarded | {"engine"}:
            wait_until(
                lambda name=name: (now := served.client.status()["threads"][name])["alive"] and now["faults"] > before[name]["faults"],
                WAIT_S,
                f"thread {name} to begin again",
            )
        served.publish(2)
        wait_until(lambda: served.ask(1, 5).version_token.startswith("2."), WAIT_S, "the next version")
        served.change(2, 3)
        written = served.clock
        wait_until(lambda: any(s["item-features"] > written for s in served.ask(2, 5).freshness.watermark), WAIT_S, "the next change")
        assert served.client.status()["ready"] is True
        with served.client._http.stream("GET", "/metrics") as page:
            text = page.read().decode()
        for name in ("engine", "versions", "deltas", "user-follower", "user-dead-letters", "reports"):
            assert f'aif_thread_faults_total{{thread="{name}"}} 1.0' in text, name
