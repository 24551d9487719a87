"""An object store that loses answers, refuses, gives old lists, hides new objects and cuts bodies: every entry of the control log is in it exactly once."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import IndexStore, open_index_store, read_if_there
from schemas.errors import AifError
from schemas.index.control import Entry
from schemas.index.control_entry import decode_entry
from schemas.index.lifecycle import EntryKind
from tests.infra.index_fixture import INIT
from tests.infra.object_faults import CUT, FAILED, HIDDEN, LOST, REFUSED, FaultyLine, Rule
from tests.infra.object_server import ObjectServer, object_server

APPENDS, WRITERS, FOLD_EVERY = 8, 2, 5
HIDDEN_S = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture
def line(server: ObjectServer) -> Iterator[FaultyLine]:
    with FaultyLine(server) as running:
        yield running


def open_both(server: ObjectServer, line: FaultyLine, tmp_path: Path) -> tuple[IndexStore, str]:
    """The store without faults, which holds an empty index, and the URL of the same one through the line."""
    bucket = server.new_bucket()
    store = open_index_store(f"s3://{bucket}/p?endpoint={server.endpoint}&cache_dir={tmp_path / 'cache'}")
    ensure_init(ControlLog(store), INIT, 1, "test")
    return store, f"s3://{bucket}/p?endpoint={line.endpoint}&cache_dir={tmp_path / 'cache'}"


def reasons(store: IndexStore) -> list[str]:
    return [decode_entry(store.get(path)).reason for path in store.list("control/")][1:]


def make_rule(kind: str) -> Rule:
    """Every third request, more or less, has the fault; an object is new for `HIDDEN_S`."""
    chance, put_s = random.Random(1), dict[str, float]()

    def rule(method: str, path: str) -> str:
        hit, is_list = chance.random() < 0.3, "list-type=" in path
        key = path.partition("?")[0]
        if method == "PUT":
            put_s[key] = time.monotonic()
            return kind if hit and kind in (LOST, REFUSED, FAILED) else ""
        is_new = time.monotonic() - put_s.get(key, -1e9) < HIDDEN_S
        wanted = {HIDDEN: is_new, "lists": is_list, CUT: method == "GET"}.get(kind, False)
        return (HIDDEN if kind == "lists" else kind) if wanted and hit else ""

    return rule


@pytest.mark.parametrize("kind", [LOST, REFUSED, FAILED, HIDDEN, "lists", CUT])
def test_each_entry_is_in_the_log_once_whatever_the_store_does(server: ObjectServer, line: FaultyLine, tmp_path: Path, kind: str) -> None:
    store, url = open_both(server, line, tmp_path)
    logs = [ControlLog(open_index_store(url), FOLD_EVERY) for _ in range(WRITERS)]
    done, failed = set[str](), list[str]()

    def write(writer: int) -> None:
        for number in range(APPENDS):
            for attempt in range(20):  # as a process that tries again
                what = f"{writer}-{number}-{attempt}"
                try:
                    logs[writer].append(lambda s, what=what: Entry(EntryKind.REJECT, 1, "test", s.newest_decided + 1, reason=what))
                except AifError as error:
                    failed.append(error.code)
                    continue
                done.add(what)
                break

    line.rule = make_rule(kind)
    threads = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line.rule = lambda *_: ""
    found = reasons(store)
    assert len(done) == APPENDS * WRITERS and line.seen
    assert done <= set(found) and len(found) == len(set(found))
    assert set(failed) <= {"store_unreachable"}, "no other error says what happens"
    assert kind == CUT or not failed


def test_an_entry_that_is_hidden_for_a_moment_after_its_successor_was_put_is_not_taken_for_removed(
    server: ObjectServer, line: FaultyLine, tmp_path: Path
) -> None:
    """Its writer would read on, find its own entry there, and write it again."""
    store, url = open_both(server, line, tmp_path)
    log = ControlLog(open_index_store(url))
    log.append(lambda s: Entry(EntryKind.REJECT, 1, "test", s.newest_decided + 1, reason="before"))
    put = threading.Event()
    hidden = iter([HIDDEN, HIDDEN])

    def rule(method: str, path: str) -> str:
        if method == "PUT" and path.endswith("/control/000000002"):
            put.set()
        return next(hidden, "") if put.is_set() and method == "GET" and path.endswith("/control/000000001") else ""

    line.rule = rule
    log.append(lambda s: Entry(EntryKind.REJECT, 1, "test", s.newest_decided + 1, reason="once"))
    assert reasons(store) == ["before", "once"] and len(line.seen) == 2


def test_an_answer_that_is_cut_is_asked_for_again(server: ObjectServer, line: FaultyLine, tmp_path: Path) -> None:
    store = open_index_store(open_both(server, line, tmp_path)[1])
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.list("control/"), ["control/000000000"]),
        (lambda: read_if_there(store, "control/000000001"), None),
    ]
    for call, expected in calls:
        cuts = iter([CUT, CUT])
        line.rule = lambda method, _, cuts=cuts: next(cuts, "") if method == "GET" else ""
        assert call() == expected
    assert len(line.seen) == 4
