"""Reads CSV, JSON-lines and Parquet files in chunks: only the columns a mapping names, only the rows that count, each with its row number.

Here: `load_table`, opening files, filters, rows with too few or too many cells. Not here: where rows are kept (tables.py), what cells mean (columns.py), lines
of JSON (json_lines.py). Memory is bounded by one chunk: 65,536 rows, fewer of wide ones, and 8 MiB of CSV text.
CSV cells are read as text, whatever they look like: a type guessed from the first block fails on the first odd cell of a later one.
A row number counts the rows of its file from 1, without the header.
"""

import csv
import functools
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from infra.data.columns import IdForm, decode_lists, is_list, list_lengths, plain
from infra.data.json_lines import read_batches, read_keys
from infra.data.mapping_source import Column, FileFormat, Source
from infra.data.spool import Spool, SpoolBounds
from infra.data.tables import FILE, ID_ROLES, ROW, LoadedTable, Rejections, Tell, rows_where
from schemas.errors import Misconfigured, suggest

CHUNK_ROWS = 65_536
_BLOCK_BYTES = 8 << 20
_READ_AHEAD_BYTES = 1 << 20
_HEADER_BYTES = 1 << 16
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N"]
_JSON = (".json", ".jsonl", ".ndjson")
_PARQUET, _PARQUET_MAGIC = (".parquet", ".pq"), b"PAR1"
_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".br")  # Arrow unpacks them
_OTHERS = dict.fromkeys((".xlsx", ".xls"), "Excel") | dict.fromkeys((".zip", ".tar", ".tgz", ".7z"), "an archive")


def load_table(
    directory: Path, source: Source, limit: int | None, rejections: Rejections, bounds: SpoolBounds, tell: Tell | None = None
) -> LoadedTable:
    """All rows of a section that count, in file order. Raises Misconfigured for a file or column that is not there."""
    paths = find_files(directory, source)
    schema = common_schema(paths, source)
    spool = Spool(schema.append(pa.field(ROW, pa.int64())).append(pa.field(FILE, pa.int32())), bounds)
    id_forms = {role: IdForm() for role in ID_ROLES if role in source.roles}
    table = LoadedTable(source, spool, tuple(path.name for path in paths), rejections, id_forms)
    known = limit is None and source.explode is None and all(map(_is_parquet, paths))
    total = sum(pyarrow.parquet.read_metadata(path).num_rows for path in paths) if known else None
    for batch in _numbered(paths, source, schema, limit, rejections):
        spool.append(batch)
        rows = table.rows(pa.Table.from_batches([batch]))
        for role, form in id_forms.items():
            form.see(rows.array(role))
        if tell is not None:
            tell(source.section, len(spool), total)
    if tell is not None:
        tell(source.section, len(spool), len(spool))
    spool.finish()
    return table


def _numbered(
    paths: Sequence[Path], source: Source, schema: pa.Schema, limit: int | None, rejections: Rejections
) -> Iterator[pa.RecordBatch]:
    """The rows of all files with their numbers, `limit` at most."""
    left = limit
    for number, path in enumerate(paths):
        for batch, rows in read_chunks(path, source, schema, rejections):
            batch, rows = (batch, rows) if left is None else (batch.slice(0, left), rows[:left])
            columns = [*batch.columns, pa.array(rows, pa.int64()), pa.array(np.full(len(rows), number, np.int32))]
            yield pa.RecordBatch.from_arrays(columns, [*schema.names, ROW, FILE])
            if left is not None:
                left -= len(rows)
                if not left:
                    return


