"""RocksDB behind one door: atomic batches, honest scans, named errors, LOCK."""

import contextlib
import errno
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Rdict

from infra.rocks import Database, block_cache, open_database, open_read_only
from infra.rocks_errors import MappedErrors, rocks_error
from infra.sst_directory import write_sst_directory
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable


def _key(i: int) -> bytes:
    return i.to_bytes(8, "big")


def _remove(database: Database, family: str, start: bytes, end: bytes) -> None:
    batch = database.new_batch()
    batch.delete_range(family, start, end)
    database.write(batch)


def _filled(path: Path, rows: int = 2_000, families: tuple[str, ...] = ("a", "b")) -> Database:
    database = open_database(path, families)
    batch = database.new_batch()
    for i in range(rows):
        batch.put("a", _key(i), os.urandom(100))
    database.write(batch)
    return database


def test_a_batch_over_column_families_is_read_back_by_get_multi_get_and_scan(tmp_path: Path) -> None:
    with contextlib.closing(open_database(tmp_path / "db", ("a", "b"))) as database:
        batch = database.new_batch()
        batch.put("a", b"1", b"one")
        batch.put("b", b"2", b"two")
        batch.delete("a", b"0")
        database.write(batch, sync=True)
        assert database.get("a", b"1") == b"one"
        assert database.get("a", b"2") is None
        assert database.multi_get("b", [b"2", b"1"]) == [b"two", None]
        assert database.multi_get("b", []) == []
        assert list(database.scan("a")) == [(b"1", b"one")]


def test_a_scan_gives_the_half_open_range_as_of_its_beginning(tmp_path: Path) -> None:
    with contextlib.closing(_filled(tmp_path / "db", 100)) as database:
        scan = database.scan("a", _key(10), _key(20))
        _remove(database, "a", _key(0), _key(100))
        assert [k for k, _ in scan] == [_key(i) for i in range(10, 20)]
        assert list(database.scan("a")) == []


def test_close_frees_the_lock_though_scans_and_batches_are_still_held(tmp_path: Path) -> None:
    database = _filled(tmp_path / "db")
    scan, batch = database.scan("a"), database.new_batch()
    next(scan)
    batch.put("a", b"x", b"y")
    database.close()
    database.close()
    with contextlib.closing(open_database(tmp_path / "db")) as again:
        assert again.column_families == ("default", "a", "b")
    assert list(scan) == []
    del batch


def test_a_directory_with_an_owner_is_refused_in_this_and_in_another_process(tmp_path: Path) -> None:
    with contextlib.closing(_filled(tmp_path / "db")):
        with pytest.raises(Unavailable, match="database_locked"):
            open_database(tmp_path / "db")
        code = f"from infra.rocks import open_database\nfrom pathlib import Path\nopen_database(Path({str(tmp_path / 'db')!r}))"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "database_locked" in other.stderr


def test_reopen_keeps_what_was_written(tmp_path: Path) -> None:
    with contextlib.closing(_filled(tmp_path / "db", 10)) as database:
        database.reopen()
        assert len(list(database.scan("a"))) == 10


def test_a_database_that_could_not_be_opened_again_says_so_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_without_room(_: Database) -> None:
        raise Unavailable("disk_full", "no space left on device")

    with contextlib.closing(_filled(tmp_path / "db", 10)) as database:
        with monkeypatch.context() as full:
            full.setattr(Database, "_open", open_without_room)
            with pytest.raises(Unavailable, match="disk_full"):
                database.reopen()
        for use in (lambda: database.get("a", _key(1)), lambda: database.new_batch().put("a", b"", b""), lambda: database.scan("a")):
            with pytest.raises(Unavailable, match=r"database_closed: .*disk_full: no space left"):
                use()
        database.reopen()
        assert len(list(database.scan("a"))) == 10


def test_a_checkpoint_is_the_moment_it_was_taken_and_opens_read_only(tmp_path: Path) -> None:
    with contextlib.closing(_filled(tmp_path / "db", 50)) as database:
        database.create_checkpoint(tmp_path / "copies" / "one")
        _remove(database, "a", _key(0), _key(50))
        with contextlib.closing(open_read_only(tmp_path / "copies" / "one")) as copy:
            assert len(list(copy.scan("a"))) == 50
            with pytest.raises(AifError):
                _remove(copy, "a", _key(0), _key(1))
        with pytest.raises(Incompatible):
            database.create_checkpoint(tmp_path / "copies" / "one")


