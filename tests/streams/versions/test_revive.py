"""A frozen version comes back, and only newer rows are computed; a full part is written again; a killed build continues."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from schemas.index.control import Entry
from schemas.index.lifecycle import Cause, EntryKind, State
from streams.builders import full_part
from streams.builders.full_part import build_full_part
from streams.builders.jobs import BuildJob, BuildResult
from streams.encoder import RowEncoder
from streams.versions.shard_versions import _accept_full
from tests.streams.shard_world import delete, embed, upsert
from tests.streams.version_world import Worker, World, encoder_of

NEVER = {"reseal_interval_s": 1e12}


@pytest.fixture
def world(world: World) -> World:
    for start in range(0, 600, 100):
        world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i) for i in range(start, start + 100)))
    world.publish_embeddings(*(embed(i, *range(i, i + 6)) for i in range(0, 200, 2)))
    return world


@pytest.fixture
def worker(world: World) -> Worker:
    worker = Worker(world, **NEVER)
    worker.settle()
    return worker


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of an encoder computed."""
    calls: list[int] = []
    encode = RowEncoder.encode

    def counted(self: RowEncoder, raw: Any, embeddings: Any) -> Any:
        calls.append(len(raw))
        return encode(self, raw, embeddings)

    monkeypatch.setattr(RowEncoder, "encode", counted)
    return calls


def go_live(world: World, worker: Worker, *versions: int) -> None:
    for version in versions:
        world.want(version, version % 2)
        worker.settle()


def freeze_1(world: World, worker: Worker) -> None:
    """Version 1 lives, is frozen, and the catalogue goes on without it."""
    go_live(world, worker, 1, 2, 3)
    assert world.state.versions[1].state is State.FROZEN
    world.publish_items(*(upsert(i, 2, category=3, price=9.0) for i in range(5)), delete(10, 2), upsert(900, 1, price=2.0))
    world.publish_embeddings(embed(1, *range(6)), embed(20, *range(6)))
    worker.settle()


def revive(world: World, worker: Worker) -> None:
    status = world.state.versions[1]
    world.write(Entry(EntryKind.WANT, 0, version=1, revision=status.next_revision, cause=Cause.REVIVE))
    worker.settle()


def test_a_revived_version_has_what_happened_while_it_was_frozen_and_only_that_was_computed(
    world: World, worker: Worker, encoded: list[int]
) -> None:
    freeze_1(world, worker)
    encoded.clear()
    revive(world, worker)
    status = world.state.versions[1]
    assert (status.state, status.revision) == (State.PUBLISHED, 1)
    assert sum(encoded) == 7  # five changed, one new, one embedding; the deleted one is just left out
    assert world.reader(1) == world.oracle(1, 1) == (world.manifest(1).digest, world.manifest(1).data_digest)
    assert [e.reason for e in worker.events if e.kind == "built"][-1] == "593 of 600 rows taken over"
    world.publish_items(upsert(7, 9, price=3.0))
    worker.settle()
    world.write(Entry(EntryKind.PROMOTE, 0, version=1))
    worker.settle()
    assert world.state.live == 1 and world.reader(1) == world.oracle(1, 1)


def test_events_that_come_while_it_revives_are_in_it(world: World, worker: Worker) -> None:
    freeze_1(world, worker)
    status = world.state.versions[1]
    world.write(Entry(EntryKind.WANT, 0, version=1, revision=status.next_revision, cause=Cause.REVIVE))
    for n in range(6):
        world.publish_items(upsert(30 + n, 5, price=0.5), delete(40 + n, 5))
        worker.step()
    worker.settle()
    assert world.reader(1) == world.oracle(1, 1)


def test_without_the_old_parts_everything_is_computed_and_the_rows_are_the_same(world: World, worker: Worker, encoded: list[int]) -> None:
    freeze_1(world, worker)
    seal = world.manifest(1).seals[0]
    world.store.remove(f"{seal.full.directory}/{seal.full.files[0].name}")
    encoded.clear()
    revive(world, worker)
    assert sum(encoded) == 600 and world.reader(1) == world.oracle(1, 1)


