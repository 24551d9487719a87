"""CSV and Parquet files in chunks: only the columns a mapping names, only the rows that count, each with its row number.

Here: opening files, resolving column names, filters, the limit, and what was rejected. Not here: what cells mean (columns.py).
Memory is bounded by one chunk while reading; `load_table` keeps the mapped columns of the rows that count, as compact Arrow columns.
CSV cells are read as text, whatever they look like: a type guessed from the first block fails on the first odd cell of a later one.
A row number counts the rows of its file from 1, without the header.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from infra.data.mapping import Column, Source
from infra.data.mapping_section import suggest
from infra.data.where import rows_where
from schemas.errors import Misconfigured

CHUNK_ROWS = 65_536
_BLOCK_BYTES = 8 << 20
_NAMED_MAX = 1_000
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that became no event, or a part of one that was left out."""

    section: str
    file: str
    row: int
    reason: str


@dataclass
class Rejections:
    """Every rejected row once; the first 1,000 with their reasons."""

    named: list[RejectedRow] = field(default_factory=list)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)

    def add(self, section: str, file: str, row: int, reason: str) -> None:
        """Notes a row; the same row of the same section is noted once."""
        if (key := (section, file, row)) in self._seen:
            return
        self._seen.add(key)
        if len(self.named) < _NAMED_MAX:
            self.named.append(RejectedRow(section, file, row, reason))

    def __len__(self) -> int:
        return len(self._seen)


@dataclass(frozen=True)
class LoadedTable:
    """The rows of a section that count. `row_R` = row numbers, `file_R` = index into `files`."""

    source: Source
    table: pa.Table
    row_R: np.ndarray
    file_R: np.ndarray
    files: tuple[str, ...]
    rejections: Rejections

    def __len__(self) -> int:
        return len(self.row_R)

    def take(self, rows: np.ndarray) -> "LoadedTable":
        """Some rows, in the given order."""
        taken = self.table.take(pa.array(rows, pa.int64()))
        return LoadedTable(self.source, taken, self.row_R[rows], self.file_R[rows], self.files, self.rejections)

    def arrays(self, column: Column) -> list[pa.ChunkedArray]:
        """The Arrow columns of a column of the mapping."""
        return [self.table.column(name) for name in resolve_column(column, self.table.column_names)]

    def array(self, role: str) -> pa.ChunkedArray:
        """The one Arrow column of a role; a constant is repeated."""
        column = self.source.roles[role]
        if column.value is not None:
            return pa.chunked_array([pa.array([column.value] * len(self))])
        return self.arrays(column)[0]

    def has(self, role: str) -> bool:
        """Whether the mapping names a column for this role."""
        return role in self.source.roles

    def reject(self, row: int, reason: str) -> None:
        """Notes row `row` of this table as rejected."""
        self.rejections.add(self.source.section, self.files[self.file_R[row]], int(self.row_R[row]), reason)


def resolve_column(column: Column, names: list[str]) -> list[str]:
    """Names of the columns in a file, for a prefix in the order of the numbers that follow it."""
    if column.prefix is None:
        return list(column.columns)
    numbered = [(int(found[1]), name) for name in names if (found := re.fullmatch(re.escape(column.prefix) + r"_?(\d+)", name))]
    return [name for _, name in sorted(numbered)]


def load_table(directory: Path, source: Source, limit: int | None, rejections: Rejections) -> LoadedTable:
    """All rows of a section that count, in file order. Raises Misconfigured for a file or column that is not there."""
    paths = find_files(directory, source)
    batches: list[pa.RecordBatch] = []
    row_numbers: list[np.ndarray] = []
    file_numbers: list[np.ndarray] = []
    schema = None
    for number, path in enumerate(paths):
        for batch, rows in read_chunks(path, source, rejections):
            room = CHUNK_ROWS if limit is None else max(0, limit - sum(map(len, row_numbers)))
            schema = schema or batch.schema
            batches.append(batch.slice(0, room).cast(schema))
            row_numbers.append(rows[:room])
            file_numbers.append(np.full(len(rows[:room]), number, np.int32))
            if limit is not None and sum(map(len, row_numbers)) >= limit:
                break
    table = pa.Table.from_batches(batches, schema) if schema is not None else _empty_table(paths[0], source)
    joined = [np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in (row_numbers, file_numbers)]
    return LoadedTable(source, table, joined[0], joined[1], tuple(p.name for p in paths), rejections)


def _empty_table(path: Path, source: Source) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in _wanted_columns(path, source)})