def test_a_database_that_was_not_written_in_raw_mode_is_refused(tmp_path: Path) -> None:
    pickling = Rdict(str(tmp_path / "db"))
    pickling["a"] = {"any": "object"}
    pickling.close()
    for open_it in (open_database, open_read_only):
        with pytest.raises(Incompatible, match="not_raw_mode"):
            open_it(tmp_path / "db")


@pytest.mark.parametrize("left", [b"", b'{"raw_mo'])
def test_what_a_full_disk_leaves_of_a_file_without_rows_does_not_cost_the_rows(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "db"
    with contextlib.closing(open_database(path, ["a"])) as database:
        batch = database.new_batch()
        batch.put("a", b"k", b"v")
        database.write(batch)
    (path / "rocksdict-config.json").write_bytes(left)  # it is rewritten at every open
    with contextlib.closing(open_database(path, ["a"])) as database:
        assert database.get("a", b"k") == b"v"
    assert json.loads((path / "rocksdict-config.json").read_bytes())["raw_mode"]


def test_flipped_bytes_in_a_table_file_never_make_a_scan_shorter_in_silence(tmp_path: Path) -> None:
    """Where a flip is seen the scan raises; where nothing raises, every row is there unchanged."""
    rows = [(_key(i), os.urandom(100)) for i in range(500)]
    raised = 0
    for trial in range(40):
        directory = tmp_path / str(trial)
        write_sst_directory(directory, rows)
        file = next(directory.glob("*.sst"))
        data = bytearray(file.read_bytes())
        data[len(data) * trial // 40] ^= 0x10
        file.write_bytes(data)
        try:
            with contextlib.closing(open_read_only(directory)) as database:
                assert list(database.scan()) == rows
        except Corrupted:
            raised += 1
    assert raised >= 30


def test_an_error_of_a_scan_that_is_held_does_not_hold_the_directory(tmp_path: Path) -> None:
    """The owner of a damaged view held the error, and could not build the view again."""
    with contextlib.closing(_filled(tmp_path / "db")) as database:
        database.flush()
    (table,) = (p for p in (tmp_path / "db").glob("*.sst") if p.stat().st_size > 10_000)
    content = bytearray(table.read_bytes())
    content[50_000:50_050] = bytes(50)
    table.write_bytes(content)
    for read in (list, lambda scan: scan.take(5_000)):
        database = open_database(tmp_path / "db")
        with pytest.raises(Corrupted) as held:
            read(database.scan("a"))
        database.close()
        open_database(tmp_path / "db").close()
        assert held.value.code == "database_corrupted"


def test_a_truncated_or_missing_table_file_is_corrupted(tmp_path: Path) -> None:
    for damage in ("truncate", "remove", "current"):
        directory = tmp_path / damage
        write_sst_directory(directory, [(_key(i), b"v" * 100) for i in range(1000)])
        file = next(directory.glob("*.sst"))
        if damage == "truncate":
            os.truncate(file, file.stat().st_size // 2)
        else:
            (file if damage == "remove" else directory / "CURRENT").unlink()
        with pytest.raises(Corrupted), contextlib.closing(open_read_only(directory)) as database:
            list(database.scan())


def test_an_sst_directory_holds_its_rows_in_several_files_and_nothing_else(tmp_path: Path) -> None:
    rows = [(_key(i), os.urandom(50)) for i in range(1000)]
    names = write_sst_directory(tmp_path / "part", iter(rows), file_bytes_max=10_000)
    assert names == sorted(p.name for p in (tmp_path / "part").iterdir())
    assert len([n for n in names if n.endswith(".sst")]) > 3
    assert {n.split("-")[0] for n in names if not n.endswith(".sst")} == {"CURRENT", "MANIFEST", "OPTIONS"}
    with contextlib.closing(open_read_only(tmp_path / "part")) as database:
        assert list(database.scan()) == rows


def test_no_rows_make_no_directory(tmp_path: Path) -> None:
    assert write_sst_directory(tmp_path / "part", []) == []
    assert list(tmp_path.iterdir()) == []


def test_keys_out_of_order_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="ascending"):
        write_sst_directory(tmp_path / "part", [(b"b", b""), (b"a", b"")])
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_items_leaves_nothing(tmp_path: Path) -> None:
    def items():  # type: ignore[no-untyped-def]
        yield b"a", b"1"
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        write_sst_directory(tmp_path / "part", items())
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("IO error: No space left on device: While appending to file", Unavailable, "disk_full"),
        ("IO error: While lock file: db/LOCK: Resource temporarily unavailable", Unavailable, "database_locked"),
        ("Corruption: block checksum mismatch", Corrupted, "database_corrupted"),
        ("Invalid argument: Column families not opened: b", Incompatible, "database_refused"),
        ("IO error: Input/output error", Unavailable, "database_failed"),
    ],
)
def test_every_foreign_error_gets_a_class_by_who_must_act(text: str, kind: type[AifError], code: str) -> None:
    error = rocks_error(Exception(text), Path("db"), "write")
    assert type(error) is kind
    assert error.code == code


