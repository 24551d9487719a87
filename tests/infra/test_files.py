"""Durable files: complete or not there, first one wins, links only where they are safe."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from infra.files import append_whole, put_exclusive, sha256_of_file, write_file_durably
from tests.infra.small_files import files_of_at_most


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_file_durably(tmp_path / "a" / "file", b"one")
    write_file_durably(tmp_path / "a" / "file", b"two")
    assert (tmp_path / "a" / "file").read_bytes() == b"two"
    assert os.listdir(tmp_path / "a") == ["file"]


def test_an_exclusive_file_is_created_once_and_never_changed(tmp_path: Path) -> None:
    assert put_exclusive(tmp_path / "file", b"first", tmp_path)
    assert not put_exclusive(tmp_path / "file", b"second", tmp_path)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_of_many_writers_at_once_exactly_one_creates_the_file_and_its_bytes_are_complete(tmp_path: Path) -> None:
    won: list[bytes] = []

    def write(data: bytes) -> None:
        if put_exclusive(tmp_path / "entry", data, tmp_path):
            won.append(data)

    threads = [threading.Thread(target=write, args=(bytes([i]) * 100_000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "entry").read_bytes() == won[0]
    assert os.listdir(tmp_path) == ["entry"]


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file_durably(tmp_path / "folder", b"cannot replace a folder")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_line_is_appended_whole_or_not_at_all_and_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    append_whole(path, b"first\n")
    with files_of_at_most(1_000), pytest.raises(OSError, match="lines"):
        append_whole(path, b"x" * 5_000 + b"\n")
    append_whole(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_write_that_a_full_disk_refuses_names_its_folder(tmp_path: Path) -> None:
    with files_of_at_most(1_000), pytest.raises(OSError, match=tmp_path.name):
        write_file_durably(tmp_path / "file", b"x" * 5_000)
    assert os.listdir(tmp_path) == []


def test_the_checksum_is_that_of_the_whole_file(tmp_path: Path) -> None:
    data = os.urandom(3 * (1 << 20) + 17)
    (tmp_path / "file").write_bytes(data)
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()
