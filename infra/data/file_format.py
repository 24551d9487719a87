"""The format of a CSV file as a section of a mapping describes it: delimiter, names of the columns if there is no header, quoting, encoding.

Here: the keys, checked; and replacing a delimiter of several characters by one byte. Not here: detecting what the mapping leaves open (file_chunks.py).
"""

import codecs
import io
from typing import Any, BinaryIO

from pydantic import Field, field_validator

from infra.data.mapping_part import Part, Texts

_DELIMITER_CHARS_MAX = 8
_UNIT_SEPARATOR = "\x1f"  # replaces a longer delimiter; it occurs in no text


class FileFormat(Part):
    """`delimiter` None: detected. `header`: the column names of a file without a header line. `quoted`: whether "..." is one cell."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    header: Texts = ()
    quoted: bool = Field(default_factory=lambda data: len(data["delimiter"] or "") <= 1)

    @field_validator("delimiter", mode="before")
    @classmethod
    def _read_delimiter(cls, given: Any) -> str | None:
        if given is not None and not (isinstance(given, str) and 1 <= len(given) <= _DELIMITER_CHARS_MAX and given.isascii()):
            raise ValueError(f"is {given!r}, expected one character, several like '::', or tab")
        return "\t" if given == "tab" else given

    @field_validator("encoding")
    @classmethod
    def _require_encoding(cls, given: str) -> str:
        try:
            codecs.lookup(given)
        except LookupError as error:
            raise ValueError(f"is {given!r}, expected one like utf-8 or latin-1") from error
        return given

    @field_validator("header")
    @classmethod
    def _require_different_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError(f"is {list(names)!r}, expected different names, one for each column of the file")
        return names

    @property
    def cell_end(self) -> str | None:
        """The one character between cells in the parsed text; None: detected."""
        return _UNIT_SEPARATOR if self.is_long else self.delimiter

    @property
    def is_long(self) -> bool:
        """Whether the delimiter has several characters."""
        return self.delimiter is not None and len(self.delimiter) > 1


FORMAT_KEYS = tuple(FileFormat.model_fields)


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
