"""Local copies of files: right bytes or none, once for all processes, and no more of them than allowed."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from infra.index.file_cache import Fetch, FileCache
from schemas.errors import Corrupted
from schemas.index.manifest import PartFile


class Source:
    """Where files come from; counts how often."""

    def __init__(self) -> None:
        self.fetched: list[bytes] = []

    def fetch_of(self, data: bytes) -> Fetch:
        def fetch(target: Path) -> str:
            self.fetched.append(data)
            target.write_bytes(data)
            return hashlib.sha256(data).hexdigest()

        return fetch


def file_of(data: bytes) -> PartFile:
    return PartFile("000001.sst", len(data), hashlib.sha256(data).hexdigest())


def take(cache: FileCache, source: Source, data: bytes, into: Path, brought: bytes | None = None, **how: bool) -> bytes:
    cache.take(file_of(data), into, source.fetch_of(data if brought is None else brought), **{"verify": True, "link": True, **how})
    return into.read_bytes()


def test_a_file_is_fetched_once_and_given_out_as_links_or_copies(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", 1_000), Source()
    assert (
        take(cache, source, b"one", tmp_path / "a") == take(FileCache(tmp_path / "cache", 1_000), source, b"one", tmp_path / "b") == b"one"
    )
    take(cache, source, b"one", tmp_path / "c", link=False)
    assert source.fetched == [b"one"]
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino != (tmp_path / "c").stat().st_ino


def test_bytes_that_are_not_the_named_ones_are_never_kept(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", 1_000), Source()
    for wrong in (b"two", b"more than one", b""):
        with pytest.raises(Corrupted, match="bad_part_file"):
            take(cache, source, b"one", tmp_path / "a", brought=wrong)
    assert not (tmp_path / "a").exists() and list((tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*")) == []
    assert take(cache, source, b"one", tmp_path / "a") == b"one"


def test_a_copy_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", 1_000), Source()
    take(cache, source, b"one", tmp_path / "a")
    (held,) = (tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*")
    held.write_bytes(b"One")
    assert take(cache, source, b"one", tmp_path / "b") == b"one"
    held.write_bytes(b"torn by a power cut")
    assert take(cache, source, b"one", tmp_path / "c", verify=False) == b"one"
    assert len(source.fetched) == 3


def test_the_cache_keeps_to_its_size_and_what_was_given_out_stays(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", 25), Source()
    pieces = [bytes([n]) * 10 for n in range(3)]
    take(cache, source, pieces[0], tmp_path / "0")
    take(cache, source, pieces[1], tmp_path / "1")
    for path, used_s in zip(
        sorted((tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*"), key=lambda p: p.read_bytes()), (2_000, 1_000), strict=True
    ):
        os.utime(path, (used_s, used_s))  # the first was taken last
    take(cache, source, pieces[2], tmp_path / "2")
    kept = sorted(p.read_bytes() for p in (tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*"))
    assert kept == [pieces[0], pieces[2]] and (tmp_path / "1").read_bytes() == pieces[1]
    assert take(cache, source, b"larger than everything".ljust(30), tmp_path / "3") == b"larger than everything".ljust(30)
    assert sorted(p.read_bytes() for p in (tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*")) == kept


def test_what_a_killed_process_left_half_is_removed_or_overwritten(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", 1_000), Source()
    name = hashlib.sha256(b"one").hexdigest()
    own, old = tmp_path / "cache" / name[:2] / f".tmp-{name}", tmp_path / "cache" / "00" / ".tmp-00"
    for half in (own, old):
        half.parent.mkdir()
        half.write_bytes(b"half")
    os.utime(old, (1_000, 1_000))
    assert take(cache, source, b"one", tmp_path / "a") == b"one"
    assert [p.name for p in (tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*")] == [name]


def test_many_who_want_one_file_at_once_wait_for_one_fetch(tmp_path: Path) -> None:
    source, data = Source(), os.urandom(100_000)
    gate = threading.Barrier(6)

    def work(n: int) -> None:
        cache = FileCache(tmp_path / "cache", 1 << 20)
        gate.wait(60)
        take(cache, source, data, tmp_path / f"{n}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(source.fetched) == 1 and all((tmp_path / f"{n}").read_bytes() == data for n in range(6))
