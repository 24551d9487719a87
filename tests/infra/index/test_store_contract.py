"""What every index store promises: the same cases over a folder and over a bucket of a real S3-compatible server."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.files import TEMPORARY_PREFIX
from infra.index.store import IndexStore, check_exclusive_create, open_index_store
from infra.processes import wait_until
from schemas.errors import Corrupted, Unavailable
from schemas.index.manifest import PartFile
from schemas.limits import MIB
from tests.infra.object_server import PAGE_FILES, Line, ObjectServer, object_server

PUTTER = """
import os, signal, sys
from pathlib import Path
from infra.index.store import open_index_store
store, path, local = open_index_store(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
if sys.argv[4:]:  # a folder: killed between the writing and the name
    os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.put_file(path, local) if path.endswith("file") else store.put_exclusive(path, local.read_bytes())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("moto")) as running:
        yield running


@dataclass
class Place:
    """A store under test. `kill_in_the_middle(path, local)`: a process puts `local` at `path` and is killed before it is done."""

    url: str
    store: IndexStore
    kill_in_the_middle: Callable[[str, Path], None]


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        url = str(tmp_path / "store")
        return Place(url, open_index_store(url), lambda path, local: _kill_itself(url, path, local))
    server: ObjectServer = request.getfixturevalue("server")
    bucket, cache = server.new_bucket(), tmp_path / "cache"
    url = f"s3://{bucket}/some/index?endpoint={server.endpoint}&cache_dir={cache}"

    def kill(path: str, local: Path) -> None:
        with Line(server, stop_after=100_000) as line:
            _kill_when_stuck(f"s3://{bucket}/some/index?endpoint={line.endpoint}&cache_dir={cache}", path, local, line)

    return Place(url, open_index_store(url), kill)


@pytest.fixture
def store(place: Place) -> IndexStore:
    return place.store


