"""A busy engine: work without a waiter is not done later, and work that has begun is waited for."""

import threading
from collections.abc import Iterator

import pytest

from infra.processes import wait_until
from schemas.errors import Unavailable
from serving.engine.loop.engine import Engine
from serving.versions import version_follower
from serving.versions.version_follower import wait_for_engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(version_follower, "ENGINE_S_MAX", 0.05)
    engine = Engine()
    engine._thread.start()  # without its kernels
    yield engine
    engine.close()


def test_what_waited_too_long_is_given_up_and_never_done(engine: Engine) -> None:
    go_on, done = threading.Event(), list[str]()
    engine.run(go_on.wait)
    with pytest.raises(Unavailable, match="engine_busy"):
        wait_for_engine(engine.run(lambda: done.append("late")))
    go_on.set()
    engine.run(lambda: done.append("next")).result(20)
    assert done == ["next"]


def test_what_has_begun_is_waited_for(engine: Engine) -> None:
    go_on, began = threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        go_on.wait()
        return "done"

    future = engine.run(work)
    wait_until(began.is_set, 20, "the work to begin")
    threading.Timer(0.2, go_on.set).start()
    assert wait_for_engine(future) == "done"
