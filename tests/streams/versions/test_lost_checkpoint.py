"""The index store has damaged or lost the checkpoint of a version: what its shards do without it, and how they come back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import Unavailable
from schemas.index.control import Entry
from schemas.index.lifecycle import Cause, EntryKind, State, Wish
from schemas.index.manifest import checkpoint_path
from streams.encoder import EncoderCache, RowEncoder
from streams.versions.publication import Publication
from tests.streams.shard_world import upsert
from tests.streams.version_world import Worker, World, checkpoint_bytes, encoder_of
from tests.streams.versions.test_reconcile import go_live

RETRIED_S = 60.0  # after that a step that failed is tried again
PATH = checkpoint_path(encoder_of(1).checkpoint_sha256)


@pytest.fixture
def world(world: World) -> World:
    """Version 1 is live."""
    go_live(world).close()
    return world


def spoil(world: World, missing: bool = False) -> None:
    copy = Path(world.store.url, PATH)
    copy.unlink() if missing else copy.write_bytes(checkpoint_bytes()[:-1])


def repair(world: World) -> None:
    Path(world.store.url, PATH).write_bytes(checkpoint_bytes())


@pytest.mark.parametrize("missing", [False, True])
def test_shards_wait_for_the_live_version_s_checkpoint_and_say_so_then_nothing_is_lost(world: World, missing: bool) -> None:
    spoil(world, missing)
    worker = Worker(world)
    world.publish_items(upsert(7, 9, price=3.0))
    reports = [worker.step() for _ in range(5)]
    assert not worker.tasks[0].admitted
    assert any("publish the same checkpoint again, which repairs it, or a new one" in text for report in reports for text in report.news)
    assert all("stays paused" in text for report in reports for text in report.alarms)
    assert not worker.tasks[0].shard.versions[1].behind
    repair(world)
    for _ in range(4):
        worker.step()
    assert worker.tasks[0].admitted and world.reader(1) == world.oracle(1)


def test_a_new_version_takes_the_place_of_a_live_one_without_a_checkpoint(world: World) -> None:
    spoil(world)
    worker = Worker(world)
    world.publish_items(upsert(7, 9, price=3.0))
    worker.step()
    world.want(2, seed=1)
    for _ in range(12):
        worker.step()
    assert world.state.live == 2 and worker.tasks[0].admitted
    world.publish_items(upsert(8, 9, price=4.0))
    worker.step()
    assert world.reader(2) == world.oracle(2, 1)
    assert worker.tasks[0].shard.versions[1].behind
    assert any("damaged" in event.reason for event in worker.events if event.kind == "behind")


def test_a_new_owner_without_the_live_checkpoint_waits_for_it_too_or_for_a_new_version(world: World) -> None:
    spoil(world)
    worker = Worker(world)
    worker.tasks[0].shard.stop_version(1)
    worker.step()
    assert not worker.tasks[0].admitted and not worker.tasks[0].shard.versions
    world.want(2, seed=1)
    for _ in range(14):
        worker.step()
    assert world.state.live == 2 and worker.tasks[0].shard.versions[1].behind
    assert world.reader(2) == world.oracle(2, 1)


def test_a_backup_without_a_checkpoint_falls_behind_and_the_live_version_goes_on(world: World) -> None:
    worker = Worker(world)
    world.want(2, seed=1)
    worker.settle()
    worker.close()
    assert world.state.versions[1].state is State.BACKUP
    spoil(world)
    worker = Worker(world)
    world.publish_items(upsert(7, 9, price=3.0))
    for _ in range(3):
        worker.step()
    assert worker.tasks[0].admitted and worker.tasks[0].shard.versions[1].behind
    assert world.reader(2) == world.oracle(2, 1)


def test_a_revival_whose_checkpoint_is_lost_goes_on_when_it_is_there_again(world: World) -> None:
    worker = Worker(world)
    for version in (2, 3):
        world.want(version, seed=1)
        worker.settle()
    worker.close()
    frozen = world.state.versions[1]
    assert frozen.state is State.FROZEN
    spoil(world)
    world.write(Entry(EntryKind.WANT, 0, version=1, revision=frozen.next_revision, cause=Cause.REVIVE, wish=Wish.PROMOTE))
    world.publish_items(upsert(7, 9, price=3.0))
    worker = Worker(world)
    for _ in range(5):
        worker.step()
    assert worker.tasks[0].shard.versions[1].behind and world.state.live == 3
    repair(world)
    for _ in range(14):
        worker.step()
    assert world.state.live == 1 and world.reader(1) == world.oracle(1)


def test_a_build_whose_checkpoint_is_lost_goes_on_when_it_is_there_again(world: World) -> None:
    world.want(3, seed=1)
    path = checkpoint_path(encoder_of(3, 1).checkpoint_sha256)
    Path(world.store.url, path).write_bytes(b"")
    worker = Worker(world)
    for _ in range(6):
        worker.step()
    assert world.state.versions[3].state is State.WANTED and worker.tasks[0].admitted
    Path(world.store.url, path).write_bytes(checkpoint_bytes(1))
    for _ in range(14):
        worker.step()
    assert world.state.live == 3 and world.reader(3) == world.oracle(3, 1)


def test_a_new_owner_lets_nothing_in_before_it_has_started_a_version_whose_former_owner_may_have_sealed_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.want(3, seed=1)

    def get(cache: EncoderCache, version: int, sha256: str, read: Callable[..., RowEncoder] = EncoderCache.get) -> RowEncoder:
        if version == 3:
            raise Unavailable("store_fault", "does not answer")
        return read(cache, version, sha256)

    with monkeypatch.context() as patch:
        patch.setattr(EncoderCache, "get", get)
        worker = Worker(world)
        report = worker.step()
    assert not worker.tasks[0].admitted and any("[3] are not started" in text for text in report.alarms)
    world.clock.seconds += RETRIED_S
    worker.step()
    assert worker.tasks[0].admitted and not worker.tasks[0].shard.versions[3].behind


def test_a_version_that_was_behind_stays_so_where_a_seal_of_the_shard_may_be_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publication, "create_manifest", lambda *_: (_ for _ in ()).throw(Unavailable("store_fault", "does not answer")))
    world.want(3, seed=1)
    worker = Worker(world)
    for _ in range(10):
        worker.step()
    shard = worker.tasks[0].shard
    assert shard.versions[3].sealed_revision == 0 and world.state.versions[3].state is State.WANTED
    shard.update_version(3, behind=True)
    for _ in range(3):
        worker.step()
    assert shard.versions[3].behind
    monkeypatch.undo()
    world.clock.seconds += RETRIED_S
    worker.step()
    assert world.state.live == 3 and shard.versions[3].behind
