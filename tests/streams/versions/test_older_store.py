"""An older copy of the index store was put back: the shards are ahead of the versions in it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.index.control import Entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import manifest_path
from tests.streams.shard_world import delete, upsert
from tests.streams.version_world import Worker, World
from tests.streams.versions.test_reconcile import go_live


@pytest.fixture
def copy(world: World) -> Path:
    """Of the store while version 1 is live."""
    go_live(world)
    return shutil.copytree(world.store.url, world.folder / "copy")


def put_back(world: World, copy: Path) -> None:
    """Shards have stopped version 1 since, and changed; then the store is the copy again, which lacks later checkpoints."""
    (worker,) = world.workers
    for version in (2, 3):
        world.want(version, seed=1)
        worker.settle()
    assert world.state.versions[1].state is State.FROZEN and 1 not in worker.tasks[0].shard.versions
    world.publish_items(upsert(7, 9, price=3.0), delete(8, 9))
    worker.settle()
    worker.close()
    shutil.rmtree(world.store.url)
    shutil.copytree(copy, world.store.url)
    for version in (2, 3):
        world.write(Entry(EntryKind.REJECT, 0, version=version, reason="unreachable"))


def test_a_version_whose_readers_would_miss_changes_is_behind_until_another_one_is_published(world: World, copy: Path) -> None:
    put_back(world, copy)
    worker = Worker(world)
    world.publish_items(upsert(9, 9, price=4.0))
    worker.step()
    shard = worker.tasks[0].shard
    assert world.state.live == 1 and shard.versions[1].behind
    assert worker.tasks[0].admitted and shard.next_offsets == world.sources_end(0)
    assert [e.reason for e in worker.events if e.kind == "behind"] == [
        "the shard is ahead of the seal in the index store, which is an older copy: readers would miss the changes in between"
    ]
    worker.step()
    assert any("version 1 is served and has fallen behind" in text for text in worker.step().alarms)
    world.want(4)
    for _ in range(14):
        worker.step()
    assert world.state.live == 4 and world.reader(4) == world.oracle(4)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_a_version_that_no_reader_can_load_is_built_again(world: World, copy: Path, damage: Callable[[Path], object]) -> None:
    put_back(world, copy)
    damage(Path(world.store.url, manifest_path(1, 0)))
    worker = Worker(world)
    worker.step()
    assert not worker.tasks[0].shard.versions[1].behind
