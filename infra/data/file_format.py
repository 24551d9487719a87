"""How a CSV file is written, as a section of a mapping says it: what sets its cells apart, the names of its columns where no header tells
them, whether cells may be quoted, and which bytes its characters are.

Here: the keys, checked; and a separator of several characters as one byte. Not here: finding out what was left open (file_chunks.py).
"""

import codecs
import io
from dataclasses import dataclass
from typing import BinaryIO

from infra.data.mapping_section import Section

FORMAT_KEYS = ("delimiter", "encoding", "header", "quoted")
_DELIMITER_CHARS_MAX = 8
_UNIT_SEPARATOR = "\x1f"  # what a longer delimiter becomes: no text has it


@dataclass(frozen=True, slots=True)
class FileFormat:
    """`delimiter` None: found out. `header` = names of the columns of a file without a line that tells them. `quoted`: whether "..." is one cell."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    header: tuple[str, ...] = ()
    quoted: bool = True

    @property
    def cell_end(self) -> str | None:
        """The one character that sets cells apart in what is parsed; None: found out."""
        return _UNIT_SEPARATOR if self.is_long else self.delimiter

    @property
    def is_long(self) -> bool:
        """Whether the delimiter has several characters."""
        return self.delimiter is not None and len(self.delimiter) > 1


AS_FOUND = FileFormat()


def read_format(section: Section) -> FileFormat:
    """The keys of a section. Raises Misconfigured."""
    delimiter = _read_delimiter(section)
    long = delimiter is not None and len(delimiter) > 1
    return FileFormat(delimiter, _read_encoding(section), _read_header(section), section.flag("quoted", not long))


def _read_delimiter(section: Section) -> str | None:
    given = section.any("delimiter")
    if given is not None and not (isinstance(given, str) and 1 <= len(given) <= _DELIMITER_CHARS_MAX and given.isascii()):
        raise section.reject("delimiter", f"is {given!r}, expected one character, several like '::', or tab")
    return "\t" if given == "tab" else given


def _read_encoding(section: Section) -> str:
    given = section.text("encoding", "utf-8")
    try:
        codecs.lookup(given)
    except LookupError as error:
        raise section.reject("encoding", f"is {given!r}, expected one like utf-8 or latin-1") from error
    return given


def _read_header(section: Section) -> tuple[str, ...]:
    names = tuple(section.texts("header", ()))
    if len(set(names)) != len(names):
        raise section.reject("header", f"is {list(names)!r}, expected different names, one for each column of the file")
    return names


class OneByteDelimiter(io.RawIOBase):
    """A stream in which every `delimiter` is one byte, so that a parser that knows no longer ones reads it."""

    def __init__(self, stream: BinaryIO, form: FileFormat) -> None:
        assert form.delimiter is not None and form.cell_end is not None
        self._stream, self._long, self._short = stream, form.delimiter.encode(), form.cell_end.encode()
        self._begun = b""  # what may be the start of a delimiter that the next piece ends

    def readable(self) -> bool:
        """It is for reading only."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end of the stream."""
        while True:
            piece = self._stream.read(size)
            found = (self._begun + piece).replace(self._long, self._short)
            self._begun = _start_at_end(found, self._long) if piece else b""
            found = found.removesuffix(self._begun)
            if found or not piece:
                return found


def _start_at_end(piece: bytes, delimiter: bytes) -> bytes:
    """The longest end of a piece that a delimiter could begin with, shorter than it."""
    return next((delimiter[:n] for n in range(len(delimiter) - 1, 0, -1) if piece.endswith(delimiter[:n])), b"")