def test_a_base_taken_without_looking_at_inputs_is_seen(world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: rows of the frozen version are adopted without computing newer ones."""
    monkeypatch.setattr(full_part, "has_inputs", lambda *_: True)
    freeze_1(world, worker)
    revive(world, worker)
    assert world.reader(1) != world.oracle(1, 1)


def test_a_rollback_to_a_frozen_version_holds_at_once_and_goes_live_when_it_is_revived(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze_1(world, worker)
    monkeypatch.setenv("AIF_INDEX__STORE", world.store.url)
    assert CliRunner().invoke(build_app(), ["index", "rollback", "1", "--reason", "clicks fell"]).exit_code == 0
    state = world.state
    assert state.held_why == "rollback by aif index: clicks fell" and state.versions[1].is_reviving and state.live == 3
    worker.settle()
    state = world.state
    assert (state.live, state.backup, state.held) == (1, 3, True)
    assert state.versions[3].turned_away and not state.versions[1].wish


@pytest.mark.parametrize("newer", [None, EntryKind.HOLD, EntryKind.RELEASE])
def test_a_promotion_of_a_frozen_version_happens_when_it_is_revived_unless_somebody_holds_meanwhile(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch, newer: EntryKind | None
) -> None:
    freeze_1(world, worker)
    monkeypatch.setenv("AIF_INDEX__STORE", world.store.url)
    assert CliRunner().invoke(build_app(), ["index", "promote", "1"]).exit_code == 0
    if newer is not None:
        world.write(Entry(newer, 0, "somebody"))
    worker.settle()
    state = world.state
    assert state.live == (3 if newer is EntryKind.HOLD else 1)
    assert state.versions[1].state is (State.PUBLISHED if newer is EntryKind.HOLD else State.LIVE)


# --- a full part written again ----------------------------------------------------------------------------------------


def test_a_revision_works_a_grown_incremental_part_into_the_full_one_without_computing_a_row(world: World, encoded: list[int]) -> None:
    worker = Worker(world, rewrite_share=0.1, **NEVER)
    worker.settle()
    go_live(world, worker, 1)
    first = world.manifest(1).seals[0]
    world.publish_items(*(upsert(i, 3, category=5, price=4.0) for i in range(100)), delete(200, 3))
    worker.settle()
    for revision in (1, 2):  # the first one seals the rows, the second one finds that they are too many
        encoded.clear()
        world.write(Entry(EntryKind.WANT, 0, version=1, revision=revision, cause=Cause.REVISE))
        worker.settle()
        seal = world.manifest(1).seals[0]
        assert not encoded and world.reader(1) == world.oracle(1, 1)
    assert seal.full != first.full and (seal.full.rows, seal.incremental.rows, seal.incremental.tombstones) == (599, 0, 1)
    world.publish_items(upsert(3, 9, price=7.0), upsert(200, 9, price=7.0))
    worker.settle()
    assert world.reader(1) == world.oracle(1, 1)


def test_a_full_part_that_is_lost_before_the_seal_is_built_again(world: World, worker: Worker) -> None:
    go_live(world, worker, 1)
    full = world.manifest(1).seals[0].full
    world.store.remove(f"{full.directory}/{full.files[0].name}")
    world.write(Entry(EntryKind.WANT, 0, version=1, revision=1, cause=Cause.REVISE))
    for _ in range(12):
        worker.step()
    assert world.manifest(1).revision == 1 and world.reader(1) == world.oracle(1, 1)


# --- a killed build goes on ------------------------------------------------------------------------------------------


@pytest.fixture
def build(world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> BuildJob:
    """A build of 600 items in slices of 100, which has not begun."""
    monkeypatch.setattr("streams.builders.slices.SLICE_ITEMS", 100)
    monkeypatch.setattr("streams.builders.full_part.SLICE_ITEMS", 100)
    world.want(1, 1)
    worker.step()
    checkpoint = world.folder / "checkpoint"
    worker.tasks[0].shard.create_checkpoint(checkpoint)
    encoder = encoder_of(1, 1)
    began = worker.tasks[0].shard.versions[1].building_from_offsets
    return BuildJob(
        1,
        0,
        encoder.checkpoint_sha256,
        encoder.fingerprint,
        str(checkpoint),
        256,
        slices_directory=str(world.folder / "slices"),
        from_offsets=began,
    )


class Killed(BaseException):
    pass


def build_killed_in_slice(world: World, job: BuildJob, number: int) -> None:
    def progress(rows: int) -> None:
        if rows > 100 * number:
            raise Killed

    with pytest.raises(Killed):
        build_full_part(world.store, encoder_of(1, 1), job, progress)


@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_a_build_that_was_killed_in_any_slice_goes_on_there(number: int, world: World, build: BuildJob, encoded: list[int]) -> None:
    build_killed_in_slice(world, build, number)
    encoded.clear()
    result = build_full_part(world.store, encoder_of(1, 1), build)
    assert sum(encoded) == 600 - 100 * number
    assert result.part.rows == 600 and digest_of(world, result) == world.oracle_shard(0, 1, world.sources_end(0), 1).hexdigest


def digest_of(world: World, result: Any) -> str:
    from infra.index.parts import read_full_part
    from tests.streams.digests import digest_blocks

    return digest_blocks(encoder_of(1, 1), read_full_part(world.store, result.part, encoder_of(1, 1).layout)).hexdigest


def test_slices_of_an_older_checkpoint_make_a_part_that_is_as_old_as_they(world: World, worker: Worker, build: BuildJob) -> None:
    """What the old slices lack is in the increments: the version is right all the same."""
    build_killed_in_slice(world, build, 3)
    world.publish_items(upsert(5, 4, price=0.1), upsert(550, 4, price=0.1), delete(6, 4))
    worker.tasks[0].consume()
    later = world.folder / "later"
    worker.tasks[0].shard.create_checkpoint(later)
    result = build_full_part(world.store, encoder_of(1, 1), dataclasses.replace(build, checkpoint_directory=str(later)))
    assert result.source_offsets == build.from_offsets != worker.tasks[0].shard.next_offsets


@pytest.mark.parametrize("damage", ["bytes", "half", "other build", "too old"])
def test_slices_that_are_not_whole_or_not_of_this_build_are_not_used(
    damage: str, world: World, build: BuildJob, encoded: list[int]
) -> None:
    build_killed_in_slice(world, build, 3)
    folder = Path(build.slices_directory)
    if damage == "bytes":
        (folder / "00001.sst").write_bytes(b"x" + (folder / "00001.sst").read_bytes()[1:])
    elif damage == "half":
        (folder / "00001.json").unlink()
    elif damage == "other build":
        build = dataclasses.replace(build, rewrite=True)
    else:
        build = dataclasses.replace(build, from_offsets={t: at + 1 for t, at in build.from_offsets.items()})
    encoded.clear()
    result = build_full_part(world.store, encoder_of(1, 1), build)
    assert sum(encoded) == (500 if damage in ("bytes", "half") else 600)
    assert digest_of(world, result) == world.oracle_shard(0, 1, world.sources_end(0), 1).hexdigest


def test_slices_older_than_the_full_part_are_not_used_because_the_increments_between_are_forgotten(
    world: World, worker: Worker, build: BuildJob
) -> None:
    """As where a shard was rewritten by another owner, and came back in a snapshot to the folder of a rewrite that was given up."""
    build_killed_in_slice(world, dataclasses.replace(build, rewrite=True), 3)
    task, encoder = worker.tasks[0], encoder_of(1, 1)
    worker.settle()
    world.publish_items(upsert(5, 4, price=0.1))
    task.consume()

    def rewrite(name: str, slices: str = "") -> BuildResult:
        known = task.shard.versions[1]
        task.shard.create_checkpoint(world.folder / name)
        job = dataclasses.replace(
            build,
            checkpoint_directory=str(world.folder / name),
            rewrite=True,
            slices_directory=slices,
            from_offsets=known.building_from_offsets,
        )
        result = build_full_part(world.store, encoder, job)
        assert _accept_full(task.shard, job, result)
        task.shard.forget_increments(1, result.source_offsets, b"", 1_000)
        return result

    rewrite("elsewhere")
    assert digest_of(world, rewrite("here", build.slices_directory)) == world.oracle_shard(0, 1, world.sources_end(0), 1).hexdigest


def test_a_slice_that_begins_elsewhere_than_the_one_before_it_ends_is_not_used(world: World, worker: Worker, build: BuildJob) -> None:
    """It was left by an earlier attempt, of which one slice was damaged and made again while there were more items."""
    build_killed_in_slice(world, build, 3)
    (Path(build.slices_directory) / "00000.json").unlink()
    world.publish_items(*(upsert(i, 1, price=0.5) for i in range(-50, 0)))
    worker.tasks[0].consume()
    worker.tasks[0].shard.create_checkpoint(world.folder / "later")
    build = dataclasses.replace(build, checkpoint_directory=str(world.folder / "later"))
    build_killed_in_slice(world, build, 1)
    result = build_full_part(world.store, encoder_of(1, 1), build)
    assert digest_of(world, result) == world.oracle_shard(0, 1, world.sources_end(0), 1).hexdigest


def test_a_worker_that_is_killed_in_a_build_goes_on_with_its_slices_and_leaves_none(
    world: World, worker: Worker, build: BuildJob, encoded: list[int]
) -> None:
    build_killed_in_slice(world, build, 4)
    worker.close()
    slices = world.folder / "kept"
    slices.mkdir()
    shutil.copytree(build.slices_directory, slices / "00000-1")
    (slices / "00000-77").mkdir()
    encoded.clear()
    again = Worker(world, slices=slices, **NEVER)
    again.settle()
    assert sum(encoded) == 200 and world.reader(1) == world.oracle(1, 1)
    assert not list(slices.iterdir())
