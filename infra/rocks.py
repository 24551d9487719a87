"""The one place that opens RocksDB: databases and checkpoints.

Invariants, each from a measured trap of rocksdict:
- raw mode always: bytes in, bytes out. The default mode pickles, and an unpickled value can run code (I10).
- LOCK is freed by `close()` only when no handle and no iterator is alive, so the `Database` owns them all and ends its scans when it closes.
- After a full disk every write fails until the directory is closed and opened again: `reopen()`.
- RocksDB opens a MANIFEST that lost its last records, without the table files that these named: rows are missing without an error. So each family has a mark
  (infra/rocks_checks.py), written before every flush, at every open and close. RocksDB never flushes on its own: `write` does so by size.
- RocksDB moves table files whose keys do not overlap down unmerged, also those with nothing but deletions. Every table file ends with a mark, so all
  overlap and are merged: their number is bounded.
- A read-only open writes into the directory (its `rocksdict-config.json`), and is no consistent view of a directory with another writer. Open a checkpoint
  or a private copy (protocol B14).
Source: RocksDB 9.8 through rocksdict 0.3.29.
"""

import contextlib
import json
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from infra.closeable import Closeable
from infra.failpoints import failing_disk
from infra.rocks_checks import END_KEY, MARK_KEYS, check_current, check_logs, check_marks, decode_marks, encode_mark, read_note, write_note
from infra.rocks_errors import REBUILD, MappedErrors
from infra.rocks_scan import Scan
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable

DEFAULT_FAMILY = "default"
V = TypeVar("V")
_CONFIG_NAME = "rocksdict-config.json"
_MEMTABLES_BYTES = 16 << 20  # of one database, all column families together: more are flushed
_MEMTABLE_BYTES_MAX = 1 << 30  # of one family, never reached: RocksDB would flush it without a mark
_BLOCKS_BYTES_MIN, _BLOCKS_BYTES_MAX = 8 << 20, 256 << 20  # of all databases of a process together: unpacked blocks of table files
_BLOOM_BITS = 10  # a key: one that a table file lacks is known to be, without a look, 99 times of 100
_INFO_LOGS_KEPT = 2


class Batch:
    """Changes of several column families that become visible together. Made by `Database.new_batch`, used once."""

    __slots__ = ("_handles", "raw")

    def __init__(self, handles: dict[str, ColumnFamily]) -> None:
        self._handles = handles
        self.raw = WriteBatch(raw_mode=True)

    def __len__(self) -> int:
        return len(self.raw)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set `key`."""
        self.raw.put(key, value, self._handles[family])

    def put_all(self, family: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the value of each key."""
        put, handle = self.raw.put, self._handles[family]
        for key, value in rows:
            put(key, value, handle)

    def delete(self, family: str, key: bytes) -> None:
        """Remove `key`."""
        self.raw.delete(key, self._handles[family])

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove every key from `start` to before `end`."""
        self.raw.delete_range(start, end, self._handles[family])


class _ByFamily(dict[str, V]):
    """What belongs to each column family. Nothing once the database is closed, as it is after a reopening that found no room on the disk: `because`."""

    because = ""

    def __missing__(self, family: str) -> V:
        raise Unavailable(
            "database_closed",
            f"the database is closed{self.because}, or has no column family {family}; a worker or server opens it again by itself",
        )


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Keys, bytes of table files, bytes that compaction has yet to rewrite, and the number of table files, each of which is an open file."""

    keys: int
    bytes: int
    compaction_debt_bytes: int
    table_files: int


_MEMTABLE = "rocksdb.cur-size-active-mem-table"
_FLUSHING = ("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes")
_FACTS = ("rocksdb.estimate-num-keys", "rocksdb.total-sst-files-size", "rocksdb.estimate-pending-compaction-bytes")