def test_what_rocksdict_itself_cannot_write_is_named_too() -> None:
    """As in a directory that was mounted read-only meanwhile: it writes a file of its own when it opens one."""
    with (
        pytest.raises(Unavailable, match=r"database_failed: open in db: Permission denied \(os error 13\); a worker or server"),
        MappedErrors(Path("db"), "open"),
    ):
        raise PermissionError("Permission denied (os error 13)")


def test_a_full_disk_is_named_and_reopen_recovers(tmp_path: Path) -> None:
    """A file size limit of the process stands in for the full disk: the write fails in the same place, and only reopening helps."""
    code = f"""
import resource, signal
from pathlib import Path
from infra.rocks import open_database
from schemas.errors import AifError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = open_database(Path({str(tmp_path / "db")!r}), ("a",))
batch = database.new_batch(); batch.put("a", b"first", b"kept"); database.write(batch, sync=True)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
failed = 0
for i in range(20):
    batch = database.new_batch(); batch.put("a", b"big", b"x" * 100_000)
    try: database.write(batch)
    except AifError as error: failed += 1
assert failed, "the limit was not met"
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
database.reopen()
batch = database.new_batch(); batch.put("a", b"after", b"works"); database.write(batch)
assert (database.get("a", b"first"), database.get("a", b"after")) == (b"kept", b"works")
database.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_facts_of_a_directory_count_all_families(tmp_path: Path) -> None:
    with open_database(tmp_path / "db", ("a", "b")) as database:
        batch = database.new_batch()
        for n in range(100):
            batch.put("ab"[n % 2], b"%03d" % n, bytes(100))
        database.write(batch)
        database.flush()
        facts = database.facts()
        assert 100 <= facts.keys <= 106 and facts.bytes > 0 and facts.compaction_debt_bytes == 0  # with the marks


def test_pages_of_a_scan_are_its_rows_and_end_where_it_ends(tmp_path: Path) -> None:
    with open_database(tmp_path / "db") as database:
        batch = database.new_batch()
        for n in range(10):
            batch.put("default", b"%d" % n, b"v")
        database.write(batch)
        scan, pages = database.scan(start=b"2", end=b"8"), []
        while page := scan.take(4):
            pages.append([key for key, _ in page])
        assert pages == [[b"2", b"3", b"4", b"5"], [b"6", b"7"]]
        assert scan.take(4) == [] and list(database.scan(start=b"2", end=b"8")) != []


def test_the_block_cache_is_bounded_by_the_size_of_the_table_files(tmp_path: Path) -> None:
    """Blocks of deleted files stay in it until it is full, so its bound must not exceed what the files can fill."""
    keys = [n.to_bytes(8, "big") for n in range(1_000)]
    with open_database(tmp_path / "small") as small:
        for _ in range(50):  # 25 MB written, of which 500 KB remain
            batch = small.new_batch()
            batch.put_all("default", [(key, os.urandom(500)) for key in keys])
            small.write(batch)
            small.flush()
            small.multi_get("default", keys)
        assert block_cache().cache.get_usage() <= 9 << 20
    with open_database(tmp_path / "large") as large:
        for begin in range(0, 20_000, 1_000):
            batch = large.new_batch()
            batch.put_all("default", [(n.to_bytes(8, "big"), os.urandom(1_000)) for n in range(begin, begin + 1_000)])
            large.write(batch)
        large.flush()
        assert sum(1 for _ in large.scan("default")) == 20_000
        assert block_cache().cache.get_usage() > 16 << 20


def test_a_directory_that_a_full_disk_does_not_take_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the disk itself ended the worker that opened a new shard."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(Unavailable, match=r"disk_full: open in .*shard: .*free disk space"):
        open_database(tmp_path / "shard")
