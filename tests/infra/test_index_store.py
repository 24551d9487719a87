"""The index store: whole files, one winner, no way out of its folder."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.index_store import FolderStore, IndexStore, open_index_store
from schemas.errors import Corrupted, Misconfigured, Unavailable


@pytest.fixture
def store(tmp_path: Path) -> IndexStore:
    return open_index_store(str(tmp_path / "store"))


def test_a_store_opens_by_path_and_by_file_url_and_refuses_other_urls(tmp_path: Path) -> None:
    open_index_store(str(tmp_path / "a b")).put_bytes("x/y", b"1")
    assert open_index_store((tmp_path / "a b").as_uri()).get("x/y") == b"1"
    for url in ("s3://bucket/x", "file://elsewhere/x", "http://localhost/x"):
        with pytest.raises(Misconfigured, match="index_store_url"):
            open_index_store(url)


def test_a_store_that_cannot_be_made_is_misconfigured(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Misconfigured):
        open_index_store(str(tmp_path / "file"))


def test_the_first_exclusive_put_wins_and_the_second_changes_nothing(store: IndexStore) -> None:
    assert store.put_exclusive("control/000000000", b"first")
    assert not store.put_exclusive("control/000000000", b"second")
    assert store.get("control/000000000") == b"first"


def _race(root: str, number: int, go: object, wins: object) -> None:
    store = open_index_store(root)
    go.wait()  # type: ignore[attr-defined]
    won = [i for i in range(30) if store.put_exclusive(f"race/{i:03d}", f"{number}".encode() * 1000)]
    wins.put((number, won))  # type: ignore[attr-defined]


def test_of_several_processes_exactly_one_wins_each_exclusive_put(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    go, wins = context.Event(), context.Queue()
    processes = [context.Process(target=_race, args=(str(tmp_path), n, go, wins)) for n in range(4)]
    for process in processes:
        process.start()
    go.set()
    winners = dict(wins.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    store = open_index_store(str(tmp_path))
    assert sorted(i for won in winners.values() for i in won) == list(range(30))
    assert all(store.get(f"race/{i:03d}") == f"{n}".encode() * 1000 for n, won in winners.items() for i in won)


def test_a_file_is_put_from_a_local_one_and_never_replaced(store: IndexStore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"part")
    store.put_file("versions/1/full/a", tmp_path / "local")
    assert store.get("versions/1/full/a") == b"part"
    with pytest.raises(Corrupted, match="file_exists"):
        store.put_file("versions/1/full/a", tmp_path / "local")


def test_the_same_bytes_may_be_put_again_and_other_bytes_may_not(store: IndexStore) -> None:
    store.put_bytes("checkpoints/x.safetensors", b"same")
    store.put_bytes("checkpoints/x.safetensors", b"same")
    for other in (b"other", b"same and more", b""):
        with pytest.raises(Corrupted):
            store.put_bytes("checkpoints/x.safetensors", other)


def test_a_missing_file_and_a_file_that_is_too_large_are_named(store: IndexStore) -> None:
    for ask in (store.get, store.size_bytes, store.modified_ms):
        with pytest.raises(Unavailable, match="missing_file"):
            ask("no/such")
    store.put_bytes("a", b"12345")
    assert store.get("a", 5) == b"12345"
    with pytest.raises(Corrupted, match="file_too_large"):
        store.get("a", 4)
    assert store.exists("a") and not store.exists("a2") and not store.exists("a/b")


def test_list_gives_the_paths_with_a_prefix_sorted_and_no_unfinished_ones(store: IndexStore) -> None:
    for path in ("versions/1/0/seals/00001-b.json", "versions/1/0/seals/00000-a.json", "versions/10/0/manifest.json", "control/000000000"):
        store.put_bytes(path, b"")
    assert isinstance(store, FolderStore)
    (store.root / "versions" / ".tmp-unfinished").write_bytes(b"")
    with store.scratch("read") as folder:
        (folder / "private").write_bytes(b"")
        assert store.list("versions/1/") == ["versions/1/0/seals/00000-a.json", "versions/1/0/seals/00001-b.json"]
        assert len(store.list()) == 4
    assert store.list("versions/1/0/seals/00001") == ["versions/1/0/seals/00001-b.json"]
    assert store.list("nothing/here/") == []
    assert not folder.exists()


def test_remove_takes_the_empty_folders_along_and_twice_is_fine(store: IndexStore) -> None:
    store.put_bytes("versions/1/full/a/b", b"")
    store.put_bytes("versions/2", b"")
    store.remove("versions/1/full/a/b")
    store.remove("versions/1/full/a/b")
    assert isinstance(store, FolderStore)
    assert os.listdir(store.root / "versions") == ["2"]


@pytest.mark.parametrize(
    "path",
    [
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
    ],
)
def test_a_path_that_is_not_plain_is_refused_by_every_method(store: IndexStore, path: str, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"")
    for ask in (
        lambda: store.get(path),
        lambda: store.put_bytes(path, b""),
        lambda: store.put_file(path, tmp_path / "local"),
        lambda: store.local_path(path),
        lambda: store.remove(path),
        lambda: store.list(path + "/"),
    ):
        with pytest.raises(Corrupted, match="bad_store_path"):
            ask()


@given(st.text(max_size=40))
def test_no_path_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    root = tmp_path_factory.getbasetemp().resolve()
    try:
        assert FolderStore(root).local_path(path).resolve().is_relative_to(root)
    except Corrupted:
        return


def test_a_symbolic_link_is_never_followed(store: IndexStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    assert isinstance(store, FolderStore)
    (store.root / "folder").symlink_to(tmp_path / "outside")
    (store.root / "file").symlink_to(tmp_path / "outside" / "secret")
    for path in ("folder/secret", "file"):
        with pytest.raises(Corrupted, match="bad_store_path"):
            store.get(path)
        with pytest.raises(Corrupted, match="bad_store_path"):
            store.put_exclusive(path, b"")
    with pytest.raises(Corrupted, match="bad_store_path"):
        store.list("folder/")
    assert "folder/secret" not in store.list()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(store: IndexStore) -> None:
    assert isinstance(store, FolderStore)
    code = f"""
import os, signal
from infra.index_store import open_index_store
with open_index_store({store.url!r}).scratch("part") as folder:
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with store.scratch("read") as living:
        assert len(list(store.root.iterdir())) == 2
        assert store.remove_dead_scratch() == 0, "it is too young"
        assert store.remove_dead_scratch(age_s_min=0) == 1
        assert list(store.root.iterdir()) == [living]
    assert list(store.root.iterdir()) == []