class Database(Closeable):
    """One open RocksDB directory and every handle of it. One owner; see `open_database` and `open_read_only`."""

    def __init__(self, path: Path, families: Sequence[str], read_only: bool, marked: bool = True) -> None:
        """`marked`: with marks against lost table files; not in a directory that is made once and never grows."""
        self.path = path
        self.read_only = read_only
        self._marked = marked
        self._marks: dict[str, int] = {}
        self._is_changed = False  # since the last mark
        self._names = tuple(families)
        self._scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        self._open()

    def _open(self) -> None:
        access = AccessType.read_only(False) if self.read_only else AccessType.read_write()
        self._failed = ""
        with MappedErrors(self.path, "open"):
            if not self.read_only:
                self._fail_as_told()
            noted = read_note(self.path)
            check_current(self.path, noted)
            check_logs(self.path)
            has_log = any(log.stat().st_size for log in self.path.glob("*.log"))
            existing = Rdict.list_cf(str(self.path), _make_options(False)) if (self.path / "CURRENT").exists() else []
            names = {*existing, *(() if self.read_only else self._names)} - {DEFAULT_FAMILY}
            families = {name: _make_options(False) for name in sorted(names)}
            self._database = Rdict(str(self.path), _make_options(not self.read_only), families, access)
            self._families = _ByFamily({name: self._database.get_column_family(name) for name in (DEFAULT_FAMILY, *families)})
            self._handles = _ByFamily({name: self._database.get_column_family_handle(name) for name in (DEFAULT_FAMILY, *families)})
        self.is_open = True
        try:
            self._fit_blocks()
            found = {name: decode_marks(self.multi_get(name, MARK_KEYS)) for name in self._families}
            check_marks(self.path, noted, found)
            self._marks = {name: max(marks, default=0) for name, marks in found.items()}
            if self._marked and not self.read_only and (has_log or noted is None):
                self._is_changed = True  # RocksDB made table files of the log, and they may lack a mark
                self.flush()
        except BaseException:
            with contextlib.suppress(AifError):
                self._end()
            raise

    @property
    def column_families(self) -> tuple[str, ...]:
        """Names of all column families in the directory, the default one included."""
        return tuple(self._families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of `key`, None if absent."""
        with MappedErrors(self.path, f"get from {family}"):
            value: bytes | None = self._families[family].get(key)
        return value

    def multi_get(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order; releases the GIL."""
        if not keys:
            return []
        with MappedErrors(self.path, f"multi-get from {family}"):
            values: list[bytes | None] = self._families[family].get(list(keys))  # type: ignore[assignment] # rocksdict: None is for a single key
        return values

    def scan(self, family: str = DEFAULT_FAMILY, start: bytes = b"", end: bytes | None = None) -> Scan:
        """Rows from `start` to before `end` (None = to the last), in key order, as of now."""
        end = END_KEY if end is None else end
        with MappedErrors(self.path, f"scan of {family}"):
            iterator = self._families[family].iter()
            iterator.seek(start)
            scan = Scan(self.path, family, iterator, end)
        self._scans.add(scan)
        return scan

    def find_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The row of the default family with the greatest key that is not after `key`; None if absent."""
        with MappedErrors(self.path, f"search in {DEFAULT_FAMILY}"):
            iterator = self._families[DEFAULT_FAMILY].iter()
            iterator.seek_for_prev(key)
            if iterator.valid():
                return iterator.key(), iterator.value()
            iterator.status()
        return None

    def new_batch(self) -> Batch:
        """An empty batch for `write`."""
        return Batch(self._handles)

    def write(self, batch: Batch, sync: bool = False) -> None:
        """Apply a batch, all or nothing. `sync`: also safe from a power cut (a kill never loses a write)."""
        self._write(batch, sync)
        self._is_changed = True
        with MappedErrors(self.path, "read of properties"):
            memtables_bytes = sum(family.property_int_value(_MEMTABLE) or 0 for family in self._families.values())
        if memtables_bytes > _MEMTABLES_BYTES:
            self.flush(wait=False)

    def _write(self, batch: Batch, sync: bool) -> None:
        with MappedErrors(self.path, f"write of {len(batch)} changes"):
            self._fail_as_told()
            options = WriteOptions()
            options.sync = sync
            self._database.write(batch.raw, options)

    def _fail_as_told(self) -> None:
        """A disk that is made to fail (infra/failpoints.py): as with RocksDB, the handle fails until it is opened again."""
        failing = failing_disk()
        self._failed = self._failed or (f"IO error: {failing.strerror}: While appending to file" if failing else "")
        if self._failed:
            raise Exception(self._failed)  # what rocksdict raises

    def _mark(self) -> None:
        """Give every family its next mark, and note it. REQUIRES: no other write comes before the memtables are flushed, if they are."""
        if not self._marked or not self._is_changed:
            return
        marks, batch = {family: self._marks[family] + 1 for family in self._families}, self.new_batch()
        for family, mark in marks.items():
            batch.put(family, *encode_mark(mark))
        self._write(batch, sync=True)
        self._note(marks)
        self._is_changed = False

    def _note(self, marks: Mapping[str, int]) -> None:
        with MappedErrors(self.path, "note of marks"):
            write_note(self.path, {**self._marks, **marks})
        self._marks.update(marks)

    def flush(self, wait: bool = True) -> None:
        """Write the memtables of every column family to table files. `wait=False`: in the background; `is_flushing` says when it is over. A checkpoint
        writes memtables too, in the caller's time."""
        self._mark()
        with MappedErrors(self.path, "flush"):
            for family in self._families.values():
                family.flush(wait)
        self._fit_blocks()

    def _fit_blocks(self) -> None:
        block_cache().fit(id(self), self.facts().bytes)

    def is_flushing(self) -> bool:
        """Whether memtables are on their way to table files."""
        with MappedErrors(self.path, "read of properties"):
            return any(family.property_int_value(name) for family in self._families.values() for name in _FLUSHING)

    def ingest(self, files: Sequence[Path]) -> None:
        """Take over SST files with ascending, disjoint keys; they are moved away."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        with MappedErrors(self.path, "ingest"):
            self._database.ingest_external_file([str(f) for f in files], options)

    def create_checkpoint(self, directory: Path) -> None:
        """A consistent copy of all column families in the new folder `directory`: hard links, milliseconds."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._mark()
        with MappedErrors(self.path, f"checkpoint to {directory}"):
            Checkpoint(self._database).create_checkpoint(str(directory))
            write_note(directory, self._marks)

    def facts(self) -> DiskFacts:
        """How large the directory is, over all column families, by RocksDB's own estimates."""
        with MappedErrors(self.path, "read of properties"):
            keys, size, debt = (sum(family.property_int_value(name) or 0 for family in self._families.values()) for name in _FACTS)
            return DiskFacts(keys, size, debt, sum(1 for _ in self.path.glob("*.sst")))

    def reopen(self) -> None:
        """Close and open again, and lose nothing: after a full disk every write fails until then. Without room, raises and stays open for reads."""
        if self.is_open:
            self._check_room()
        with contextlib.suppress(AifError):  # the old handle may fail again while it closes
            self.close()
        try:
            self._open()
        except AifError as error:
            self._families.because = self._handles.because = f" ({error})"
            raise

    def _check_room(self) -> None:
        with MappedErrors(self.path, "open again"), tempfile.TemporaryFile(dir=self.path) as file:
            if failing := failing_disk():
                raise failing
            file.write(bytes(_MEMTABLES_BYTES))
            file.flush()

    def close(self) -> None:
        """Mark the writes, end all scans, drop every handle and free LOCK, also when it raises. Closing twice does nothing."""
        if not self.is_open:
            return
        with contextlib.suppress(AifError):  # a disk that takes no mark: the earlier note holds as well
            self._mark()
        self._end()

    def _end(self) -> None:
        self.is_open = False
        block_cache().drop(id(self))
        for scan in list(self._scans):
            scan.close()
        self._handles.clear()
        self._families.clear()
        database = self._database
        del self._database
        with MappedErrors(self.path, "close"):
            database.close()


def open_database(path: Path, column_families: Sequence[str] = ()) -> Database:
    """Open or create the directory `path` for reading and writing, with these column families and those that it has already.

    Raises Unavailable (`database_locked`, `disk_full`), Corrupted (`database_corrupted`), Incompatible (`not_raw_mode`).
    """
    _check_raw_mode(path)
    with MappedErrors(path, "open"):
        path.mkdir(parents=True, exist_ok=True)
    return Database(path, column_families, read_only=False)


def open_read_only(path: Path) -> Database:
    """Open a directory that no process writes: a checkpoint or a private copy. It must be writable (rocksdict rewrites its own small file)."""
    if not (path / "CURRENT").exists():
        raise Corrupted("database_corrupted", f"{path} has no file CURRENT: it is no RocksDB directory; {REBUILD}")
    _check_raw_mode(path)
    return Database(path, (), read_only=True)


def _check_raw_mode(path: Path) -> None:
    """A directory of another mode holds pickles: refuse before anything is read from it.

    The file is rewritten at every open, so a disk that is full just then leaves half of it. It says nothing of the rows, and is written again.
    """
    try:
        raw_mode = json.loads((path / _CONFIG_NAME).read_bytes())["raw_mode"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    except OSError as error:
        raise Corrupted("database_corrupted", f"{path / _CONFIG_NAME} does not read: {error}; {REBUILD}") from error
    if raw_mode is not True:
        raise Incompatible("not_raw_mode", f"{path} was written with raw_mode = {raw_mode}, expected true; it is not a directory of ours")


class BlockCache:
    """Unpacked blocks of table files, shared by all databases of the process. Its bound is twice the size of these files, within limits.

    RocksDB keeps blocks of deleted files until the cache is full. With a large fixed bound, the process of a small catalogue grows for hours.
    With a small one, the process of a large catalogue unpacks a block at nearly every read.
    """

    def __init__(self) -> None:
        self.cache = Cache(_BLOCKS_BYTES_MIN)
        self._table_bytes: dict[int, int] = {}
        self._lock = threading.Lock()

    def fit(self, database: int, table_bytes: int) -> None:
        """Set the bound, now that the table files of a database have this size."""
        with self._lock:
            self._table_bytes[database] = table_bytes
            self.cache.set_capacity(min(max(2 * sum(self._table_bytes.values()), _BLOCKS_BYTES_MIN), _BLOCKS_BYTES_MAX))

    def drop(self, database: int) -> None:
        """Count a closed database no longer."""
        with self._lock:
            self._table_bytes.pop(database, None)


@cache
def block_cache() -> BlockCache:
    """The cache of this process."""
    return BlockCache()


def _make_options(create: bool) -> Options:
    """Options of a database and of a column family alike. RocksDB makes no table files of memtables on its own, because `Database` marks them first.
    `create`: make the directory and families where they are missing."""
    tables = BlockBasedOptions()
    tables.set_bloom_filter(_BLOOM_BITS, False)
    tables.set_block_cache(block_cache().cache)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_write_buffer_size(_MEMTABLE_BYTES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(_INFO_LOGS_KEPT)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
