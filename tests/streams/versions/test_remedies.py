"""Messages about damage to a served version name a remedy, and the remedy works: each is applied as the message says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.index.control_log import ControlLog
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.verify import verify_version
from schemas.errors import AifError, Incompatible
from schemas.index.control import Entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import Part, manifest_path
from tests.infra.aif_command import run_aif
from tests.streams.shard_world import upsert
from tests.streams.version_world import Worker, World

ITEMS = 200


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("AIF_INDEX__STORE", world.store.url)
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i) for i in range(ITEMS)))
    return world


@pytest.fixture
def worker(world: World) -> Worker:
    """Version 1 is live; some items changed since its full part."""
    worker = Worker(world, reseal_interval_s=1e12)
    worker.settle()
    world.want(1, 1)
    worker.settle()
    change(world, worker, 20)
    return worker


def change(world: World, worker: Worker, items: int) -> None:
    world.publish_items(*(upsert(i, 2, category=i % 7, price=2.0 + i) for i in range(items)))
    worker.settle()
    run_aif("index", "revise", "1")
    worker.settle()


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.unlink()
    path.write_bytes(raw)


def _file_of(part: Part) -> str:
    return f"{part.directory}/{next(file.name for file in part.files if file.name.endswith('.sst'))}"


DAMAGE: dict[str, tuple[Callable[[World], str], Callable[[Path], None]]] = {
    "a full part's file is gone": (lambda w: _file_of(w.manifest(1).seals[0].full), Path.unlink),
    "a full part's file has another byte": (lambda w: _file_of(w.manifest(1).seals[0].full), _flip),
    "a full part's file is cut": (lambda w: _file_of(w.manifest(1).seals[0].full), lambda p: p.write_bytes(p.read_bytes()[:-9])),
    "an incremental part's file is gone": (lambda w: _file_of(w.manifest(1).seals[0].incremental), Path.unlink),
    "an incremental part's file has another byte": (lambda w: _file_of(w.manifest(1).seals[0].incremental), _flip),
    "the manifest is gone": (lambda w: manifest_path(1, w.state.versions[1].revision), Path.unlink),
    "the manifest has another byte": (lambda w: manifest_path(1, w.state.versions[1].revision), _flip),
    "the manifest is empty": (lambda w: manifest_path(1, w.state.versions[1].revision), lambda p: p.write_bytes(b"")),
}


@pytest.mark.parametrize("grown", [False, True], ids=["", "grown"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_live_version_is_published_anew_as_its_error_says(world: World, worker: Worker, damage: str, grown: bool) -> None:
    """`grown`: so much changed since that the full part is written again before the next seal, from the one that may be damaged."""
    if grown:
        change(world, worker, ITEMS * 3 // 4)
    path_of, spoil = DAMAGE[damage]
    place = Path(world.store.url, path_of(world))
    place.chmod(0o644)
    spoil(place)
    said = load_error(world)
    named = re.search(r"`aif (index revise 1)`", said)
    assert named, said
    run_aif(*named[1].split())
    for _ in range(20):
        worker.step()
    assert verify_version(world.store, world.state.versions[1]).faults == ()
    assert world.reader(1) == world.oracle(1, 1)


def load_error(world: World) -> str:
    """What a server would say that loads the live version."""
    try:
        manifest = read_manifest(world.store, world.state.versions[1])
        for seal in manifest.seals:
            list(read_full_part(world.store, seal.full, manifest.layout))
            list(read_incremental_part(world.store, seal.incremental))
    except AifError as error:
        return str(error)
    raise AssertionError("the version reads")


def test_a_manifest_that_is_gone_is_made_again_without_an_operator(world: World, worker: Worker) -> None:
    """It stopped the revisions of all versions instead."""
    world.store.remove(manifest_path(1, world.state.versions[1].revision))
    for _ in range(10):
        worker.step()
    assert world.reader(1) == world.oracle(1, 1)


def test_a_revision_that_is_under_way_is_not_wanted_twice(world: World, worker: Worker) -> None:
    run_aif("index", "revise")
    with pytest.raises(Incompatible, match=r"revision_under_way: revision 1\.2 is wanted already; `aif status --watch` shows"):
        run_aif("index", "revise", "1")
    with pytest.raises(Incompatible, match=r"unknown_version.*`aif index list`"):
        run_aif("index", "revise", "9")


def test_a_rollback_to_a_backup_whose_manifest_does_not_read_is_refused_and_works_after_its_remedy(world: World, worker: Worker) -> None:
    world.want(2)
    worker.settle()
    assert world.state.backup == 1
    path = Path(world.store.url, manifest_path(1, world.state.versions[1].revision))
    path.chmod(0o644)
    _flip(path)
    with pytest.raises(AifError, match="bad_manifest") as error:
        run_aif("index", "rollback")
    assert world.state.live == 2
    run_aif(*re.findall(r"`aif (index revise 1)`", str(error.value))[0].split())
    for _ in range(20):
        worker.step()
    run_aif("index", "rollback")
    assert world.state.live == 1 and verify_version(world.store, world.state.versions[1]).faults == ()


def test_without_a_backup_a_rollback_names_what_helps_and_it_does(world: World, worker: Worker) -> None:
    with pytest.raises(Incompatible, match="no_backup") as error:
        run_aif("index", "rollback")
    assert "`aif index revise 1`" in str(error.value)
    for version in (2, 3):
        world.want(version)
        worker.settle()
    run_aif("index", "promote", "3") if world.state.live != 3 else None
    ControlLog(world.store).append(lambda _: Entry(EntryKind.FREEZE, 0, version=2))
    assert world.state.backup is None and world.state.versions[1].state is State.FROZEN
    with pytest.raises(Incompatible, match=r"no_backup.*`aif index rollback 2`"):
        run_aif("index", "rollback")
    run_aif("index", "rollback", "2")
    for _ in range(20):
        worker.step()
    assert world.state.live == 2 and world.state.held


def test_a_revival_that_is_under_way_is_not_asked_for_twice_and_what_its_error_names_works_after_it(world: World, worker: Worker) -> None:
    for version in (2, 3):
        world.want(version)
        worker.settle()
    assert (world.state.live, world.state.versions[1].state) == (3, State.FROZEN)
    run_aif("index", "promote", "1")
    run_aif("index", "hold")  # ends the wish
    for command in ("promote", "rollback"):
        with pytest.raises(Incompatible, match=r"revision_under_way: version 1 is being revived already; `aif status --watch`") as error:
            run_aif("index", command, "1")
    for _ in range(20):
        worker.step()
    assert world.state.live == 3
    run_aif(*re.findall(r"`aif (index promote 1)`", str(error.value))[0].split())
    assert world.state.live == 1
