"""The index store in a folder: which URLs are one, and no way out of it. What every store promises: test_store_contract.py."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.index.control_folds import control_path
from infra.index.control_log import ControlLog, ensure_init, read_state
from infra.index.store import FolderStore, find_index_store, open_index_store
from schemas.errors import Corrupted, Misconfigured, Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState, Init


def test_a_store_opens_by_path_and_by_file_url_and_refuses_other_urls(tmp_path: Path) -> None:
    open_index_store(str(tmp_path / "a b")).put_bytes("x/y", b"1")
    assert open_index_store((tmp_path / "a b").as_uri()).get("x/y") == b"1"
    for url in ("file://elsewhere/x", "http://localhost/x", "gs://bucket/x"):
        with pytest.raises(Misconfigured, match="index_store_url"):
            open_index_store(url)


def test_a_store_that_cannot_be_made_is_misconfigured(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Misconfigured):
        open_index_store(str(tmp_path / "file"))
    with pytest.raises(Misconfigured, match="it is a file, expected a folder"):
        find_index_store(str(tmp_path / "file"), look=False)


def test_a_reader_makes_no_store_and_names_the_missing_one(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "mounted"
    with pytest.raises(Unavailable, match=f"index_store_missing: there is no index store at {missing}.*AIF_INDEX__STORE"):
        find_index_store(str(missing))
    waiting = ControlLog(find_index_store(str(missing), look=False))
    with pytest.raises(Unavailable, match="index_store_missing"):
        waiting.refresh()
    assert read_state(waiting.store) == ControlState() and list(tmp_path.iterdir()) == []
    ensure_init(ControlLog(open_index_store(str(missing))), init := Init(2, 1, IdKind.INT64, {}), 1, "test")
    assert waiting.refresh().init == init and read_state(find_index_store(str(missing))).init == init


def test_a_list_has_no_unfinished_files(store: FolderStore) -> None:
    for path in ("versions/1/0/seals/00001-b.json", "versions/1/0/seals/00000-a.json", "versions/10/0/manifest.json", "control/000000000"):
        store.put_bytes(path, b"")
    (store.root / "versions" / ".tmp-unfinished").write_bytes(b"")
    with store.scratch.open("read") as folder:
        (folder / "private").write_bytes(b"")
        assert store.list("versions/1/") == ["versions/1/0/seals/00000-a.json", "versions/1/0/seals/00001-b.json"]
        assert len(store.list()) == 4
    assert store.list("versions/1/0/seals/00001") == ["versions/1/0/seals/00001-b.json"]
    assert store.list("nothing/here/") == []
    assert not folder.exists()


def test_a_folder_that_cannot_be_read_fails_the_list_and_is_never_taken_for_an_empty_one(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes("versions/1/0/manifest.json", b"")
    store.put_bytes("versions/1/full/a/b", b"")
    scandir = os.scandir

    def fail(path: str) -> object:
        if str(path).endswith("/versions/1/0"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(Unavailable, match="store_unreadable"):
        store.list("versions/")
    with pytest.raises(Unavailable, match="store_unreadable"):
        store.list_files("versions/")


def test_remove_takes_the_empty_folders_along_and_twice_is_fine(store: FolderStore) -> None:
    store.put_bytes("versions/1/full/a/b", b"")
    store.put_bytes("versions/2", b"")
    store.remove("versions/1/full/a/b")
    store.remove("versions/1/full/a/b")
    assert os.listdir(store.root / "versions") == ["2"]
    with pytest.raises(Unavailable, match="store_unwritable"):  # what the system refuses to remove
        store.remove("versions")


@given(st.text(max_size=40))
def test_no_path_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    root = tmp_path_factory.getbasetemp().resolve()
    try:
        assert FolderStore(root).local_path(path).resolve().is_relative_to(root)
    except Corrupted:
        return


@pytest.mark.timeout(20)  # who reads a pipe would wait permanently
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("/dev/zero")])
def test_what_is_no_file_is_named_and_blocks_nobody(store: FolderStore, make: Callable[[Path], None]) -> None:
    make(store.root / "odd")
    for read in (store.get, store.sha256):
        with pytest.raises(Corrupted, match=r"not_a_file|bad_store_path"):
            read("odd")
    ensure_init(ControlLog(store), Init(1, 1, IdKind.INT64, {}), 1, "test")
    make(store.root / control_path(1))
    with pytest.raises(Corrupted, match=control_path(1)):
        ControlLog(store).refresh()


def test_a_symbolic_link_is_never_followed(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
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
