"""Workers whose clocks are hours or days off: their common decisions go by the clock that PROTOCOL names."""

import threading

import pytest

from infra.index.control_log import ControlLog
from infra.index.store import StoreClock, fetch_store_time_ms
from infra.settings import load_settings
from schemas.index.manifest import checkpoint_path
from streams.settings import WorkerSettings
from streams.versions.keepers import SnapshotKeeper, SnapshotTimes
from streams.versions.publication import Publication
from streams.versions.version_side import VersionSide
from tests.infra.index.test_store_clock import DAY_S, WrongClock
from tests.streams.shard_world import upsert
from tests.streams.version_world import Worker, World


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


HOUR_S = 3_600.0
OFF = pytest.mark.parametrize("off_s", [-1.1 * HOUR_S, -0.9 * HOUR_S, 0.9 * HOUR_S, 1.1 * HOUR_S])


@OFF
def test_a_revision_is_wanted_after_the_interval_by_the_stores_clock(world: World, off_s: float) -> None:
    worker = Worker(world)
    world.want(1)
    worker.settle()
    worker.close()
    log, wrong = ControlLog(world.store), WrongClock(off_s)
    publication = Publication(log, world.store, StoreClock(world.store, wrong), "w")
    interval_ms = int(HOUR_S / 2 * 1000)
    assert publication.revise(log.refresh(), interval_ms) == []
    wrong.seconds += HOUR_S
    assert [due.version for due in publication.revise(log.refresh(), interval_ms)] == [1]


@OFF
def test_a_snapshot_is_taken_after_the_interval_by_the_stores_clock(world: World, off_s: float) -> None:
    world.publish_items(upsert(1, 1))
    worker = Worker(world, snapshots=SnapshotTimes(1e12, 1))
    worker.settle()
    world.publish_items(upsert(2, 1))
    worker.settle()
    wrong = WrongClock(off_s)
    keeper = SnapshotKeeper(world.store, StoreClock(world.store, wrong), SnapshotTimes(HOUR_S / 2, 10**9))
    (task,) = worker.tasks
    world.publish_items(upsert(3, 1))
    task.consume()
    assert not keeper.is_due(task)  # type: ignore[arg-type]
    wrong.seconds += HOUR_S
    assert keeper.is_due(task)  # type: ignore[arg-type]


@OFF
def test_entries_of_a_worker_are_dated_by_the_stores_clock(world: World, monkeypatch: pytest.MonkeyPatch, off_s: float) -> None:
    """How long the files of a rejected or aborted version stay is counted from its entry."""
    for name, value in (("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"), ("BUILD__WARM", "false"), ("ROLLBACK__ENABLED", "false")):
        monkeypatch.setenv(f"AIF_{name}", value)
    log = ControlLog(world.store)
    side = VersionSide(
        load_settings(WorkerSettings),
        log,
        WrongClock(off_s),
        owned=list,
        folder=world.folder / "worker",
        stopping=threading.Event(),
        by="test",
        template=None,
    )
    dated_ms = side.gate.clock.now_ms()
    side.close()
    assert abs(dated_ms - fetch_store_time_ms(world.store)) < HOUR_S * 100
