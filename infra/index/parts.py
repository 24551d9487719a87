"""Parts of a version in the index store: each is written once, and read through a private copy (FORMAT.md sections 4 to 6).

Invariants:
- The store's own directory of a part is never opened: rocksdict rewrites a file in any directory that it opens, also through a hard link
  and read-only. A reader opens a private directory with links to the SST files and copies of the rest, removed afterwards (B14).
- Before the first row is yielded, size and sha256 of every file have been compared with the part; after the last row, the counts. A damaged part
  raises Corrupted and never looks like a shorter one. Rows come in strictly ascending key order.
- A part without rows has no files (B13).

In a Part, `rows` counts rows and `tombstones` counts tombstones: an incremental part has rows + tombstones entries.
"""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from infra.files import sha256_of_file
from infra.index.file_cache import bad_part_file
from infra.index.store import IndexStore
from infra.rocks import DEFAULT_FAMILY, Database, open_read_only
from infra.sst_directory import assemble_sst_directory, write_sst_directory, write_sst_file
from schemas.errors import AifError, Corrupted, Unavailable
from schemas.index.control import VersionStatus
from schemas.index.layout import DEAD_AT, STAMP, RowBlock, RowLayout, decode_block, encode_block
from schemas.index.lifecycle import State
from schemas.index.manifest import UNIQUE_DIGITS, Manifest, Part, PartFile, checkpoint_path, decode_manifest, describe_repair, manifest_path
from schemas.limits import CHECKPOINT_BYTES_MAX


def full_part_path(version: int, shard: int, unique: str) -> str:
    """Place of a full part in the store."""
    return f"versions/{version}/full/{shard:05d}-{unique}"


def incremental_part_path(version: int, revision: int, shard: int, unique: str) -> str:
    """Place of an incremental part in the store."""
    return f"versions/{version}/{revision}/incremental/{shard:05d}-{unique}"


