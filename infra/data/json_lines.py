"""Files with one JSON object per line, as batches of text cells, as a CSV file of the same values would have them.

Here: lines to cells. Not here: the choice of files and columns (files.py), the meaning of cells (columns.py).
The cell of a text is the text; of a number, list or object its JSON; `null` or a missing key is a missing cell. Columns are the keys of the first 1,000
lines. The column `user.id` is the key `id` of the object at `user`, unless a key has that name. Of a list of objects it is the list of their values.
Lines are counted from 1, blank ones too. A line that is no object is rejected; if it is the first one, the file is refused.
Memory is bounded by one batch of about 8 MiB, and the length of a line by the same.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.limits import MIB

_BATCH_BYTES = 8 * MIB
_NAMES_LINES = 1_000
Reject = Callable[[int, str | None], None]  # number of the line, and its fault (None: it is blank)


def read_keys(path: Path) -> list[str]:
    """The keys of the first lines, in the order in which they are met. Raises ValueError for a file of something else."""
    found: dict[str, None] = {}
    with pa.input_stream(path, compression="detect") as stream:
        for number, line in zip(range(_NAMES_LINES), _lines(stream), strict=False):
            row = _decode(line)
            if number == 0 and not isinstance(row, dict):
                raise ValueError(f"expected one JSON object a line, its first line is {line[:60].decode(errors='replace')!r}")
            found |= dict.fromkeys(_names(row) if isinstance(row, dict) else ())
    return list(found)


def _names(row: dict[str, Any]) -> Iterator[str]:
    """The keys of an object. The keys of an inner object follow its own key and a dot; of a list of objects those of the first count."""
    objects = [("", row)]
    for prefix, inner in objects:  # grows while it is read, so no depth ends it
        yield from (prefix + key for key in inner)
        for key, value in inner.items():
            below = value[:1] if isinstance(value, list) else [value]
            objects += [(f"{prefix}{key}.", found) for found in below if isinstance(found, dict)]


def read_batches(path: Path, columns: Sequence[str], missing: Sequence[str], rows_max: int, reject: Reject) -> Iterator[pa.RecordBatch]:
    """The cells of some columns, batch by batch; those that are one of `missing` are null."""
    columns = columns or ["#none"]  # rows count where no column is wanted, too
    schema = pa.schema([(name, pa.string()) for name in columns])
    absent = frozenset(missing)
    rows: list[list[str | None]] = []
    size = 0
    with pa.input_stream(path, compression="detect") as stream:
        for number, line in enumerate(_lines(stream), 1):
            row = _decode(line)
            if not isinstance(row, dict):
                reject(number, "is no JSON object" if line.strip() else None)
                continue
            rows.append([None if (text := _text(_value(row, name))) in absent else text for name in columns])
            size += len(line)
            if len(rows) >= rows_max or size >= _BATCH_BYTES:
                yield _batch(rows, schema)
                rows, size = [], 0
    if rows:
        yield _batch(rows, schema)


def _lines(stream: pa.NativeFile) -> Iterator[bytes]:
    lines = io.BufferedReader(stream, MIB)
    while line := lines.readline(_BATCH_BYTES + 1):
        if len(line) > _BATCH_BYTES:
            raise ValueError(f"expected one JSON object a line, a line has more than {_BATCH_BYTES:,} bytes")
        yield line


def _decode(line: bytes) -> Any:
    """The value of a line; None where it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _value(row: Any, name: str) -> Any:
    """The value at a key, or at the end of a path of keys; None if it is missing."""
    while isinstance(row, dict) and name not in row and "." in name:
        key, _, name = name.partition(".")
        row = row.get(key)
    if isinstance(row, list):
        return [_value(inner, name) if isinstance(inner, dict) else None for inner in row]
    return row.get(name) if isinstance(row, dict) else None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _batch(rows: Sequence[Sequence[str | None]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(map(_unicode, column), pa.string()) for column in zip(*rows, strict=True)], schema=schema)


def _unicode(text: str | None) -> str | None:
    """Half a surrogate pair, which JSON can spell, is no character: it becomes a question mark."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()
