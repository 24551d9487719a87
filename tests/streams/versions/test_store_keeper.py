"""Retention on a real store: versions are dropped, their files go later, and files that are served or needed to start a shard still read."""

import dataclasses
from collections.abc import Callable

import pytest

from infra.index.removal import read_store_content, remove_due
from infra.index.verify import verify_version
from schemas.errors import Corrupted
from schemas.index.control import Entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import UNIQUE_DIGITS, checked_name, encode_seal, seal_path
from schemas.index.retention import RetentionRules, plan_removals
from streams.shard.log_ends import LogRange
from streams.shard.snapshot_files import list_snapshots
from streams.shard.start import start_shard
from streams.versions.keepers import SnapshotTimes
from tests.streams.shard_world import upsert
from tests.streams.version_world import Worker, World

LATE_S = 1e10  # far beyond the time of the store's files


def live_four_times(world: World, worker: Worker) -> None:
    worker.settle()
    for version in range(1, 5):
        world.want(version, version % 2)
        worker.settle()
        world.publish_items(upsert(version, 5 + version, price=3.0), upsert(100 + version, 1, price=1.0))
        worker.settle()


@pytest.fixture
def world(world: World) -> World:
    world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i) for i in range(60)))
    return world


def test_old_versions_are_dropped_then_their_files_go_and_what_is_left_verifies(world: World) -> None:
    keep = RetentionRules(2, 100_000)
    worker = Worker(world, keep=keep, snapshots=SnapshotTimes(1e12, 1), reseal_interval_s=1e12)
    live_four_times(world, worker)
    state = world.state
    assert [s.state for s in state.versions.values()] == [State.REMOVED, State.REMOVED, State.BACKUP, State.LIVE]
    assert world.store.list("versions/1/") and world.store.list("versions/2/")  # the grace period
    assert len(list_snapshots(world.store, 0)[0]) > 2
    world.clock.seconds = LATE_S
    worker.settle()
    assert not world.store.list("versions/1/") and not world.store.list("versions/2/")
    assert len(list_snapshots(world.store, 0)[0]) == 2 and len(world.store.list("checkpoints/")) == 2
    for version in (3, 4):
        status = world.state.versions[version]
        assert verify_version(world.store, status).faults == ()
        assert world.reader(version) == world.oracle(version, version % 2)
    worker.close()
    ends = world.sources_end(0)
    log = {t: LogRange(1, e) if e else LogRange(0, 0) for t, e in ends.items()}
    started = start_shard(world.folder / "new", 0, world.init, "index", world.clock, log, world.store)
    started.close()


def test_a_step_ends_though_the_store_takes_minutes_to_remove_what_is_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback waits for the end of the step. An object store takes tens of milliseconds for each file."""
    worker = Worker(world, keep=RetentionRules(2, 100_000), reseal_interval_s=1e12)
    live_four_times(world, worker)
    remove, removed = world.store.remove, list[str]()

    def remove_slowly(path: str) -> None:
        world.clock.seconds += 0.3
        removed.append(path)
        remove(path)

    monkeypatch.setattr(world.store, "remove", remove_slowly)
    world.clock.seconds = LATE_S
    worker.step()
    assert world.store.list("versions/1/") and world.clock.seconds < LATE_S + 3
    for _ in range(20):
        worker.step()
    assert not world.store.list("versions/1/") and not world.store.list("versions/2/")
    assert [path.endswith(".json") for path in removed] == sorted((path.endswith(".json") for path in removed), reverse=True)


def test_a_plan_removes_no_part_of_a_shard_that_came_after_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner knows that the shard uses a part that it has not sealed yet."""
    worker = Worker(world, reseal_interval_s=1e12)
    worker.settle()
    world.want(4)
    worker.settle()
    worker.close()
    (world.folder / "shard-0").rename(world.folder / "lost")
    first = Worker(world, reseal_interval_s=1e12)  # builds its full part again, and seals it at the next revision
    first.settle()
    full = first.tasks[0].shard.versions[4].full
    assert full is not None and full != world.manifest(4).seals[0].full
    for number in range(10):
        world.store.put_bytes(f"checkpoints/{number:064x}.safetensors", b"of no version")
    second, remove = Worker(world, numbers=(), name="second", reseal_interval_s=1e12), world.store.remove

    def remove_slowly(path: str) -> None:
        world.clock.seconds += 0.3
        remove(path)

    monkeypatch.setattr(world.store, "remove", remove_slowly)
    world.clock.seconds = LATE_S
    second.step()
    second.tasks, first.tasks = first.tasks, []
    for _ in range(20):
        second.step()
    assert len(world.store.list("checkpoints/")) == 1 and world.store.list(full.directory)
    first.tasks, second.tasks = second.tasks, []


