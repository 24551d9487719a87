"""The format of a CSV file as a section of a mapping describes it: delimiter, names of the columns if there is no header, quoting, encoding.

Here: the keys, checked; and replacing a delimiter of several characters by one byte. Not here: detecting what the mapping leaves open (file_chunks.py).
"""

import codecs
import io
from dataclasses import dataclass
from typing import BinaryIO

from infra.data.mapping_section import Section

FORMAT_KEYS = ("delimiter", "encoding", "header", "quoted")
_DELIMITER_CHARS_MAX = 8
_UNIT_SEPARATOR = "\x1f"  # replaces a longer delimiter; it occurs in no text


@dataclass(frozen=True, slots=True)
class FileFormat:
    """`delimiter` None: detected. `header`: the column names of a file without a header line. `quoted`: whether "..." is one cell."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    header: tuple[str, ...] = ()
    quoted: bool = True

    @property
    def cell_end(self) -> str | None:
        """The one character between cells in the parsed text; None: detected."""
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
    """A stream in which every `delimiter` is replaced by one byte, for a parser that supports only such delimiters."""

    def __init__(self, stream: BinaryIO, form: FileFormat) -> None:
        assert form.delimiter is not None and form.cell_end is not None
        self._stream, self._long, self._short = stream, form.delimiter.encode(), form.cell_end.encode()
        self._begun = b""  # possibly the first part of a delimiter that continues in the next piece

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; empty at the end of the stream."""
        while True:
            piece = self._stream.read(size)
            found = (self._begun + piece).replace(self._long, self._short)
            self._begun = _start_at_end(found, self._long) if piece else b""
            found = found.removesuffix(self._begun)
            if found or not piece:
                return found


def _start_at_end(piece: bytes, delimiter: bytes) -> bytes:
    """The longest end of a piece that may be the first part of a delimiter."""
    return next((delimiter[:n] for n in range(len(delimiter) - 1, 0, -1) if piece.endswith(delimiter[:n])), b"")
