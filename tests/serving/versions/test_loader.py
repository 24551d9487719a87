"""The loader process: a version out of a real index store into an arena, or a named refusal."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.index.control_log import ControlLog
from infra.index.store import IndexStore, open_index_store
from infra.processes import wait_until
from schemas.errors import Corrupted, Unavailable
from schemas.ids import Id
from schemas.index.manifest import Manifest, encode_manifest, manifest_path
from serving.engine.tables.arena import ArenaMemory
from serving.engine.tables.changes import encode_ids
from serving.engine.tables.tables import Room
from serving.versions import loader_process
from serving.versions.loader import Loader, Source
from serving.versions.loader_process import LoaderProcess, Pace, _answer
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import Version, item_id, make_version, stamp
from tests.serving.index_samples import publish_version, write_identity


@pytest.fixture(scope="module")
def version() -> Version:
    return make_version(SPECS["full"], 150)


@pytest.fixture
def store(tmp_path: Path) -> IndexStore:
    (tmp_path / "store").mkdir()
    return open_index_store(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def loader():
    made = Loader()
    yield made
    made.close()


def source_of(store: IndexStore, manifest: Manifest) -> Source:
    return Source(store.url, manifest, ControlLog(store).refresh().versions[manifest.version].manifest_sha256)


def publish(store: IndexStore, version: Version, number: int = 3, increments=()) -> Source:
    log = ControlLog(store)
    if log.refresh().init is None:
        write_identity(log, version)
    return source_of(store, publish_version(store, log, version, number, increments))


def rows_in(tables, ids: list[Id]) -> list[bytes | None]:
    rows = tables.find(encode_ids(ids, tables.layout.id_kind)).tolist()
    made = np.zeros(1, tables.layout.dtype)
    found: list[bytes | None] = []
    for row in rows:
        for name, column in tables.columns.items():
            made[name][0] = column[row]
        found.append(made.tobytes() if row >= 0 else None)
    return found


@pytest.mark.parametrize("name", ["full", "no_bid_text_ids", "no_multimodal"])
def test_a_loaded_arena_holds_the_merged_view_and_no_row_for_deleted_ids(name: str, store: IndexStore, loader: Loader) -> None:
    version = make_version(SPECS[name], 150)
    kind, new = version.spec.schema.id_kind, item_id(version.spec.schema.id_kind, 900)
    never = item_id(kind, 901)
    increments = [
        (version.ids[4], stamp(2, 9, dead=1), None),
        (version.ids[5], stamp(2, 9), version.rows[7]),
        (new, stamp(1, 5), version.rows[8]),
        (never, stamp(3, 9, dead=1), None),
    ]
    tables = loader.load(publish(store, version, increments=increments), 0)
    wanted = [version.rows[i].tobytes() for i in range(150)]
    wanted[4], wanted[5] = None, version.rows[7].tobytes()
    assert rows_in(tables, [*version.ids, new, never]) == [*wanted, version.rows[8].tobytes(), None]
    assert tables.rows == tables.used == 150


def test_both_arenas_hold_their_versions_at_the_same_time_and_an_arena_is_filled_again(
    version: Version, store: IndexStore, loader: Loader
) -> None:
    other = make_version(SPECS["full"], 90, seed=1)
    first, second = publish(store, version, 3), publish(store, other, 4)
    a, b = loader.load(first, 0), loader.load(second, 1)
    assert rows_in(a, version.ids) == [r.tobytes() for r in version.rows] and rows_in(b, other.ids) == [r.tobytes() for r in other.rows]
    again = loader.load(second, 0)
    assert rows_in(again, version.ids)[100:] == [None] * 50 and again.rows == 90


def test_a_version_without_rows_loads(store: IndexStore, loader: Loader) -> None:
    tables = loader.load(publish(store, make_version(SPECS["full"], 0)), 0)
    assert tables.rows == 0 and tables.capacity > 0


@pytest.mark.parametrize("what", ["sst", "manifest", "missing", "rows", "digest"])
def test_a_torn_or_flipped_file_and_a_seal_that_does_not_match_are_refused_by_name(
    what: str, version: Version, store: IndexStore, loader: Loader, tmp_path: Path
) -> None:
    source = publish(store, version, increments=[(version.ids[4], stamp(2, 9, dead=1), None)])
    good = loader.load(source, 0)
    sst = next(p for p in sorted((tmp_path / "store").rglob("*.sst")) if "/full/" in str(p))
    if what in ("sst", "missing"):
        raw = bytearray(sst.read_bytes())
        raw[len(raw) // 2] ^= 1
        sst.unlink()
        if what == "sst":
            sst.write_bytes(raw)
    elif what == "manifest":
        path = next((tmp_path / "store").rglob("manifest.json"))
        raw = path.read_bytes()
        path.unlink()
        path.write_bytes(raw[: len(raw) // 2])
    else:
        source = _with_seal(store, source, **({"rows": 5} if what == "rows" else {"digest": "00"}))
    with pytest.raises((Corrupted, Unavailable)) as raised:
        loader.load(source, 1)
    assert raised.value.code in {"sst": ["bad_part_file"], "missing": ["missing_file"], "manifest": ["bad_manifest"]}.get(
        what, ["bad_shard"]
    )
    assert rows_in(good, version.ids[:4]) == [r.tobytes() for r in version.rows[:4]]


def _with_seal(store: IndexStore, source: Source, **fields: object) -> Source:
    """The same parts under a manifest whose first seal says something else."""
    seals = source.manifest.seals
    manifest = dataclasses.replace(source.manifest, revision=9, seals=(dataclasses.replace(seals[0], **fields), *seals[1:]))
    raw = encode_manifest(manifest)
    store.put_exclusive(manifest_path(manifest.version, 9), raw)
    return Source(store.url, manifest, hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize("name", ["full", "no_bid_text_ids"])
def test_an_arena_grows_for_a_version_that_fills_it_and_the_other_arena_stays_as_it_is(name: str, store: IndexStore) -> None:
    loader, version = Loader(arena_bytes=60_000), make_version(SPECS[name], 100)
    try:
        first = loader.load(publish(store, version, 3), 0)
        before = arena_files()
        source = publish(store, make_version(SPECS[name], 900), 4)
        second = loader.load(source, 1)
        assert second.rows == 900 and second.capacity >= 900 * 1.5 and not second.needs_growth
        room = second.measure_room()
        grown = loader.load(dataclasses.replace(source, room=room._replace(rows=20_000, id_bytes=20_000 * 20)), 1)
        assert grown.rows == 900 and grown.capacity >= 30_000 and grown.measure_room() == room
        del second
        kill(loader)
        assert loader.load(source, 1).capacity >= 30_000, "a new loader gets the larger arena"
        assert rows_in(first, version.ids) == [row.tobytes() for row in version.rows] and len(arena_files()) <= len(before)
    finally:
        loader.close()


def test_an_arena_that_cannot_grow_is_named_and_the_next_smaller_version_still_loads(
    store: IndexStore,
) -> None:
    loader, version = Loader(arena_bytes=60_000), make_version(SPECS["full"], 100)
    try:
        source = publish(store, version, 3)
        loader.load(source, 0)
        with pytest.raises(
            Unavailable, match=r"no_arena_memory: no memory for an arena of \d+ bytes instead of 60000.*tries again by itself"
        ):
            loader.load(dataclasses.replace(source, room=Room(1 << 50, 0)), 1)
        assert loader.load(source, 1).rows == 100
    finally:
        loader.close()


@pytest.mark.parametrize("second_fails", [False, True])
def test_arenas_for_which_there_is_no_memory_are_named_and_nothing_of_them_stays(
    second_fails: bool, version: Version, store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, loader, opened = publish(store, version), Loader(1 << 16 if second_fails else 1 << 60), list[int]()

    def populate(memory: ArenaMemory, **_: Any) -> None:
        opened.append(memory.fd)
        if len(opened) % 2 == 0:
            raise OSError(errno.ENOMEM, "out of memory")

    monkeypatch.setattr(ArenaMemory, "populate", populate)
    before = arena_files()
    for _ in range(2):
        with pytest.raises(Unavailable, match="no_arena_memory"):
            loader.load(source, 0)
    assert (len(opened), arena_files()) == (4 * second_fails, before)


def arena_files() -> set[str]:
    """The files behind this process's arenas: its other descriptors come and go with threads of libraries."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "aif-arena" in str(Path("/proc/self/fd", descriptor).readlink()):
                found.add(descriptor)
    return found


