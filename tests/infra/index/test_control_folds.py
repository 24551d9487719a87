"""Folds of the control log: a reader begins at the newest one that holds, over a folder and over a bucket; old entries go, and who slept finds out."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.index.control_folds import control_path, find_fold, fold_path, remove_folded
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import IndexStore, open_index_store
from schemas.errors import Corrupted
from schemas.index.control import FINAL_KEPT, ControlState, Entry, fold_entry, plan_entry
from schemas.index.digest import checksum
from schemas.index.lifecycle import EntryKind, State
from tests.infra.object_server import ObjectServer, object_server
from tests.schemas.index.entries import INIT, act, publish, want
from tests.sim.store import MemoryStore

EVERY = 10
GRACE_MS = 60_000


class CountingStore:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store, self.asked = store, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, path: str, bytes_max: int = 1 << 30) -> bytes:
        self.asked.append(path)
        return self._store.get(path, bytes_max)  # type: ignore[no-any-return]

    def list(self, prefix: str = "", after: str = "") -> list[str]:
        found: list[str] = self._store.list(prefix, after)
        self.asked += [f"list {prefix}"] * (1 + len(found) // 1000)  # as an object store answers
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> IndexStore:
    if request.param == "folder":
        return open_index_store(str(tmp_path / "store"))
    server: ObjectServer = request.getfixturevalue("server")
    return open_index_store(f"s3://{server.new_bucket()}/an/index?endpoint={server.endpoint}&cache_dir={tmp_path / 'cache'}")


@pytest.fixture
def folder(tmp_path: Path) -> IndexStore:
    return open_index_store(str(tmp_path / "store"))


def fill(store: IndexStore, entries: int, every: int = EVERY) -> ControlLog:
    """Append until the log has this number of entries."""
    log = ControlLog(store, every)
    assert INIT.init is not None
    ensure_init(log, INIT.init, 1, "test")
    while log.state.next_number < entries:
        append(log)
    return log


def append(log: ControlLog) -> ControlState:
    return log.append(lambda state: act(EntryKind.RELEASE if state.held else EntryKind.HOLD))


def from_entries(store: IndexStore) -> ControlState:
    """The state by the entries alone."""
    state = ControlState()
    for path in store.list("control/"):
        state = fold_entry(state, state.next_number, store.get(path))
    return state


def test_a_reader_begins_at_the_newest_fold_and_gets_what_the_entries_say(store: IndexStore) -> None:
    log = fill(store, 37)
    assert store.list("folds/") == [fold_path(n) for n in (10, 20, 30)]
    counting = CountingStore(store)
    reader = ControlLog(counting, EVERY)  # type: ignore[arg-type]
    assert reader.refresh() == log.state == from_entries(store)
    assert [p for p in counting.asked if p.startswith("control/")].count(control_path(0)) == 1
    assert set(counting.asked) <= {"list folds/", "list control/", fold_path(30), *map(control_path, (0, *range(29, 38)))}
    assert append(reader) == log.refresh()


def test_a_start_reads_the_same_number_of_files_after_thousands_of_entries_as_after_hundreds() -> None:
    assert reads_at_start(3_000) == reads_at_start(200)


@pytest.mark.campaign
@pytest.mark.timeout(3600)  # to write them takes minutes, to start does not
def test_a_start_after_half_a_million_entries() -> None:
    assert reads_at_start(500_000) == reads_at_start(200)


def reads_at_start(entries: int) -> int:
    """How many requests a new process makes. Versions come, go live and are dropped, as with a checkpoint every five minutes."""
    memory = MemoryStore(lambda _: None, lambda: 0)
    store, log = CountingStore(memory), ControlLog(memory)  # type: ignore[arg-type]
    state = log.append(lambda _: INIT)
    while state.next_number < entries:
        state = log.append(_next_of_a_year)
        if state.next_number % 1_000 == 0:
            remove_folded(memory, GRACE_MS * 10, GRACE_MS)  # type: ignore[arg-type]
    assert ControlLog(store).refresh() == state  # type: ignore[arg-type]
    assert len(state.versions) <= 2 * FINAL_KEPT and len(memory.list("control/")) + len(memory.list("folds/")) < 1_500
    return len(store.asked)


def _next_of_a_year(state: ControlState) -> Entry:
    newest = state.versions.get(state.newest_decided)
    if newest is not None and newest.state is State.WANTED:
        return publish(newest.version)
    if newest is not None and newest.state is State.PUBLISHED:
        return act(EntryKind.PROMOTE, newest.version)
    frozen = [v for v, status in state.versions.items() if status.state is State.FROZEN]
    return act(EntryKind.DROP, frozen[0]) if len(frozen) > 3 else want(state.newest_decided + 1)


def _sealed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """A forged fold: changed, with a checksum that fits."""

    def forge(raw: bytes) -> bytes:
        fields = json.loads(raw)
        del fields["check"]
        change(fields)
        fields["check"] = checksum(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
        return json.dumps(fields).encode()

    return forge


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda raw: raw[:-20],
    "a digit changed": lambda raw: raw.replace(b'"pinned":null', b'"pinned":0'),
    "no json": lambda _: b"\xff\x00",
    "a list": lambda _: b"[]",
    "nested": lambda _: b"[" * 100_000,
    "another number": _sealed(lambda f: f.update(next_number=29)),
    "another index": _sealed(lambda f: f.update(index_id="0" * 16)),
    "another last entry": _sealed(lambda f: f.update(last="0" * 16)),
    "a field too many": _sealed(lambda f: f.update(mood="good")),
    "a field missing": _sealed(lambda f: f.pop("held_why")),
    "a wrong type": _sealed(lambda f: f.update(held="no")),
    "a kind of entry of a newer release": _sealed(lambda f: f["kinds"].append("teleport")),
    "a format of a newer release": _sealed(lambda f: f.update(format=2)),
    "a live version that is not there": _sealed(lambda f: f.update(live=7)),
    "a version without its fields": _sealed(lambda f: f["versions"].append({"state": "live"})),
    "a version in an unknown state": _sealed(lambda f: f["versions"].append({"version": 7, "state": "asleep"})),
    "a version that wants what is published": _sealed(
        lambda f: f["versions"].append({"version": 7, "state": "published", "revision": 1, "wanted_revision": 1})
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_or_forged_fold_is_named_in_the_log_and_an_older_one_or_the_entries_are_read(
    folder: IndexStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(folder, 35)
    for number, older in ((30, 20), (20, None)):
        raw = folder.get(fold_path(number))
        folder.remove(fold_path(number))
        folder.put_exclusive(fold_path(number), DAMAGED[damage](raw))
        if older is None:
            folder.remove(fold_path(10))
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert ControlLog(folder).refresh() == log.state == from_entries(folder)
        assert f"control_fold_ignored path={fold_path(number)}" in caplog.text
        found = find_fold(folder, 0)
        assert (found and found[0].next_number) == older


def test_a_fold_that_cannot_be_put_stops_no_entry_and_is_put_with_the_next(folder: IndexStore, caplog: pytest.LogCaptureFixture) -> None:
    log = fill(folder, 9)
    (Path(folder.url) / "folds").write_text("in the way")
    assert append(log).next_number == 10 and "control_fold_not_put" in caplog.text
    (Path(folder.url) / "folds").unlink()
    append(log)
    assert folder.list("folds/") == [fold_path(10)]


def test_a_fold_whose_writer_died_is_put_by_who_appends_next(folder: IndexStore) -> None:
    fill(folder, 10)
    folder.remove(fold_path(10))
    append(ControlLog(folder, EVERY))
    assert folder.list("folds/") == [fold_path(10)]


def _now_ms(store: IndexStore) -> int:
    return store.stat(control_path(0)).put_ms


def test_old_entries_go_after_the_grace_period_and_the_identity_stays(store: IndexStore) -> None:
    log = fill(store, 55)
    now_ms = _now_ms(store)
    assert remove_folded(store, now_ms, GRACE_MS) == 0
    assert remove_folded(store, now_ms + 2 * GRACE_MS, GRACE_MS) == 30
    assert store.list("control/") == [control_path(n) for n in (0, *range(29, 55))]
    assert store.list("folds/") == [fold_path(n) for n in (30, 40, 50)]
    assert remove_folded(store, now_ms + 2 * GRACE_MS, GRACE_MS) == 0
    assert ControlLog(store).refresh() == log.refresh() == log.state


def test_without_enough_folds_that_hold_no_entry_goes(folder: IndexStore) -> None:
    fill(folder, 35)
    folder.remove(fold_path(20))
    folder.put_exclusive(fold_path(20), b"damaged")
    assert remove_folded(folder, _now_ms(folder) + 2 * GRACE_MS, GRACE_MS) == 0


def test_a_gap_that_no_fold_covers_is_named_with_what_to_restore(folder: IndexStore, tmp_path: Path) -> None:
    fill(folder, 55)
    remove_folded(folder, _now_ms(folder) + 2 * GRACE_MS, GRACE_MS)
    copies = {path: folder.get(path) for path in folder.list("folds/")}
    for path in copies:
        folder.remove(path)
    with pytest.raises(Corrupted, match=r"control_log_gap: control/000000001 is missing .* restore control/ and folds/") as error:
        ControlLog(folder).refresh()
    for path, raw in copies.items():  # the remedy
        folder.put_bytes(path, raw)
    assert ControlLog(folder).refresh().next_number == 55, error


@pytest.mark.parametrize("read", [1, 2, 15, 28, 29, 30, 40])
def test_a_process_that_slept_while_its_entries_were_removed_goes_on_from_a_fold(folder: IndexStore, read: int) -> None:
    fill(folder, read)
    sleepers = ControlLog(folder, EVERY), ControlLog(folder, EVERY)
    for sleeper in sleepers:
        sleeper.refresh()
    log = fill(folder, 55)
    remove_folded(folder, _now_ms(folder) + 2 * GRACE_MS, GRACE_MS)
    for _ in range(30):
        sleepers[0].refresh()
    assert sleepers[0].state == log.state
    assert append(sleepers[1]).next_number == 56 and folder.list("control/")[-1] == control_path(55)
    assert log.refresh() == from_fold(folder)


def from_fold(store: IndexStore) -> ControlState:
    return ControlLog(store).refresh()


@pytest.mark.parametrize("read", [1, 2, 15])
def test_a_writer_that_slept_between_reading_and_putting_decides_again(folder: IndexStore, read: int) -> None:
    """Its number is free again, because its entry was removed: what is put there, no reader sees."""
    fill(folder, read)

    class Slow(CountingStore):
        slept = False

        def put_exclusive(self, path: str, data: bytes) -> bool:
            if path.startswith("control/") and not self.slept:
                self.slept = True
                fill(folder, 55)
                remove_folded(folder, _now_ms(folder) + 2 * GRACE_MS, GRACE_MS)
            return self._store.put_exclusive(path, data)  # type: ignore[no-any-return]

    state = append(ControlLog(Slow(folder), EVERY))  # type: ignore[arg-type]
    assert state.next_number == 56 and from_fold(folder) == state


def test_an_entry_that_would_break_an_invariant_is_not_put(folder: IndexStore) -> None:
    """The fold that a reader begins with is damaged in memory: version 0 is said to be live twice."""
    log = fill(folder, 2)
    for entry in (want(0), publish(0), act(EntryKind.PROMOTE, 0), want(1), publish(1)):
        log.append(lambda _, entry=entry: entry)  # type: ignore[misc]
    versions = log.state.versions
    assert isinstance(versions, dict)
    versions[2] = versions[0].__class__(2, State.LIVE, revision=0, manifest_sha256="c" * 64)
    before = folder.list("control/")
    with pytest.raises(Corrupted, match=r"control_invariant: promote of version 1 is not written.*one_live"):
        log.append(lambda _: act(EntryKind.PROMOTE, 1))
    assert folder.list("control/") == before
    assert plan_entry(ControlLog(folder).refresh(), act(EntryKind.PROMOTE, 1))
