"""Two checks of a RocksDB directory when it is opened: marks, which show that no table file was lost, and the record types of its logs.

RocksDB opens a directory without an error when its MANIFEST lost its last records or CURRENT is gone. The table files that the lost records named are
then missing, and their log was removed when they were written. So each column family counts its flushes in marks, and a note in the directory holds
the marks that must be there.

Invariants: a mark is written and synced before memtables become table files, as the last change in them. The note follows the mark, and comes before
the rows can be lost. Nothing else makes table files of memtables, so no table file lacks a mark.
A family keeps its last four marks. A log that RocksDB has not removed yet brings its own mark back, and not those of the lost table files before it. At
most three logs with marks exist: of a flush that is over, of one that runs, and of one that waits for it.

Logs are the write-ahead logs and the MANIFEST. RocksDB 9.8 reads a record whose type byte names a recycled log (5 to 8, 11) again and again, and an opening
never returns. One flipped bit suffices: type 1 becomes 5. So the types are checked before RocksDB reads them.
Source: RocksDB's log format. A file has blocks of 32 KiB. A record is a checksum (4 bytes), a length (2), a type (1) and its content. Zeros fill the end of a
block that has no room for a header.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from infra.files import write_file_durably
from infra.rocks_errors import REBUILD
from schemas.errors import Corrupted

NOTE_NAME = "marks"  # a file of ours in RocksDB's directory
END_KEY = b"\xff" * 16  # sorts after every key of a row: an increasing number before 2^63, an id as int64, or UTF-8. Scans end here
_KEPT = 4  # marks of a family
MARK_KEYS = tuple(END_KEY + bytes([n]) for n in range(_KEPT))
_MARK = struct.Struct(">Q")
_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_LAST_TYPE = 4  # 0 is preallocated space; 1 to 4 are a full record, and the first, middle and last piece of one

Marks = Mapping[str, int]  # by column family


def encode_mark(mark: int) -> tuple[bytes, bytes]:
    """Key and value of a mark, which replaces the fourth before it."""
    return MARK_KEYS[mark % _KEPT], _MARK.pack(mark)


def decode_marks(values: Iterable[bytes | None]) -> frozenset[int]:
    """The marks that a family has, from the values under MARK_KEYS."""
    return frozenset(int.from_bytes(value, "big") for value in values if value is not None)


def write_note(directory: Path, marks: Marks) -> None:
    """Put the note into `directory`, durably. Raises OSError."""
    text = json.dumps(dict(marks), sort_keys=True).encode()
    write_file_durably(directory / NOTE_NAME, b"%08x %s" % (zlib.crc32(text), text))


def read_note(directory: Path) -> dict[str, int] | None:
    """The marks that the database must have; None without a note. Raises Corrupted (`database_corrupted`)."""
    try:
        found = (directory / NOTE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    checksum, _, text = found.partition(b" ")
    if b"%08x" % zlib.crc32(text) != checksum:
        raise _damaged(directory, f"its file {NOTE_NAME} does not match its checksum")
    marks: dict[str, int] = json.loads(text)
    return marks


def check_marks(directory: Path, noted: Marks | None, found: Mapping[str, frozenset[int]]) -> None:
    """Raises Corrupted (`database_corrupted`) where rows are missing, or cannot be known to be there. `found`: the marks of each family. A directory
    without a note and marks is new, or was made with the SST writer."""
    if noted is None:
        if any(found.values()):
            raise _damaged(directory, f"its file {NOTE_NAME} is missing")
        return
    for family in sorted({*noted, *found}):
        marks = found.get(family, frozenset[int]())
        last = max(noted.get(family, 0), *marks, 0)
        if lost := set(range(max(1, last - _KEPT + 1), last + 1)) - marks:
            raise _damaged(directory, f"table files of {family} are lost (mark {min(lost)} of {last})")


def check_current(directory: Path, noted: Marks | None) -> None:
    """Raises Corrupted (`database_corrupted`) where RocksDB would begin an empty database over an existing one."""
    if noted is not None and not (directory / "CURRENT").exists():
        raise _damaged(directory, "its file CURRENT is missing")


def _damaged(directory: Path, what: str) -> Corrupted:
    return Corrupted("database_corrupted", f"{directory} is damaged: {what}; {REBUILD}")


def check_logs(directory: Path) -> None:
    """Raises Corrupted (`database_corrupted`) if a record has a type that our databases never write; OSError if a file does not read."""
    for path in sorted((*directory.glob("*.log"), *directory.glob("MANIFEST-*"))):
        with path.open("rb") as log:
            begin = 0
            while block := log.read(_BLOCK_BYTES):
                _check_block(path, begin, block)
                begin += len(block)


def _check_block(path: Path, begin: int, block: bytes) -> None:
    at = 0
    while at + _HEADER.size <= len(block):
        _, length, kind = _HEADER.unpack_from(block, at)
        if kind > _LAST_TYPE:
            raise Corrupted(
                "database_corrupted",
                f"{path} is damaged: the record at byte {begin + at} has type {kind}, expected 0 to {_LAST_TYPE}; {REBUILD}",
            )
        if not kind and not length:
            return  # RocksDB also continues with the next block
        at += _HEADER.size + length