def kill(loader: Loader) -> int:
    """The process id of the loader that is not there any more."""
    os.kill(loader._child.pid, signal.SIGKILL)
    wait_until(lambda: not loader._child.alive(), 30, "the loader to end")
    return loader._child.pid


def test_a_loader_that_was_killed_is_replaced_gives_way_from_its_start_and_loads_into_the_same_arenas(
    version: Version, store: IndexStore, loader: Loader
) -> None:
    source = publish(store, version)
    first = loader.load(source, 0)
    killed = kill(loader)
    loader.start()
    assert loader._child.pid != killed, "whoever follows the log does not wait until a load fails"
    kill(loader)
    assert loader.load(source, 1).rows == 150, "a process that ended while nothing was asked of it costs no load"
    kill(loader)
    loader.start()
    child = loader._child.pid
    wait_until(lambda: os.sched_getscheduler(child) == os.SCHED_IDLE, 30, "the loader to give way before it has loaded anything")
    assert loader.load(source, 1).rows == 150 and rows_in(first, version.ids[:2]) == [r.tobytes() for r in version.rows[:2]]


@pytest.mark.parametrize("dies_at", ["open", "load"])
def test_a_loader_that_ends_before_it_has_its_arenas_costs_no_load_and_in_a_load_it_is_named_with_how_it_ended(
    dies_at: str, version: Version, store: IndexStore, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ask, killed = publish(store, version), loader._ask, list[int]()

    def ask_a_dying_one(request: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        if request["op"] == dies_at and not killed:
            killed.append(kill(loader))
        return ask(request, fd)

    loader._stop()
    monkeypatch.setattr(loader, "_ask", ask_a_dying_one)
    if dies_at == "load":
        with pytest.raises(Unavailable, match=r"loader_died: .*with code -9 .*asked for load"):
            loader.load(source, 1)
    assert loader.load(source, 1).rows == 150 and killed


def test_a_loader_that_hangs_is_ended_named_and_replaced(
    version: Version, store: IndexStore, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = publish(store, version)
    loader.load(source, 0)
    monkeypatch.setattr("serving.versions.loader.SILENCE_S_MAX", 0.5)
    loader._connection.settimeout(0.5)
    os.kill(loader._child.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=r"loader_silent: .*nothing for 0\.5 s .*asked for load; it was ended"):
        loader.load(source, 1)
    monkeypatch.undo()
    assert loader.load(source, 1).rows == 150


def test_work_sends_signs_of_life_which_are_no_answer(version: Version, store: IndexStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source, (ours, theirs) = publish(store, version), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(loader_process, "SIGN_S", 0.0)
    ours.settimeout(30.0)
    memory = ArenaMemory(1 << 20)
    thread = threading.Thread(target=loader_process.serve, args=(theirs,))
    thread.start()
    with theirs:
        with ours:
            socket.send_fds(ours, [json.dumps({"op": "open", "arena": 0, "bytes": 1 << 20}).encode()], [memory.fd])
            signs = [ours.recv(1 << 20)]
            assert Loader._receive(ours) == {"ok": True}
            ours.send(json.dumps({"op": "load", "arena": 0, **source.message()}).encode())
            signs.append(ours.recv(1 << 20))
            assert Loader._receive(ours)["rows"] == 150
        thread.join()
    memory.close()
    assert [json.loads(sign) for sign in signs] == [{"working": True}] * 2


def test_an_arena_whose_descriptor_was_lost_on_its_way_is_not_replaced_by_memory_of_its_own() -> None:
    with pytest.raises(Unavailable, match="arena_not_received"):
        LoaderProcess().open({"arena": 0, "bytes": 1 << 16}, None)


def test_after_the_first_version_a_load_gives_way_to_requests_of_its_session(version: Version, store: IndexStore) -> None:
    loader = Loader()
    try:
        loader.start()
        child = loader._child.pid
        assert os.sched_getscheduler(child) == os.SCHED_OTHER, "the first version is waited for"
        loader.load(publish(store, version), 0)
        wait_until(lambda: os.sched_getscheduler(child) == os.SCHED_IDLE, 30, "the loader to give way")
        assert os.getsid(child) == os.getsid(0), "a priority counts only inside one session"
        assert os.getpgid(child) == child
    finally:
        loader.close()


@pytest.mark.parametrize("waits", [0.0, 1.0, 9.0])  # for a core, as a share of the work
def test_a_paced_load_takes_its_share_of_a_core_and_rests_no_longer_where_others_have_the_core_anyway(waits: float) -> None:
    clock, spent, rests = [100.0], [5.0], list[float]()

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        rests.append(seconds)

    pace = Pace(0.25, lambda: clock[0], lambda: spent[0], sleep)
    for _ in range(1_000):
        spent[0] += 0.0003
        clock[0] += 0.0003 * (1 + waits)
        pace.rest()
    took_s = clock[0] - 100
    assert took_s == pytest.approx(0.3 * max(4.0, 1 + waits), rel=0.01)
    assert all(0.0005 < one < 0.005 for one in rests), "many short ones"


def test_the_loader_process_never_imports_torch_and_ends_with_its_parent(tmp_path: Path) -> None:
    check = "import serving.versions.loader_process, sys; print(sorted({'torch', 'pydantic', 'confluent_kafka'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    parent = (
        "from serving.versions.loader import Loader; import time; l = Loader(); l.start(); print(l._child.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    with process:
        pid = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), 30, "the loader to end")


@pytest.mark.parametrize(
    ("error", "named"), [(MemoryError(), ("Unavailable", "no_memory")), (ValueError("a bug"), ("Corrupted", "load_failed"))]
)
def test_a_lack_of_memory_is_no_damaged_file(error: Exception, named: tuple[str, str]) -> None:
    def fail(_: dict[str, object], __: int | None) -> dict[str, object]:
        raise error

    reply = _answer(fail, {}, None)
    assert (reply["error"], reply["code"]) == named
