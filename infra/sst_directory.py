"""Directories and files made with RocksDB's SST writer: how parts of an index are written (protocol B14).

Rows in ascending key order become SST files, and these a RocksDB directory with exactly the files that a reader needs.
Invariants: RocksDB's writer refuses an empty file, so without rows there is no directory. Every file is synced. Nothing is left after an error.
"""

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocksdict import DBCompressionType, Options, SstFileWriter

from infra.files import fsync, fsync_tree, link_or_copy, staging_folder
from infra.rocks import Database
from infra.rocks_errors import MappedErrors

SST_FILE_BYTES_MAX = 64 << 20  # one file of an SST directory is cut after this many bytes of keys and values
# What a reader of an SST directory needs (FORMAT.md section 4); LOCK, LOG, IDENTITY, the empty WAL and rocksdict's own file are left out.
_KEPT_PREFIXES = ("MANIFEST-", "CURRENT", "OPTIONS-")


def write_sst_directory(path: Path, items: Iterable[tuple[bytes, bytes]], file_bytes_max: int = SST_FILE_BYTES_MAX) -> list[str]:
    """Make `path` a RocksDB directory that holds `items` (keys strictly ascending), synced; the names of its files, sorted.

    No items: no directory and an empty list (the SST writer refuses an empty file). `path` must not exist. Raises Incompatible
    (`database_refused`) for keys out of order, Unavailable (`disk_full`); nothing is left behind then.
    """
    with staging_folder(path, "sst") as staging:
        return _assemble(path, _write_sst_files(staging, items, file_bytes_max))


def write_sst_file(path: Path, items: Iterable[tuple[bytes, bytes]]) -> None:
    """One SST file of `items` (keys strictly ascending, at least one), synced, for `assemble_sst_directory`. A file at `path` is replaced."""
    with staging_folder(path, "sst") as staging:
        (made,) = _write_sst_files(staging, items, 1 << 62)
        fsync_tree(staging)
        made.replace(path)
        fsync(path.parent)


def assemble_sst_directory(path: Path, files: Sequence[Path]) -> list[str]:
    """Make `path` a RocksDB directory that holds the rows of SST files with ascending, disjoint keys; as `write_sst_directory`.

    The files stay: the directory gets links to them, or copies.
    """
    with staging_folder(path, "sst") as staging:
        staged = [staging / f"{n:06d}.sst" for n in range(len(files))]
        for source, target in zip(files, staged, strict=True):
            link_or_copy(source, target)
        return _assemble(path, staged)


def _assemble(path: Path, files: Sequence[Path]) -> list[str]:
    """Moves SST files into a new RocksDB directory; nothing is left of it after an error."""
    if not files:
        return []
    try:
        path.mkdir()
        with contextlib.closing(Database(path, (), read_only=False, marked=False)) as database:
            database.ingest(files)
        names = _keep_reader_files(path)
        fsync_tree(path)
        fsync(path.parent)
        return names
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _write_sst_files(folder: Path, items: Iterable[tuple[bytes, bytes]], file_bytes_max: int) -> list[Path]:
    options = Options(raw_mode=True)
    # Orders and ids compress, vectors hardly: 151 bytes a row become 124, for 0.1 us a row when it is read (zstd: 112 for 0.2 us).
    options.set_compression_type(DBCompressionType.lz4())
    files: list[Path] = []
    writer, size = None, 0
    for key, value in items:
        with MappedErrors(folder, "write of an SST file"):
            if writer is None or size > file_bytes_max:
                if writer is not None:
                    writer.finish()
                files.append(folder / f"{len(files):06d}.sst")
                writer, size = SstFileWriter(options), 0
                writer.open(str(files[-1]))
            writer[key] = value
            size += len(key) + len(value)
    if writer is not None:
        with MappedErrors(folder, "write of an SST file"):
            writer.finish()
    return files


def _keep_reader_files(path: Path) -> list[str]:
    """Remove what a reader does not need; of several OPTIONS files the newest is kept."""
    options_kept = max((p.name for p in path.glob("OPTIONS-*")), default="")
    names = []
    for file in sorted(path.iterdir()):
        kept = file.suffix == ".sst" or file.name.startswith(_KEPT_PREFIXES)
        if not kept or (file.name.startswith("OPTIONS-") and file.name != options_kept):
            file.unlink()
        else:
            names.append(file.name)
    return names
