"""Kills between any two actions, several workers at once, and planted mistakes of a seal that the checks must see."""

import dataclasses
import functools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.index.parts import is_tombstone
from infra.index.store import FolderStore
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import manifest_path
from streams.builders import sealer
from streams.builders.jobs import SealJob
from streams.builders.sealer import SealPoint
from streams.shard.log_ends import LogEnds
from streams.shard.shard import Shard
from streams.shard.shard_reader import ShardReader
from streams.versions import shard_versions
from streams.versions.publication import Publication
from tests.streams.shard_world import delete, embed, upsert
from tests.streams.version_world import Worker, World


class Killed(BaseException):
    """The process is gone at this instruction. Not an Exception: nothing in the process may handle it."""


class KillSwitch:
    """Counts what reaches disk or log, and kills before or after the chosen one."""

    def __init__(self) -> None:
        self.at, self.after, self.count = -1, False, 0

    def watch(self, target: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        act = getattr(target, name)

        def watched(*args: Any, **named: Any) -> Any:
            self.count += 1
            if self.count - 1 == self.at and not self.after:
                raise Killed
            result = act(*args, **named)
            if self.count - 1 == self.at:
                raise Killed
            return result

        monkeypatch.setattr(target, name, watched)


def fill(world: World) -> None:
    world.publish_items(*(upsert(i, 1, category=i % 5, price=1.0 + i) for i in range(40)))
    world.publish_embeddings(*(embed(i, *range(i, i + 6)) for i in range(0, 40, 2)))


def run_to_live(world: World, worker: Worker) -> None:
    """As a worker runs, with updates that arrive all the time."""
    for n in range(30):
        if 4 not in world.state.versions:
            world.want(4)
        world.publish_items(upsert(n, 2 + n, price=0.5), delete((n + 7) % 40, 2 + n))
        report = worker.step()
        assert not report.errors, report.errors
        if world.state.live == 4 and not report.done:
            return
    raise AssertionError("version 4 never went live")


@functools.cache
def actions_of_a_life() -> int:
    """How many watched actions one undisturbed life has."""
    with pytest.MonkeyPatch.context() as patch:
        switch = KillSwitch()
        for target, name in WATCHED:
            switch.watch(target, name, patch)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            fill(world)
            worker = Worker(world)
            run_to_live(world, worker)
            worker.close()
        return switch.count


WATCHED = (
    (FolderStore, "put_exclusive"),
    (FolderStore, "put_file"),
    (Shard, "start_version"),
    (Shard, "update_version"),
    (Shard, "create_checkpoint"),
)


SHARES = 4  # of the actions: one test for all of them opens 600 databases, and a slow disk takes longer for that than a test may


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_action_and_a_restart_still_end_published_once(
    after: bool, share: int, in_memory: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill loses nothing that was not synced, and no power is cut here
    total = actions_of_a_life()
    assert total > 15
    switch = KillSwitch()
    for target, name in WATCHED:
        switch.watch(target, name, monkeypatch)
    for at in range(share, total, SHARES):
        folder = in_memory()
        world = World(folder)
        fill(world)
        switch.at, switch.after, switch.count = at, after, 0
        worker = Worker(world)
        try:
            run_to_live(world, worker)
        except Killed:
            for task in worker.tasks:
                task.shard.close()  # what the kernel does: the lock is free; nothing else is tidied up
            switch.at = -1
            worker = Worker(world)
            run_to_live(world, worker)
        switch.at = -1
        worker.close()
        assert world.entries(EntryKind.PUBLISH) == world.entries(EntryKind.PROMOTE) == 1, at
        assert len([p for p in world.store.list("versions/4/") if p.endswith("manifest.json")]) == 1
        seal = world.manifest(4).seals[0]
        assert seal.digest == world.oracle_shard(0, 4, seal.source_offsets).hexdigest, at
        assert world.reader(4) == world.oracle(4), at
        assert not list(folder.glob("scratch-*/*"))
        shutil.rmtree(folder)


def test_a_manifest_that_was_left_without_its_publish_and_then_damaged_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry has its checksum yet: whatever a disk had made of it would have become the version."""
    world = World(tmp_path)
    fill(world)
    worker, switch = Worker(world), KillSwitch()
    with monkeypatch.context() as patch:
        switch.watch(Publication, "publish", patch)
        switch.at = 0
        with pytest.raises(Killed):
            run_to_live(world, worker)
    path = world.store.local_path(manifest_path(4, 0))
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"item-features":', b'"item-features":1'))
    assert path.read_bytes() != good
    errors = [error for _ in range(10) for error in worker.step().errors]
    assert errors and all("bad_manifest" in error and "remove it from the store" in error for error in errors)
    assert world.entries(EntryKind.PUBLISH) == 0
    path.unlink()
    run_to_live(world, worker)
    assert world.reader(4) == world.oracle(4)


def test_workers_that_reconcile_at_once_publish_one_manifest(tmp_path: Path) -> None:
    world = World(tmp_path, shards=4)
    fill(world)
    workers = [Worker(world, (n,), f"w{n}") for n in range(4)]
    for worker in workers:
        worker.settle()
    world.want(4)
    errors: list[str] = []
    gate = threading.Barrier(4)

    def work(worker: Worker) -> None:
        try:
            for _ in range(12):
                gate.wait(60)
                errors.extend(worker.step().errors)
        except BaseException as error:
            errors.append(repr(error))
            gate.abort()

    threads = [threading.Thread(target=work, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert world.state.live == 4
    assert world.entries(EntryKind.PUBLISH) == world.entries(EntryKind.PROMOTE) == 1
    assert world.manifest(4).digest == world.oracle(4)[0]
    assert sum(e.kind == "published" for w in workers for e in w.events) == 1
    world.close()


def test_workers_that_find_a_revision_due_at_once_want_one(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    workers = [Worker(world, (n,), f"w{n}", reseal_interval_s=3600.0) for n in range(2)]
    world.want(4)
    for _ in range(5):
        for worker in workers:
            worker.step()
    first = world.state.versions[4]
    assert (first.state, first.revision) == (State.LIVE, 0)
    world.clock.seconds = 1e12  # far beyond the time of the store's files
    states = [worker.reconciler._control_log.refresh() for worker in workers]
    for worker, state in zip(workers, states, strict=True):
        worker.reconciler._publication.revise(state, 3_600_000)
    assert world.state.versions[4].wanted_revision == 1
    assert world.entries(EntryKind.WANT) == 2
    world.close()


# --- planted mistakes ------------------------------------------------------------------------------------------------


def between(world: World, worker: Worker, version: int = 50) -> None:
    """Events that are applied and sent while a seal is prepared."""
    world.publish_items(upsert(5, version, price=9.0 + version), delete(6, version), upsert(650 + version, 1, price=1.5))
    worker.tasks[0].consume()


@pytest.fixture
def sealing(world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., SealJob]], None]:
    """Takes version 4 live with a given way to prepare seals; events come between its two reads."""

    def run(prepare: Callable[..., SealJob]) -> None:
        fill(world)

        def read_with_events(log_ends: LogEnds, shard: int) -> SealPoint:
            point = sealer.read_seal_point(log_ends, shard)
            between(world, worker)
            return point

        monkeypatch.setattr(shard_versions, "read_seal_point", read_with_events)
        monkeypatch.setattr(shard_versions, "prepare_seal", functools.partial(prepare, world, worker))
        worker.settle()
        world.want(4)
        worker.settle()
        assert world.state.live == 4

    return run


def test_a_seal_loses_nothing_that_comes_while_it_is_made(world: World, sealing: Callable[[Callable[..., SealJob]], None]) -> None:
    sealing(lambda _, __, *call: sealer.prepare_seal(*call))
    assert world.reader(4) == world.oracle(4)


def test_a_seal_waits_for_everything_that_another_owner_may_have_sent_rows_of(world: World, worker: Worker) -> None:
    """A former owner that does not know it yet: the new one has applied more, and sent deltas below the position that is read here."""
    fill(world)
    worker.settle()
    world.want(4)
    worker.step()
    world.publish_items(upsert(5, 50, price=9.0))
    for _ in range(6):  # nothing is applied meanwhile
        worker.reconciler.step()
    assert worker.tasks[0].shard.versions[4].full is not None
    assert list(world.store.list("versions/4/0/seals")) == []
    worker.tasks[0].consume()
    worker.settle()
    assert world.reader(4) == world.oracle(4)


def test_a_delta_position_read_after_the_export_is_seen(world: World, sealing: Callable[[Callable[..., SealJob]], None]) -> None:
    def wrong_order(
        world: World, worker: Worker, job: SealJob, _: SealPoint, create_checkpoint: Callable[[Path], None], into: Path
    ) -> SealJob:
        create_checkpoint(into)
        between(world, worker, 51)
        return dataclasses.replace(job, delta_position=world.deltas_end(job.shard), checkpoint_directory=str(into))

    sealing(wrong_order)
    assert world.reader(4) != world.oracle(4)


def test_a_seal_without_tombstones_is_seen(world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ShardReader.scan_increments
    monkeypatch.setattr(ShardReader, "scan_increments", lambda self, v: (kv for kv in whole(self, v) if not is_tombstone(kv[1])))
    fill(world)
    worker.settle()
    world.want(4)
    worker.step()
    worker.step()  # the full part has item 3
    world.publish_items(delete(3, 9))
    worker.settle()
    assert world.manifest(4).digest != world.oracle(4)[0]
