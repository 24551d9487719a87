"""The control log: one writer wins each number, nothing is lost, damage is named."""

import multiprocessing
from pathlib import Path

import pytest

from infra.index.control_folds import control_path
from infra.index.control_log import ControlLog, check_identity, check_index_settings, ensure_init
from infra.index.store import FolderStore, open_index_store
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState, Entry, Init, decode_entry
from schemas.index.lifecycle import Cause, EntryKind, State
from schemas.limits import CONTROL_ENTRY_BYTES_MAX
from tests.schemas.index.entries import raw_entry

INIT = Init(4, 4, IdKind.INT64, {"item-features": "aif.item-features"}, {"item-features": "id-1"})


def _want(state: ControlState, by: str = "") -> Entry:
    version = state.newest_decided + 1
    return Entry(EntryKind.WANT, 1, by, version=version, cause=Cause.CHECKPOINT, checkpoint_sha256="a" * 64)


def test_an_append_is_seen_by_another_reader_and_folds_the_same(store: FolderStore) -> None:
    log, reader = ControlLog(store), ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    state = log.append(_want)
    assert reader.refresh() == state == reader.state
    assert state.versions[0].state is State.WANTED
    assert store.list("control/") == [control_path(0), control_path(1)]


def test_an_append_that_finds_nothing_to_do_writes_nothing(store: FolderStore) -> None:
    log = ControlLog(store)
    assert log.append(lambda _: None).next_number == 0
    assert store.list() == []


def test_a_decision_that_lost_its_number_is_made_again_on_the_newer_fold(store: FolderStore) -> None:
    log, other = ControlLog(store), ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    seen: list[int] = []

    def make(state: ControlState) -> Entry:
        seen.append(state.newest_decided)
        if len(seen) == 1:
            other.append(_want)
        return _want(state)

    state = log.append(make)
    assert seen == [-1, 0]
    assert sorted(state.versions) == [0, 1]


def test_a_decision_that_the_table_refuses_is_not_written(store: FolderStore) -> None:
    log = ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    with pytest.raises(Incompatible, match="unknown_version"):
        log.append(lambda _: Entry(EntryKind.PROMOTE, 1, version=7))
    assert store.list() == [control_path(0)]


def _append_many(root: str, number: int, go: object, done: object) -> None:
    log = ControlLog(open_index_store(root))
    go.wait()  # type: ignore[attr-defined]
    for i in range(15):
        log.append(lambda _, name=f"{number}-{i}": Entry(EntryKind.HOLD, 1, name))
    done.put(number)  # type: ignore[attr-defined]


def test_processes_that_append_together_leave_a_log_without_gaps_and_each_entry_once(store: FolderStore, tmp_path: Path) -> None:
    ensure_init(ControlLog(store), INIT, 1, "test")
    context = multiprocessing.get_context("spawn")
    go, done = context.Event(), context.Queue()
    processes = [context.Process(target=_append_many, args=(store.url, n, go, done)) for n in range(4)]
    for process in processes:
        process.start()
    go.set()
    for process in processes:
        done.get(timeout=60)
        process.join()
    paths = store.list("control/")
    assert paths == [control_path(i) for i in range(61)]
    assert sorted(decode_entry(store.get(p)).by for p in paths[1:]) == sorted(f"{n}-{i}" for n in range(4) for i in range(15))
    assert ControlLog(store).refresh().next_number == 61


def test_a_missing_entry_is_a_named_gap(store: FolderStore) -> None:
    log = ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    for _ in range(3):
        log.append(lambda _: Entry(EntryKind.HOLD, 1))
    store.remove(control_path(2))
    with pytest.raises(Corrupted, match="control_log_gap"):
        ControlLog(store).refresh()