def find_files(directory: Path, source: Source) -> list[Path]:
    """The files of a section: one name, or a pattern like "days/*.parquet" (in name order)."""
    if Path(source.file).is_absolute() or ".." in Path(source.file).parts:
        raise Misconfigured("bad_mapping", f"[{source.section}] file = {source.file!r} must lie inside the data folder")
    if not directory.is_dir():
        raise Misconfigured("no_data", f"the data folder {directory} is not there")
    paths = sorted(path for path in directory.glob(source.file) if path.is_file())
    if not paths:
        there = [str(path.relative_to(directory)) for path in sorted(directory.rglob("*.*")) if path.is_file()][:50]
        raise Misconfigured("no_data", f"[{source.section}] file = {source.file!r} is not in {directory}; {suggest(source.file, there)}")
    return paths


def read_chunks(path: Path, source: Source, rejections: Rejections) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """(rows that count, their row numbers) of one file, chunk by chunk."""
    columns = _wanted_columns(path, source)
    first = 1
    skipped: list[int] = []
    batches = _parquet_batches(path, columns) if _is_parquet(path) else _csv_batches(path, source, columns, skipped, rejections)
    try:
        for batch in batches:
            rows = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            for number in skipped:
                rows[rows >= number] += 1
            kept = rows_where(source.where, batch)
            yield (batch, rows) if kept.all() else (batch.filter(pa.array(kept)), rows[kept])
    except pa.ArrowException as error:
        raise _unreadable(path, source, error) from error


def _unreadable(path: Path, source: Source, error: Exception) -> Misconfigured:
    kind = "Parquet" if _is_parquet(path) else "CSV"
    return Misconfigured("bad_data_file", f"[{source.section}] {path.name} cannot be read as {kind}: {error}")


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in _PARQUET


def _wanted_columns(path: Path, source: Source) -> list[str]:
    """The columns of the file that the mapping names. Raises Misconfigured that names key, column and file."""
    names = read_column_names(path, source)
    wanted: dict[str, None] = {}
    by_key = {**source.roles, **{f"features.{name}": column for name, column in source.feature_columns().items()}}
    for key, column in by_key.items():
        found = resolve_column(column, names)
        if column.prefix is not None and not found:
            known = suggest(column.prefix, names)
            raise Misconfigured(
                "bad_mapping", f"[{source.section}] {key}: no column of {path.name} is {column.prefix!r} and a number; {known}"
            )
        wanted |= dict.fromkeys(_known(name, key, names, path, source) for name in found)
    wanted |= dict.fromkeys(_known(condition.column, "where", names, path, source) for condition in source.where)
    return list(wanted)


def _known(name: str, key: str, names: list[str], path: Path, source: Source) -> str:
    if name not in names:
        hint = ' (a constant is written { value = "..." })' if key == "kind" else ""
        raise Misconfigured("bad_mapping", f"[{source.section}] {key}: {path.name} has no column {name!r}; {suggest(name, names)}{hint}")
    return name


def read_column_names(path: Path, source: Source) -> list[str]:
    """The columns of a file."""
    try:
        if _is_parquet(path):
            return list(pyarrow.parquet.read_schema(path).names)
        with (
            pa.input_stream(path, compression="detect") as stream,
            pyarrow.csv.open_csv(
                stream, _read_options(source), _parse_options(path, source, lambda _: "skip"), _text_options([])
            ) as reader,
        ):
            return list(reader.schema.names)
    except pa.ArrowException as error:
        raise _unreadable(path, source, error) from error


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        if not columns:
            columns = file.schema_arrow.names[:1]
        yield from file.iter_batches(CHUNK_ROWS, columns=columns)


def _csv_batches(path: Path, source: Source, columns: list[str], skipped: list[int], rejections: Rejections) -> Iterator[pa.RecordBatch]:
    def skip(row: pyarrow.csv.InvalidRow) -> str:
        number = (row.number or 2) - 1  # Arrow counts the header
        skipped.append(number)
        rejections.add(source.section, path.name, number, f"has {row.actual_columns} cells, expected {row.expected_columns}")
        return "skip"

    with (
        pa.input_stream(path, compression="detect") as stream,
        pyarrow.csv.open_csv(stream, _read_options(source), _parse_options(path, source, skip), _text_options(columns)) as reader,
    ):
        for batch in reader:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                yield batch.slice(first, CHUNK_ROWS)


def _read_options(source: Source) -> pyarrow.csv.ReadOptions:
    return pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, encoding=source.encoding)


def _parse_options(path: Path, source: Source, handler: object) -> pyarrow.csv.ParseOptions:
    delimiter = source.delimiter or _guess_delimiter(path, source)
    return pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=handler)


def _guess_delimiter(path: Path, source: Source) -> str:
    """What sets the names of the header apart: the commonest of comma, semicolon, tab and bar."""
    with pa.input_stream(path, compression="detect") as stream:
        header = stream.read(65_536).decode(source.encoding, errors="replace").partition("\n")[0]
    return max(",;\t|", key=header.count)


def _text_options(columns: list[str]) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        null_values=_MISSING,
    )
