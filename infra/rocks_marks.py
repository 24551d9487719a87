"""Marks: how an opened RocksDB directory is known to hold everything that its table files held.

RocksDB opens a directory without an error when its MANIFEST lost its last records or CURRENT is gone. The table files that the lost records named are
then missing, and their log was removed when they were written. So each column family holds a number, its mark, and a note beside the database holds
the marks that must be there.

Here: the note and its check. Not here: when marks are written (infra/rocks.py).
Invariants: a mark is written and synced before memtables become table files, as the last change in them; for ingested rows it is in their file. The
note follows the mark, and comes before the rows can be lost: a mark below the note means that a table file of that family is lost, whatever was
written later. Nothing else makes table files of memtables, so no table file lacks a mark.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from infra.files import write_file_durably
from schemas.errors import Corrupted

NOTE_NAME = "marks"  # a file beside RocksDB's own
MARK_KEY = b""  # sorts before every other key, and scans begin after it
FIRST_KEY = b"\0"  # no key lies between this one and MARK_KEY
_MARK = struct.Struct(">Q")

Marks = Mapping[str, int]  # by column family


def encode_mark(mark: int) -> bytes:
    """The value under MARK_KEY."""
    return _MARK.pack(mark)


def decode_mark(value: bytes | None) -> int:
    """The mark of a family; 0 if it has none."""
    return 0 if value is None else int.from_bytes(value, "big")


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


def check_marks(directory: Path, noted: Marks | None, found: Marks) -> None:
    """Raises Corrupted (`database_corrupted`) where rows are missing, or cannot be known to be there. A directory of an older release has neither marks
    nor a note."""
    if noted is None:
        if any(found.values()):
            raise _damaged(directory, f"its file {NOTE_NAME} is missing")
        return
    lost = {family: (found.get(family, 0), mark) for family, mark in noted.items() if found.get(family, 0) < mark}
    if lost:
        text = ", ".join(f"{family} is at mark {has} of {mark}" for family, (has, mark) in sorted(lost.items()))
        raise _damaged(directory, f"table files are lost ({text})")


def check_current(directory: Path, noted: Marks | None) -> None:
    """Raises Corrupted (`database_corrupted`) where RocksDB would begin an empty database over an existing one."""
    if noted is not None and not (directory / "CURRENT").exists():
        raise _damaged(directory, "its file CURRENT is missing")


def _damaged(directory: Path, what: str) -> Corrupted:
    return Corrupted("database_corrupted", f"{directory} is damaged: {what}; set the directory aside and rebuild it from its source")