def test_an_entry_that_is_written_while_a_reader_begins_is_no_gap(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ControlLog(store)
    ensure_init(writer, INIT, 1, "test")

    def list_late(prefix: str, after: str = "") -> list[str]:
        monkeypatch.undo()
        writer.append(_want)
        return store.list(prefix, after)

    monkeypatch.setattr(store, "list", list_late)
    assert ControlLog(store).refresh() == writer.state and writer.state.next_number == 2


@pytest.mark.parametrize("another", [False, True])
def test_a_store_that_was_replaced_is_found_by_those_who_read_the_former_one_and_not_written_to(tmp_path: Path, another: bool) -> None:
    """It was taken for a log without news, and an entry of the new one was folded, or appended, behind those of the old one."""
    store = open_index_store(str(tmp_path / "store"))
    log, writer = ControlLog(store), ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    log.append(_want)
    writer.refresh()
    (tmp_path / "store").rename(tmp_path / "former")
    new = ControlLog(open_index_store(str(tmp_path / "store")))
    for _ in range(3 if another else 0):
        new.append(lambda s: Entry(EntryKind.HOLD if s.init else EntryKind.INIT, 2, init=None if s.init else INIT))
    with pytest.raises(Unavailable, match=r"index_store_gone: control/000000001 of .* Mount or restore"):
        writer.append(_want)
    for _ in range(3):
        with pytest.raises(Unavailable, match="index_store_gone"):
            [log.refresh() for _ in range(30)]
    assert [s.version for s in log.state.versions.values()] == [0] and not log.state.held
    assert len(store.list("control/")) == (3 if another else 0)
    (tmp_path / "store").rename(tmp_path / "other")
    (tmp_path / "former").rename(tmp_path / "store")
    assert log.refresh().next_number == writer.append(_want).next_number - 1 == 2


def test_an_entry_that_no_reader_would_take_is_refused_and_blocks_nobody(store: FolderStore) -> None:
    log = ControlLog(store)
    ensure_init(log, INIT, 1, "test")
    with pytest.raises(Incompatible, match="entry_too_large"):
        log.append(lambda _: Entry(EntryKind.HOLD, 1, reason="x" * CONTROL_ENTRY_BYTES_MAX))
    assert log.append(lambda _: Entry(EntryKind.HOLD, 1, reason="x" * (CONTROL_ENTRY_BYTES_MAX - 100))).held
    assert ControlLog(store).refresh().held


def test_a_damaged_entry_is_corrupted_and_is_met_again(store: FolderStore) -> None:
    ensure_init(ControlLog(store), INIT, 1, "test")
    store.put_bytes(control_path(1), b'{"kind": "hold", "at_ms"')
    log = ControlLog(store)
    for _ in range(2):
        with pytest.raises(Corrupted, match=r"bad_control_entry: control/000000001 of .* restore it"):
            log.refresh()


@pytest.mark.parametrize("kind", [[], {}, None, 7, "tomorrow"])
def test_an_entry_of_no_known_kind_stops_reconciling_and_nothing_else(store: FolderStore, kind: object) -> None:
    ensure_init(ControlLog(store), INIT, 1, "test")
    store.put_exclusive(control_path(1), raw_entry({"kind": kind, "at_ms": 1, "version": 0, "revision": 0}))
    assert "is not known here" in ControlLog(store).refresh().unknown_entry


def test_the_identity_is_written_once_and_compared_afterwards(store: FolderStore) -> None:
    first = ensure_init(ControlLog(store), INIT, 1, "a")
    again = ensure_init(ControlLog(store), INIT, 2, "b")
    assert first == again
    assert again.next_number == 1
    with pytest.raises(Incompatible, match=r"shards: index has 4, here 8"):
        ensure_init(ControlLog(store), Init(8, 4, IdKind.INT64, INIT.topics), 1, "c")
    with pytest.raises(Incompatible, match="topic id of item-features"):
        ensure_init(ControlLog(store), Init(4, 4, IdKind.INT64, INIT.topics, {"item-features": "id-2"}), 1, "d")
    ensure_init(ControlLog(store), Init(4, 4, IdKind.INT64, INIT.topics), 1, "a broker without topic ids")


def test_another_topic_prefix_is_another_index_and_one_topic_says_so(store: FolderStore) -> None:
    init = Init(4, 4, IdKind.INT64, {name: f"aif.{name}" for name in ("item-features", "new-items")})
    state = ensure_init(ControlLog(store), init, 1, "test")
    check_index_settings(state, "aif.", 4, 4, "int64")
    with pytest.raises(Incompatible, match=r"\(topic item-features: index has aif\.item-features, here two\.item-features\)"):
        check_index_settings(state, "two.", 4, 4, "int64")


def test_an_empty_store_is_no_index() -> None:
    with pytest.raises(Incompatible, match="no_index"):
        check_identity(ControlState(), INIT)