def find_files(directory: Path, source: Source) -> list[Path]:
    """The files of a section: one name, or a pattern like "days/*.parquet" (in name order)."""
    if Path(source.file).is_absolute() or ".." in Path(source.file).parts:
        raise Misconfigured("bad_mapping", f"[{source.section}] file = {source.file!r} must lie inside the data folder")
    if not directory.is_dir():
        raise Misconfigured("no_data", f"the data folder {directory} is not there")
    paths = [path for path in sorted(directory.glob(source.file)) if path.is_file()]
    if not (directory / source.file).is_file():  # a pattern: the writer of the parts may leave files like _SUCCESS, and empty ones
        paths = [path for path in paths if not path.name.startswith((".", "_")) and path.stat().st_size]
    if not paths:
        if (directory / source.file).is_dir():
            raise Misconfigured(
                "no_data", f"[{source.section}] file = {source.file!r} is a folder; its files are {source.file.rstrip('/') + '/*'!r}"
            )
        there = [str(path.relative_to(directory)) for path in sorted(directory.rglob("*.*")) if path.is_file()][:50]
        raise Misconfigured("no_data", f"[{source.section}] file = {source.file!r} is not in {directory}; {suggest(source.file, there)}")
    return paths


def common_schema(paths: Sequence[Path], source: Source) -> pa.Schema:
    """The wanted columns with types that hold the cells of every file. Raises Misconfigured where there are none."""
    found: pa.Schema | None = None
    for path in paths:
        schema = _file_schema(path, source)
        try:
            found = schema if found is None else pa.unify_schemas([found, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise Misconfigured(
                "bad_data_file", f"[{source.section}] {path.name} has other types of columns than {paths[0].name}: {error}"
            ) from error
    assert found is not None
    _check_single_values(paths[0], source, found)
    return found


def _check_single_values(path: Path, source: Source, schema: pa.Schema) -> None:
    keys = read_column_names(path, source) if _is_json(path) else []  # those of an inner object follow its own and a dot
    for key, column in source.columns_by_key().items():
        if column.pattern is None and key not in source.roles.keys() - {"vector", "explode"}:
            continue
        for name in column.names_in(schema.names):
            if (is_object := any(other.startswith(f"{name}.") for other in keys)) or pa.types.is_nested(schema.field(name).type):
                raise Misconfigured(
                    "bad_mapping",
                    f"[{source.section}] {key}: column {name!r} of {path.name} holds {'objects' if is_object else schema.field(name).type}, expected "
                    f"one value in each row; `explode` makes a row of each value of a list, and a dot names a field ({name}.FIELD)",
                )


def _file_schema(path: Path, source: Source) -> pa.Schema:
    packed = path.suffix.lower() in _PACKED
    other = _OTHERS.get((Path(path.stem) if packed else path).suffix.lower())
    if other is not None:
        raise Misconfigured(
            "bad_data_file",
            f"[{source.section}] {path.name} is {other}, expected CSV, JSON lines or Parquet; write it as one of them first",
        )
    columns = _wanted_columns(path, source)
    if not _is_parquet(path):
        return pa.schema([(name, pa.string()) for name in columns])
    fields = _parquet_fields(path)
    types = {name: _plain_type(fields[name][1]) for name in columns}
    for name in source.explode.columns if source.explode is not None else ():
        if not (pa.types.is_string(types[name]) or is_list(types[name])):
            raise Misconfigured(
                "bad_mapping", f"[{source.section}] explode: column {name!r} of {path.name} holds {types[name]}, expected lists or text"
            )
        types[name] = _plain_type(types[name].value_type) if is_list(types[name]) else types[name]
    return pa.schema(list(types.items()))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if _is_bytes(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    """Text that its writer did not mark as text."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def read_chunks(path: Path, source: Source, schema: pa.Schema, rejections: Rejections) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """(rows that count with the columns of `schema`, their row numbers) of one file, chunk by chunk."""
    first = 1
    skipped: list[int] = []
    batches = _batches(path, source, schema.names, skipped, rejections)
    try:
        for batch in batches:
            rows = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            rows += np.searchsorted(np.array(skipped, np.int64) - np.arange(len(skipped)), rows, "right")
            kept = rows_where(source.where, batch)
            chosen, rows = (batch, rows) if kept.all() else (batch.filter(pa.array(kept)), rows[kept])
            chosen, rows = (chosen, rows) if source.explode is None else _explode(chosen, rows, source.explode)
            arrays = [plain(chosen.column(field.name)).cast(field.type) for field in schema]
            found = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else chosen.select([])
            for start in range(0, max(1, len(rows)), CHUNK_ROWS):
                yield found.slice(start, CHUNK_ROWS), rows[start : start + CHUNK_ROWS]
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise _unreadable(path, source, error, first) from error


def _explode(batch: pa.RecordBatch, rows: np.ndarray, column: Column) -> tuple[pa.RecordBatch, np.ndarray]:
    """A row for each value of the columns' cells, and of each the row number of its cell. Raises ValueError where cells of a row differ in theirs."""
    lists = {name: decode_lists(batch.column(name), column.separator) for name in column.columns}
    length_CR = np.array([list_lengths(cells) for cells in lists.values()])
    if len(uneven := np.flatnonzero((length_CR != length_CR[0]).any(axis=0))):
        told = ", ".join(f"{length} of {name!r}" for name, length in zip(lists, length_CR[:, uneven[0]].tolist(), strict=True))
        raise ValueError(f"explode needs as many values of each column in a row; row {rows[uneven[0]]} has {told}")
    places = np.repeat(np.arange(len(rows)), length_CR[0])
    found = batch.take(pa.array(places))
    for name, cells in lists.items():
        found = found.set_column(found.schema.get_field_index(name), name, pc.list_flatten(cells))
    return found, rows[places]


def _batches(path: Path, source: Source, columns: list[str], skipped: list[int], rejections: Rejections) -> Iterator[pa.RecordBatch]:
    """The rows of a file; numbers of those that do not read are put into `skipped`."""
    if _is_parquet(path):
        return _parquet_batches(path, columns)
    if not _is_json(path):
        return _csv_batches(path, source, columns, skipped, rejections)

    def skip(number: int, reason: str | None) -> None:
        skipped.append(number)
        if reason is not None:
            rejections.add(source.section, path.name, number, reason)

    return read_batches(path, columns, _MISSING, CHUNK_ROWS, skip)


def _unreadable(path: Path, source: Source, error: Exception, row: int = 1) -> Misconfigured:
    kind = "Parquet" if _is_parquet(path) else "JSON lines" if _is_json(path) else "CSV"
    place = f" from row {row:,} on" if row > 1 else ""
    hint = '; is its `encoding` another, like "latin-1"?' if "UTF8" in str(error) and kind == "CSV" else ""
    hint = '; does a " stay open? With quoted = false it is a character like any other' if "straddl" in str(error) else hint
    return Misconfigured("bad_data_file", f"[{source.section}] {path.name} cannot be read as {kind}{place}: {error}{hint}")


def _is_parquet(path: Path) -> bool:
    """By the name, or by the first bytes: others write names like "log.parquet.br" or "part-00000"."""
    if path.suffix.lower() in _PARQUET:
        return True
    with path.open("rb") as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC


def _is_json(path: Path) -> bool:
    return (Path(path.stem) if path.suffix.lower() in _PACKED else path).suffix.lower() in _JSON


def _wanted_columns(path: Path, source: Source) -> list[str]:
    """The columns of the file that the mapping names. Raises Misconfigured that names key, column and file."""
    names = read_column_names(path, source)
    wanted: dict[str, None] = {}
    by_key = source.columns_by_key()
    for key, column in by_key.items():
        found = column.names_in(names)
        if column.prefix is not None and not found:
            known = suggest(column.prefix, names)
            raise Misconfigured(
                "bad_mapping", f"[{source.section}] {key}: no column of {path.name} is {column.prefix!r} and a number; {known}"
            )
        wanted |= dict.fromkeys(_known(name, key, names, path, source) for name in found)
    conditions = [*source.where, *(condition for column in by_key.values() for condition in column.where)]
    wanted |= dict.fromkeys(_known(condition.column, "where", names, path, source) for condition in conditions)
    return list(wanted)


def _known(name: str, key: str, names: list[str], path: Path, source: Source) -> str:
    if name not in names:
        hint = ' (a constant is written { value = "..." })' if key == "kind" else ""
        if not _is_parquet(path) and not _is_json(path):
            hint = _form_hint(names, source) or hint
        raise Misconfigured("bad_mapping", f"[{source.section}] {key}: {path.name} has no column {name!r}; {suggest(name, names)}{hint}")
    if names.count(name) > 1:
        raise Misconfigured(
            "bad_data_file",
            f"[{source.section}] {key}: {path.name} has {names.count(name)} columns {name!r}, expected one; rename the others",
        )
    return name


def _form_hint(names: list[str], source: Source) -> str:
    """What may be wrong with how the file is read, where a column is not there."""
    if any(mark in name for name in names for mark in "\ufffd\0"):
        return '; are these characters of another `encoding`, like "utf-16", or is it packed without a name that ends in .gz?'
    if names[0].lstrip().startswith("{"):
        return "; lines of JSON are read from a file whose name ends in .jsonl"
    if len(names) == 1:
        return "; the file reads as one column: is its `delimiter` another?"
    if not source.header and any(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names):
        return '; where the first line is data already, name the columns: header = ["user", "item", "time"]'
    return ""


def read_column_names(path: Path, source: Source) -> list[str]:
    """The columns of a file, or the keys of its lines. Of CSV only the first line is read, by the standard library: Arrow's reader leaves a
    thread that reads ahead."""
    try:
        if _is_parquet(path):
            top = pyarrow.parquet.read_schema(path).names
            return [*top, *(name for name in _parquet_fields(path) if name not in top)]
        if _is_json(path):
            return read_keys(path)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if source.quoted else csv.QUOTE_NONE
        head = io.StringIO(_read_head(path, source), newline="")
        first = next(csv.reader(head, delimiter=_delimiter(path, source), quoting=quoting), None)
    except (pa.ArrowException, OSError, EOFError, ValueError, csv.Error) as error:
        raise _unreadable(path, source, error) from error
    if not first:
        raise _unreadable(path, source, ValueError("it is empty" if source.header else "it has no header"))
    header = source.header
    if header and len(first) != len(header):
        expectation = f"header names {len(header)} columns, but the first row of {path.name} has {len(first)}: {', '.join(first)[:200]}"
        raise Misconfigured("bad_mapping", f"[{source.section}] {expectation}")
    return list(header) or first


def _open_csv(path: Path, source: Source) -> pa.NativeFile:
    """The bytes of a CSV file, unpacked, with a delimiter of one byte."""
    stream = pa.input_stream(path, compression="detect")
    return with_short_delimiter(stream, source) if source.is_long else stream


def with_short_delimiter(stream: pa.NativeFile, form: FileFormat) -> pa.NativeFile:
    """The stream with one byte for each delimiter of several, as the parser needs it."""
    assert form.delimiter is not None and form.cell_end is not None
    long, short = form.delimiter.encode(), form.cell_end.encode()
    begun = b""  # possibly the first part of a delimiter that continues in the next piece

    def shorten(piece: pa.Buffer) -> bytes:
        nonlocal begun
        found = (begun + bytes(piece)).replace(long, short)
        parts = (long[:length] for length in range(len(long) - 1, 0, -1))
        begun = next((part for part in parts if found.endswith(part)), b"") if len(piece) else b""
        return found.removesuffix(begun)

    return pa.TransformInputStream(stream, shorten)


def _read_head(path: Path, source: Source) -> str:
    """The first 64 KiB as text, without blank lines before the first one."""
    with _open_csv(path, source) as stream:
        return str(stream.read(_HEADER_BYTES).decode(source.encoding, errors="replace").removeprefix("\ufeff").lstrip("\r\n"))


def _parquet_fields(path: Path) -> dict[str, tuple[list[str], pa.DataType]]:
    """(path, type) of each column and of each field of a struct. `user.id` is the field `id` of `user`, unless a column has that name. A field of a list of
    structs is a list."""
    fields = [([field.name], field.type) for field in pyarrow.parquet.read_schema(path)]
    for way, kind in fields:  # grows while it is read
        listed = is_list(kind)
        struct = kind.value_type if listed else kind
        if pa.types.is_struct(struct):
            fields += [([*way, inner.name], pa.list_(inner.type) if listed else inner.type) for inner in struct]
    found: dict[str, tuple[list[str], pa.DataType]] = {}
    for way, kind in fields:
        found.setdefault(".".join(way), (way, kind))
    return found


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Chunks of at most 65,536 rows or about 8 MiB. Pages are read as they are needed: a row group may be the whole file."""
    fields = _parquet_fields(path)
    with pyarrow.parquet.ParquetFile(path, buffer_size=_READ_AHEAD_BYTES, pre_buffer=False) as file:
        columns = columns or file.schema_arrow.names[:1]
        ways = [fields[name][0] for name in columns]
        row_bytes = file.metadata.row_group(0).total_byte_size // max(1, file.metadata.row_group(0).num_rows) if file.num_row_groups else 0
        rows = min(CHUNK_ROWS, max(256, _BLOCK_BYTES // max(1, row_bytes)))
        leaves = tuple(f"{file.schema.column(n).path}." for n in range(len(file.schema)))  # below a list they have other names
        read = [name if any(leaf.startswith(f"{name}.") for leaf in leaves) else fields[name][0][0] for name in columns]
        for batch in file.iter_batches(rows, columns=read, use_threads=False):
            found = [(batch.column(first), inner) for first, *inner in ways]
            arrays = [functools.reduce(_field, inner, cells) for cells, inner in found]
            yield pa.RecordBatch.from_arrays([array.cast(pa.string()) if _is_bytes(array.type) else array for array in arrays], columns)


def _field(cells: pa.Array, name: str) -> pa.Array:
    """The field of each struct, or of each of a list of structs."""
    if not is_list(cells.type):
        return pc.struct_field(cells, name)
    ends = np.cumsum(list_lengths(cells))
    return pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), pc.struct_field(pc.list_flatten(cells), name))


def _csv_batches(path: Path, source: Source, columns: list[str], skipped: list[int], rejections: Rejections) -> Iterator[pa.RecordBatch]:
    def skip(row: pyarrow.csv.InvalidRow) -> str:
        number = (row.number or 2) - (not source.header)  # Arrow counts the header
        skipped.append(number)
        hint = ': one in "..." has several lines; with quoted = false a " is a character like any other' if "\n" in row.text.strip() else ""
        rejections.add(source.section, path.name, number, f"has {row.actual_columns} cells, expected {row.expected_columns}{hint}")
        return "skip"

    read = pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, encoding=source.encoding, column_names=source.header or None)
    parse = pyarrow.csv.ParseOptions(
        delimiter=_delimiter(path, source),
        quote_char='"' if source.quoted else False,
        newlines_in_values=source.quoted,
        invalid_row_handler=skip,
    )
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        null_values=_MISSING,
    )
    with (
        _open_csv(path, source) as stream,
        pyarrow.csv.open_csv(stream, read, parse, convert) as reader,
    ):
        for batch in reader:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                yield batch.slice(first, CHUNK_ROWS)


def _delimiter(path: Path, source: Source) -> str:
    """What the mapping says, or what sets the cells of the first line apart: the commonest of comma, semicolon, tab and bar."""
    return source.cell_end or max(",;\t|", key=_read_head(path, source).partition("\n")[0].count)
