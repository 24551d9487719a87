"""A supervised child is started again when it dies, given up when that does not help, and stays stopped when it is stopped."""

import sys
from pathlib import Path

import pytest

from infra.processes import Child, start_child, wait_until
from infra.supervisor import RESTARTS_MAX, Supervised
from schemas.errors import Unavailable


def test_a_killed_child_is_started_again_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    said: list[str] = []
    one = Supervised(lambda: start_child("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log"), said.append)
    first = one.child
    first.process.kill()
    wait_until(lambda: one.child is not first and one.child.alive(), 20, "the restart")
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