def test_checkpoints_during_a_hold_add_neither_increments_nor_files_without_end(world: World) -> None:
    worker = Worker(world, keep=RetentionRules(2, 100_000), reseal_interval_s=1e12)
    worker.settle()
    world.want(1)
    worker.settle()
    world.write(Entry(EntryKind.HOLD, 0))
    for version in range(2, 8):
        world.want(version, version % 2)
        worker.settle()
    assert world.state.live == 1 and [s.version for s in world.state.receiving] == [1, 6, 7]
    assert [v for v, s in world.state.versions.items() if s.state is State.REMOVED] == [2, 3, 4, 5]
    world.write(Entry(EntryKind.RELEASE, 0))
    worker.settle()
    assert world.state.live == 7
    worker.close()


def test_what_a_killed_build_left_goes_and_a_part_that_a_shard_has_not_sealed_yet_stays(world: World) -> None:
    worker = Worker(world, keep=RetentionRules(5, 100_000))
    worker.settle()
    world.want(4)
    worker.settle()
    (world.folder / "orphan").write_bytes(b"x")
    world.store.put_file("versions/4/full/00000-0123456789ab/000009.sst", world.folder / "orphan")
    worker.close()
    (world.folder / "shard-0").rename(world.folder / "lost")  # a new owner builds its full part again, and seals it at the next revision
    worker = Worker(world, keep=RetentionRules(5, 100_000), reseal_interval_s=1e12)
    worker.settle()
    full = worker.tasks[0].shard.versions[4].full
    assert full is not None and full != world.manifest(4).seals[0].full
    world.clock.seconds = LATE_S
    worker.settle()
    assert not world.store.list("versions/4/full/00000-0123456789ab")
    assert world.store.list(full.directory) and world.store.list(world.manifest(4).seals[0].full.directory)


@pytest.mark.parametrize("damage", [lambda raw: b"{", lambda raw: raw.replace(b"versions/4/full/", b"versions/5/full/")])
def test_a_manifest_that_does_not_read_or_names_other_files_stops_every_removal(world: World, damage: Callable[[bytes], bytes]) -> None:
    worker = Worker(world)
    worker.settle()
    world.want(4)
    worker.settle()
    path = world.store.local_path("versions/4/0/manifest.json")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Corrupted, match=r"bad_manifest: versions/4/0/manifest.json of .* no file is removed until"):
        read_store_content(world.store, world.state)


def test_a_seal_with_another_digit_stops_every_removal(world: World) -> None:
    worker = Worker(world)
    worker.settle()
    world.want(4)
    worker.settle()
    world.want(5)
    raw = encode_seal(world.manifest(4).seals[0])
    path = seal_path(5, 0, 0, checked_name("0" * UNIQUE_DIGITS, raw))
    world.store.put_bytes(path, raw)
    assert len(read_store_content(world.store, world.state).open_seals) == 1
    world.store.local_path(path).write_bytes(raw.replace(b"versions/4/full/", b"versions/5/full/"))
    with pytest.raises(Corrupted, match=r"bad_seal: versions/5/0/seals/.* of .* no file is removed until"):
        read_store_content(world.store, world.state)


def test_a_file_that_was_put_again_since_the_plan_stays_and_so_do_files_of_others(world: World) -> None:
    world.want(4)
    state = world.state
    for foreign in ("versions/notes.json", "versions/notes/of/seals/somebody.json", "snapshots/notes.json", "replays/notes"):
        world.store.put_bytes(foreign, b"{}")
    world.store.put_bytes("checkpoints/" + "a" * 64 + ".safetensors", b"x")
    rules = RetentionRules(5, 1_000)
    removals = plan_removals(state, read_store_content(world.store, state), rules)
    assert len(removals) == 1
    planned_long_ago = [dataclasses.replace(removals[0], at_ms=0)]
    put_ms = world.store.stat(removals[0].path).put_ms
    assert remove_due(world.store, planned_long_ago, put_ms + 10, rules, ()) == []
    assert remove_due(world.store, planned_long_ago, put_ms + 1_000, rules, ()) == planned_long_ago