def new_unique() -> str:
    """The `<unique>` of a new name: random hex digits, so that two workers never write the same name."""
    return secrets.token_hex(UNIQUE_DIGITS // 2)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_full_part(store: IndexStore, version: int, shard: int, blocks: Iterable[RowBlock], layout: RowLayout) -> Part:
    """Write the rows of `blocks` (ordered by key, within and between blocks) as one full part; empty blocks are left out."""
    return _write_full_part(store, full_part_path(version, shard, new_unique()), blocks, layout)


def write_replayed_part(store: IndexStore, label: str, shard: int, blocks: Iterable[RowBlock], layout: RowLayout) -> Part:
    """Write the rows of a replay, which has no version yet, as one full part."""
    return _write_full_part(store, f"replays/{label}/{shard:05d}-{new_unique()}", blocks, layout)


def _write_full_part(store: IndexStore, directory: str, blocks: Iterable[RowBlock], layout: RowLayout) -> Part:
    counted = _CountedBlocks(blocks, layout)
    files = _write_part(store, directory, lambda made: write_sst_directory(made, counted))
    return Part(directory if files else "", files, counted.rows)


def write_full_slice(path: Path, blocks: Iterable[RowBlock], layout: RowLayout) -> tuple[int, bytes]:
    """Write the rows of `blocks`, at least one, as one file for `put_full_slices`. Returns the number of rows and the last key."""
    counted = _CountedBlocks(blocks, layout)
    write_sst_file(path, counted)
    return counted.rows, counted.last


def put_full_slices(store: IndexStore, version: int, shard: int, slices: Sequence[Path], rows: int) -> Part:
    """Make one full part from files that `write_full_slice` made, in key order."""
    directory = full_part_path(version, shard, new_unique())
    files = _write_part(store, directory, lambda made: assemble_sst_directory(made, slices))
    return Part(directory if files else "", files, rows)


class _CountedBlocks(Iterator[tuple[bytes, bytes]]):
    """Yields (key, value) of each non-empty block and checks the order; counts the yielded `rows` and keeps their `last` key."""

    def __init__(self, blocks: Iterable[RowBlock], layout: RowLayout) -> None:
        self._blocks, self._layout = iter(blocks), layout
        self.rows, self.last = 0, b""

    def __next__(self) -> tuple[bytes, bytes]:
        block = next(b for b in self._blocks if len(b) > 0)
        _check_ascending(block, self.last)
        self.rows, self.last = self.rows + len(block), block.keys[-1]
        return block.keys[0], encode_block(self._layout, block)


def write_incremental_part(store: IndexStore, version: int, revision: int, shard: int, increments: Iterable[tuple[bytes, bytes]]) -> Part:
    """Write (index key, increment value) pairs, in key order, as one incremental part. Tombstones are entries too."""
    counts = {False: 0, True: 0}

    def items() -> Iterator[tuple[bytes, bytes]]:
        for key, value in increments:
            counts[is_tombstone(value)] += 1
            yield key, value

    directory = incremental_part_path(version, revision, shard, new_unique())
    files = _write_part(store, directory, lambda made: write_sst_directory(made, items()))
    return Part(directory if files else "", files, counts[False], counts[True])


def is_tombstone(increment: bytes) -> bool:
    """Whether an increment value is a tombstone. Raises Corrupted (`bad_increment`) when it is too short for a stamp."""
    if len(increment) < STAMP.itemsize:
        raise Corrupted(
            "bad_increment", f"incremental row of {len(increment)} bytes, expected at least {STAMP.itemsize}; {describe_repair()}"
        )
    return increment[DEAD_AT] != 0


def _write_part(store: IndexStore, directory: str, make: Callable[[Path], list[str]]) -> tuple[PartFile, ...]:
    """Makes an SST directory in a private folder, then puts it into the store file by file. No reader gets its name before it is whole."""
    with store.scratch.open("part") as scratch:
        made = scratch / "part"
        names = make(made)
        files = tuple(PartFile(name, (made / name).stat().st_size, sha256_of_file(made / name)) for name in names)
        for name in names:
            store.put_file(f"{directory}/{name}", made / name)
    return files


def _check_ascending(block: RowBlock, last: bytes) -> None:
    keys = [last, *block.keys] if last else block.keys
    if any(a >= b for a, b in itertools.pairwise(keys)):
        raise Corrupted(
            "unsorted_block",
            f"a block of {len(block)} rows is not in strictly ascending key order after {last.hex()}; it is not written, report this as a defect",
        )


# --- reading ---------------------------------------------------------------------------------------------------------


def read_checkpoint_copy(store: IndexStore, sha256: str) -> bytes:
    """The store's copy of a checkpoint, unchecked. Raises what `store.get` raises."""
    return store.get(checkpoint_path(sha256), CHECKPOINT_BYTES_MAX)


def read_manifest(store: IndexStore, status: VersionStatus) -> Manifest:
    """The manifest of a version's last published revision, checked against its `publish` entry.

    Raises Unavailable (`not_published`, `missing_file`), Corrupted (`bad_manifest`).
    """
    if status.revision < 0:
        raise Unavailable("not_published", f"version {status.version} is {status.state} and has no published revision yet")
    path = manifest_path(status.version, status.revision)
    try:
        return decode_manifest(store.get(path), status.manifest_sha256)
    except Unavailable as error:
        if error.code == "missing_file" and status.state is State.REMOVED:
            message = (
                f"version {status.version} was dropped and its files are removed; publish its checkpoint again, which makes a new version"
            )
            raise Unavailable(error.code, message) from error
        raise
    except Corrupted as error:
        raise Corrupted(error.code, f"{path}: {error.message}; {describe_repair(path)}") from error


def read_full_part(store: IndexStore, part: Part, layout: RowLayout, verify: bool = True) -> Iterator[RowBlock]:
    """Yields the blocks of a full part in key order. `verify=False`: the sha256 of its files is not checked, because the caller has just done so."""
    rows, last = 0, b""
    for key, raw in _read_entries(store, part, verify):
        block = decode_block(layout, raw)
        if block.keys[0] != key:
            raise Corrupted(
                "bad_block",
                f"{part.directory}: the block at key {key.hex()} does not begin with that key; {describe_repair(part.directory)}",
            )
        if key <= last:
            raise Corrupted(
                "unsorted_block",
                f"{part.directory}: the block at key {key.hex()} begins before the end of the last one; {describe_repair(part.directory)}",
            )
        rows, last = rows + len(block), block.keys[-1]
        yield block
    _check_count(part, "rows", part.rows, rows)


def read_incremental_part(store: IndexStore, part: Part, verify: bool = True) -> Iterator[tuple[bytes, bytes]]:
    """Yields (index key, increment value) of an incremental part in key order, tombstones included."""
    counts = {False: 0, True: 0}
    for key, value in _read_entries(store, part, verify):
        counts[is_tombstone(value)] += 1
        yield key, value
    _check_count(part, "rows", part.rows, counts[False])
    _check_count(part, "tombstones", part.tombstones, counts[True])


def verify_part(store: IndexStore, part: Part) -> None:
    """Check presence, size and sha256 of every file of a part. With a store in a bucket, this machine has copies of them afterwards. Raises the first
    fault that it finds: Corrupted (`bad_part_file`), Unavailable (`missing_file`)."""
    with store.scratch.open("verify") as folder:
        for file in part.files:
            store.fetch(part.directory, file, folder / file.name)


def find_part_faults(store: IndexStore, part: Part) -> list[str]:
    """Faults of the files of a part in the store, one line for each; empty if all are as the part says."""
    faults: list[str] = []
    for file in part.files:
        path = f"{part.directory}/{file.name}"
        try:
            size = store.stat(path).size_bytes
            sha256 = store.sha256(path) if size == file.size_bytes else ""
            if sha256 != file.sha256:
                raise bad_part_file(path, file, size, sha256)
        except AifError as error:
            faults.append(str(error))
    return faults


def _check_count(part: Part, what: str, expected: int, found: int) -> None:
    if expected != found:
        raise Corrupted(
            "bad_part_count", f"{part.directory} has {found} {what}, its manifest says {expected}; {describe_repair(part.directory)}"
        )


def _read_entries(store: IndexStore, part: Part, verify: bool) -> Iterator[tuple[bytes, bytes]]:
    if not part.files:
        return
    with open_part(store, part, verify) as database:
        yield from database.scan(DEFAULT_FAMILY)


@contextlib.contextmanager
def open_part(store: IndexStore, part: Part, verify: bool = False) -> Iterator[Database]:
    """Open a part that has files, to look up single rows. Unless it is verified, only RocksDB checks its own checksums, of the blocks that are read."""
    with store.scratch.open("read") as folder:
        for file in part.files:  # SST files as links, the rest as copies
            store.fetch(part.directory, file, folder / file.name, verify=verify, link=file.name.endswith(".sst"))
        with contextlib.closing(open_read_only(folder)) as database:
            yield database