def _kill_itself(url: str, path: str, local: Path) -> None:
    command = [sys.executable, "-c", PUTTER, url, path, str(local), "killed"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def _kill_when_stuck(url: str, path: str, local: Path, line: Line) -> None:
    with subprocess.Popen([sys.executable, "-c", PUTTER, url, path, str(local)]) as process:
        try:
            wait_until(lambda: line.stuck.is_set() or process.poll() is not None, 120, "the upload to be in its middle")
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


# --- creates ------------------------------------------------------------------------------------------------------------------


def test_the_first_exclusive_put_wins_and_the_second_changes_nothing(store: IndexStore) -> None:
    assert store.put_exclusive("control/000000000", b"first")
    assert not store.put_exclusive("control/000000000", b"second")
    assert not store.put_exclusive("control/000000000", b"first")
    assert store.get("control/000000000") == b"first"
    check_exclusive_create(store)
    assert store.list() == ["control/000000000"]


RACER = """
import sys, time
from pathlib import Path
from infra.index.store import open_index_store
store, number, gate = open_index_store(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
(gate / number).touch()
while len(list(gate.iterdir())) < 3:
    time.sleep(0.001)
print(*(i for i in range(12) if store.put_exclusive(f"race/{i:03d}", number.encode() * 1000)))
"""


def test_of_several_processes_exactly_one_wins_each_exclusive_put(place: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    commands = [[sys.executable, "-c", RACER, place.url, str(n), str(gate)] for n in range(3)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    winners = {n: [int(i) for i in racer.communicate(timeout=120)[0].split()] for n, racer in enumerate(racers)}
    assert sorted(i for won in winners.values() for i in won) == list(range(12))
    assert all(place.store.get(f"race/{i:03d}") == f"{n}".encode() * 1000 for n, won in winners.items() for i in won)


@pytest.mark.parametrize("path", ["versions/1/full/00000-a/file", "control/000000000"])
def test_what_a_killed_process_was_putting_is_never_seen_and_can_be_put_again(place: Place, path: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(1_000_000))
    place.kill_in_the_middle(path, local)
    assert place.store.list() == [] and not place.store.exists(path)
    with pytest.raises(Unavailable, match="missing_file"):
        place.store.get(path)
    place.store.scratch.remove_dead(0.0)
    assert list(place.store.local_root.rglob(f"{TEMPORARY_PREFIX}*")) == [], "a worker removes the rest at its start"
    place.store.put_file(path, local)
    assert place.store.get(path) == local.read_bytes()


def test_a_file_is_put_from_a_local_one_and_never_replaced(store: IndexStore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"part")
    store.put_file("versions/1/full/a", tmp_path / "local")
    assert store.get("versions/1/full/a") == b"part"
    with pytest.raises(Corrupted, match="file_exists"):
        store.put_file("versions/1/full/a", tmp_path / "local")


def test_the_same_bytes_may_be_put_again_and_other_bytes_may_not(store: IndexStore) -> None:
    store.put_bytes("checkpoints/x.safetensors", b"same")
    before_ms = store.stat("checkpoints/x.safetensors").put_ms
    store.put_bytes("checkpoints/x.safetensors", b"same")
    assert store.stat("checkpoints/x.safetensors").put_ms >= before_ms
    for other in (b"other", b"same and more", b"", b"Same"):
        with pytest.raises(Corrupted, match="file_exists"):
            store.put_bytes("checkpoints/x.safetensors", other)


# --- reads --------------------------------------------------------------------------------------------------------------------


def test_a_missing_file_and_a_file_that_is_too_large_are_named(store: IndexStore, tmp_path: Path) -> None:
    absent = PartFile("such", 1, "0" * 64)
    for ask in (store.get, store.stat, store.sha256, lambda _: store.fetch("no", absent, tmp_path / "x")):
        with pytest.raises(Unavailable, match="missing_file"):
            ask("no/such")
    store.put_bytes("a", b"12345")
    store.put_bytes("empty", b"")
    assert store.get("a", 5) == b"12345" and store.get("empty") == b""
    assert store.sha256("a") == hashlib.sha256(b"12345").hexdigest() and store.stat("a").size_bytes == 5
    with pytest.raises(Corrupted, match="file_too_large"):
        store.get("a", 4)
    assert store.exists("a") and not store.exists("a2") and not store.exists("a/b")


def test_a_list_is_sorted_over_all_its_pages_and_takes_a_prefix_that_ends_anywhere(store: IndexStore) -> None:
    names = [f"versions/1/0/seals/{n:05d}-a.json" for n in range(2 * PAGE_FILES + 5)]
    for name in reversed(names):
        store.put_exclusive(name, b"12")
    store.put_exclusive("versions/10/0/manifest.json", b"")
    with store.scratch.open("read") as folder:
        (folder / "private").write_bytes(b"")
        assert store.list("versions/1/") == names
        assert store.list("versions/1/0/seals/0000") == names[:10]
        assert store.list() == [*names, "versions/10/0/manifest.json"]
    assert not folder.exists()
    assert store.list("versions/10/0/manifest.json") == ["versions/10/0/manifest.json"]
    assert store.list("nothing/here/") == []
    files = store.list_files("versions/1/0/seals/00003")
    assert [(f.path, f.size_bytes) for f in files] == [(names[3], 2)] and files[0] == store.stat(names[3])


def test_remove_takes_a_file_away_and_twice_is_fine(store: IndexStore) -> None:
    store.put_bytes("versions/1/full/a/b", b"")
    store.put_bytes("versions/2", b"")
    store.remove("versions/1/full/a/b")
    store.remove("versions/1/full/a/b")
    assert store.list() == ["versions/2"]
    assert store.put_exclusive("versions/1/full/a/b", b"again")


def test_a_file_is_fetched_whole_and_checked_and_a_copy_may_be_written(store: IndexStore, tmp_path: Path) -> None:
    data = os.urandom(5_000)
    file = PartFile("000001.sst", len(data), hashlib.sha256(data).hexdigest())
    store.put_exclusive("versions/1/full/a/000001.sst", data)
    with store.scratch.open("read") as folder:
        store.fetch("versions/1/full/a", file, folder / "linked")
        store.fetch("versions/1/full/a", file, folder / "copied", link=False)
        (folder / "copied").write_bytes(b"mine")
        store.fetch("versions/1/full/a", file, folder / "again", verify=False)
        assert (folder / "linked").read_bytes() == (folder / "again").read_bytes() == data
    for wrong in (PartFile(file.name, 4_999, file.sha256), PartFile(file.name, 5_000, "0" * 64)):
        with pytest.raises(Corrupted, match="bad_part_file"):
            store.fetch("versions/1/full/a", wrong, tmp_path / "wrong")
        assert not (tmp_path / "wrong").exists()


def test_whoever_gives_way_to_others_rests_after_each_mebibyte_that_is_hashed(place: Place) -> None:
    data, rests = os.urandom(4 * MIB), list[int]()
    file = PartFile("000001.sst", len(data), hashlib.sha256(data).hexdigest())
    store = open_index_store(place.url, lambda: rests.append(1))
    store.put_exclusive("versions/1/full/a/000001.sst", data)
    with store.scratch.open("read") as folder:
        store.fetch("versions/1/full/a", file, folder / "first")
        rests.clear()
        store.fetch("versions/1/full/a", file, folder / "again")  # of a bucket's, the copy on this machine is hashed
    assert len(rests) >= 4


# --- paths --------------------------------------------------------------------------------------------------------------------

BAD_PATHS = [
    "",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a//b",
    "./a",
    "a/.",
    ".tmp-x",
    "a/.hidden",
    "a\x00b",
    "a\\..\\b",
    "a b",
    "/".join("abcdefghi"),
    "a\n",
]


def test_a_path_that_is_not_plain_is_refused_by_every_method(store: IndexStore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"")
    for path in BAD_PATHS:
        for ask in (
            lambda path=path: store.get(path),
            lambda path=path: store.put_exclusive(path, b""),
            lambda path=path: store.put_bytes(path, b""),
            lambda path=path: store.put_file(path, tmp_path / "local"),
            lambda path=path: store.fetch(path, PartFile("x", 0, "0"), tmp_path / "x"),
            lambda path=path: store.sha256(path),
            lambda path=path: store.remove(path),
            lambda path=path: store.list(path + "/"),
        ):
            with pytest.raises(Corrupted, match="bad_store_path"):
                ask()
    assert store.list() == []


# --- scratch ------------------------------------------------------------------------------------------------------------------


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(place: Place) -> None:
    code = f"""
import os, signal
from infra.index.store import open_index_store
with open_index_store({place.url!r}).scratch.open("part") as folder:
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    store = place.store
    with store.scratch.open("read") as living:
        assert len(list(store.local_root.glob(".tmp-scratch-*"))) == 2
        assert store.scratch.remove_dead() == 0, "it is too young"
        assert store.scratch.remove_dead(age_s_min=0) == 1
        assert list(store.local_root.glob(".tmp-scratch-*")) == [living]
    with contextlib.suppress(Unavailable):
        assert store.scratch.remove_dead(age_s_min=0) == 0
