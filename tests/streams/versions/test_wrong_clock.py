"""A worker whose clock is days off: it removes nothing that was put just now."""

import threading

import pytest

from infra.index.control_log import ControlLog
from infra.settings import load_settings
from schemas.index.manifest import checkpoint_path
from streams.settings import WorkerSettings
from streams.versions.version_side import VersionSide
from tests.infra.index.test_store_clock import DAY_S, WrongClock
from tests.streams.version_world import World


def test_a_worker_whose_clock_is_days_ahead_removes_no_file_that_was_put_just_now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"), ("BUILD__WARM", "false"), ("ROLLBACK__ENABLED", "false")):
        monkeypatch.setenv(f"AIF_{name}", value)
    unnamed = checkpoint_path("0" * 64)  # as between the copy of a checkpoint and its `want`
    world.store.put_bytes(unnamed, b"x")
    side = VersionSide(
        load_settings(WorkerSettings),
        ControlLog(world.store),
        WrongClock(3 * DAY_S),
        owned=list,
        folder=world.folder / "worker",
        stopping=threading.Event(),
        by="test",
        template=None,
    )
    report = side.step()
    side.close()
    assert not report.errors and world.store.exists(unnamed)
