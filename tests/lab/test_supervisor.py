"""A supervised child is started again when it dies, given up when that does not help, and stays stopped when it is stopped."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from infra.heartbeat import beat
from infra.processes import Child, start_child, wait_until
from lab.supervisor import RESTARTS_MAX, HeartbeatWatch, Supervised
from schemas.errors import Unavailable


def test_a_killed_child_is_started_again_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    said: list[str] = []
    one = Supervised(lambda: start_child("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log"), said.append)
    first = one.child
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: one.child is not first and one.child.alive(), 60, "the restart")
    one.stop()
    assert not one.child.alive() and len(said) == 1 and "-9" in said[0]
    one.check()


def test_a_child_that_keeps_dying_is_given_up_with_its_log(tmp_path: Path) -> None:
    started: list[Child] = []

    def start() -> Child:
        started.append(start_child("failing", [sys.executable, "-S", "-c", "print('no luck'); raise SystemExit(3)"], tmp_path / "log"))
        return started[-1]

    one = Supervised(start)
    wait_until(lambda: one.failed is not None, 30, "the supervisor to give up")
    with pytest.raises(Unavailable, match=r"exit code 3(?s:.*)no luck"):
        one.check()
    assert len(started) == RESTARTS_MAX
    one.stop()


def test_a_child_that_cannot_be_started_again_is_given_up_with_the_reason(tmp_path: Path) -> None:
    children = [start_child("once", [sys.executable, "-S", "-c", ""], tmp_path / "log")]

    def start() -> Child:
        if not children:
            raise Unavailable("no_template", "the template is gone")
        return children.pop()

    one = Supervised(start)
    wait_until(lambda: one.failed is not None, 30, "the supervisor to give up")
    with pytest.raises(Unavailable, match=r"once .*the template is gone"):
        one.check()
    one.stop()


def test_a_child_without_a_sign_of_life_is_ended_and_started_again_and_one_that_beats_is_left_alone(tmp_path: Path) -> None:
    code = "import asyncio; from pathlib import Path; from infra.heartbeat import beat; asyncio.run(beat(Path({path!r}), 0.05))"
    said: list[str] = []
    frozen, well = (tmp_path / name / "heartbeat" for name in ("frozen", "well"))

    def supervise(path: Path) -> Supervised:
        command = [sys.executable, "-c", code.format(path=str(path))]
        return Supervised(lambda: start_child(path.parent.name, command, tmp_path / "log"), said.append, path, silent_s_max=8.0)

    both = [supervise(frozen), supervise(well)]
    try:
        wait_until(lambda: frozen.exists() and well.exists(), 60, "both to beat")
        first, second = (one.child for one in both)
        os.kill(first.pid, signal.SIGSTOP)
        wait_until(lambda: both[0].child is not first and both[0].child.alive(), 60, "the frozen one to be started again")
        assert both[1].child is second and second.alive()
        assert ["gave no sign of life" in line for line in said] == [True, False] and "frozen" in said[0]
    finally:
        for one in both:
            one.stop()


def test_a_start_may_be_silent_for_longer_than_a_process_that_has_given_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    path.touch()  # of an earlier process
    slow, never = HeartbeatWatch(path, silent_s_max=0.0, start_s_max=600.0), HeartbeatWatch(path, silent_s_max=600.0, start_s_max=0.0)
    wait_until(never.is_silent, 20, "a start without a sign of life to be too long")
    assert not slow.is_silent()
    os.utime(path, ns=(1, 1))
    wait_until(slow.is_silent, 20, "the first sign of life to end the patience with its start")


def test_a_disk_that_takes_nothing_for_a_while_does_not_end_the_beating(tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    folder.write_text("in the way")

    async def live() -> None:
        beating = asyncio.create_task(beat(folder / "heartbeat", 0.001))
        await asyncio.wait({beating}, timeout=0.05)
        folder.unlink()
        await asyncio.to_thread(wait_until, (folder / "heartbeat").exists, 20, "a beat")
        beating.cancel()

    asyncio.run(live())
