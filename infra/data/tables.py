"""The rows of a section that pass its filter, with the columns that the mapping names, and the file and number of each row.

Here: `LoadedRows`, some rows in memory, with their features, ids and times; `ColumnCells`, one column of them; `LoadedTable`, all rows of a section.
These need not fit in memory. Also rows that became no event, or of which a part was left out; and conditions: all of them must hold, and a missing cell
fulfils `!=` and `not in` only.
Not here: reading files (files.py), decoding cells (columns.py).
Memory: the bound of a spool (spool.py), whatever the size of the files.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import (
    Array,
    IdForm,
    decode_bags,
    decode_categories,
    decode_flags,
    decode_ids,
    decode_numbers,
    decode_parts,
    decode_texts,
    decode_times,
    decode_vectors,
    distinct,
    is_list,
    is_moment,
    is_text,
    join_vectors,
    plain,
    spell_numbers,
)
from infra.data.mapping_source import Column, Condition, Source
from infra.data.spool import Spool
from schemas.features import Feature
from schemas.ids import Id, IdKind
from schemas.limits import MIB

_SEEN_CELLS = 1_000  # cells that are examined to distinguish a list of numbers from a bag
_BARS_SHARE = 0.2  # of the cells with a value
ROW, FILE = "#row", "#file"  # our own columns, next to those of the files
SAMPLED_ROWS_MAX, SAMPLED_BYTES_MAX = 1_000_000, 64 * MIB
ID_ROLES = ("id", "user", "item")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_NAMED_REJECTIONS_MAX, KNOWN_REJECTIONS_MAX = 1_000, 1_000_000
Tell = Callable[[str, int, int | None], None]  # section, rows read, rows in all (None: not known)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that became no event, or a part of one that was left out."""

    section: str
    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} row {self.row} [{self.section}]: {self.reason}"


@dataclass
class Rejections:
    """Every rejected row once; the first 1,000 with their reasons. `counts` has their number by "[section] reason", up to the colon of the reason.

    Memory: the first million are remembered, so that each counts once; later ones count each time they are met.
    """

    named: list[RejectedRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)

    def add(self, section: str, file: str, row: int, reason: str) -> None:
        """Notes a row; the same row of the same section is noted once."""
        if (key := (section, file, row)) in self._seen:
            return
        if len(self._seen) < KNOWN_REJECTIONS_MAX:
            self._seen.add(key)
        self.counts[f"[{section}] {reason.partition(':')[0]}"] += 1
        if len(self.named) < _NAMED_REJECTIONS_MAX:
            self.named.append(RejectedRow(section, file, row, reason))

    def __len__(self) -> int:
        return self.counts.total()


@dataclass(frozen=True)
class LoadedRows:
    """Some rows of a section in memory. `table` has the columns of the file and our own."""

    of: "LoadedTable"
    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: np.ndarray) -> "LoadedRows":
        """Some rows, in the given order."""
        return LoadedRows(self.of, self.table.take(pa.array(rows, pa.int64())))

    def arrays(self, column: Column) -> list[pa.ChunkedArray]:
        """The Arrow columns of a column of the mapping, with the cells and the parts of them that it asks for. A constant is repeated."""
        if column.value is not None:
            return [pa.chunked_array([pa.repeat(column.value, len(self))])]
        found = [self.table.column(name) for name in column.names_in(self.table.column_names)]
        if column.where:
            kept = pa.array(rows_where(column.where, self.table))
            found = [pc.if_else(kept, plain(array), None) for array in found]
        if column.pattern is not None:
            found = [decode_parts(array, column.pattern) for array in found]
        if column.decimal is not None:
            found = [spell_numbers(array, column.decimal) for array in found]
        return [array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array]) for array in found]

    def features(self, features: Iterable[Feature]) -> list[dict[str, Any]]:
        """Of each row the raw values of those features that the section has, as events carry them. A missing or unreadable cell leaves the feature out."""
        columns = self.of.source.feature_columns()
        found = {feature.name: self.feature(feature) for feature in features if feature.name in columns}
        if not found:
            return [{} for _ in range(len(self))]
        return [
            {name: value for name, value in zip(found, cells, strict=True) if value is not None}
            for cells in zip(*found.values(), strict=True)
        ]

    def feature(self, feature: Feature) -> Sequence[Any]:
        """The raw values of one feature of the section, None if absent."""
        return feature.kind.decode(self.cells(self.of.source.feature_columns()[feature.name], feature.name), feature)

    def cells(self, column: Column, name: str = "") -> "ColumnCells":
        """The cells of a column, `name` of its feature."""
        return ColumnCells(self, column, name)

    def array(self, role: str) -> pa.ChunkedArray:
        """The one Arrow column of a role."""
        return self.arrays(self.of.source.roles[role])[0]

    def has(self, role: str) -> bool:
        """Whether the mapping names a column for this role."""
        return self.of.has(role)

    def numbers(self, name: str) -> np.ndarray:
        """A column of ours."""
        return np.asarray(self.table.column(name).to_numpy())

    def reject(self, row: int, reason: str) -> None:
        """Notes row `row` of these as rejected."""
        file, number = self.table.column(FILE)[row].as_py(), self.table.column(ROW)[row].as_py()
        self.of.rejections.add(self.of.source.section, self.of.files[file], number, reason)

    def reject_cells(self, chosen_R: np.ndarray, role: str, expected: str) -> None:
        """Notes the chosen rows, bool [R], as rejected because the cell of a role cannot be read; names the column and the value."""
        if not chosen_R.any():
            return
        column, cells = self.of.source.roles[role], self.array(role)
        for row in np.flatnonzero(chosen_R).tolist():
            if column.value is not None:
                self.reject(row, f"{role} = {column.value!r} is no usable {expected}")
                continue
            cell = cells[row].as_py()
            holds = "is empty" if cell is None or cell == "" else f"is {str(cell)[:60]!r}"
            holds += f"... of {len(str(cell))} characters" if len(str(cell)) > 60 else ""
            self.reject(row, f"no usable {expected}: column {column.columns[0]!r} {holds}")


class ColumnCells:
    """The cells of one column in some rows, as kinds of features read them (`Cells` in schemas/kinds.py)."""

    def __init__(self, rows: LoadedRows, column: Column, name: str) -> None:
        self._rows, self._column, self._name = rows, column, name
        self.arrays = rows.arrays(column)

    @property
    def _is_split(self) -> bool:
        """Whether one value stands in several columns."""
        return len(self.arrays) > 1 or self._column.prefix is not None

    @cached_property
    def _first_cells(self) -> pa.Array:
        return plain(pc.drop_null(self.arrays[0].slice(0, _SEEN_CELLS)))

    @cached_property
    def is_vector(self) -> bool:
        if self._is_split or not self.is_listed:
            return self._is_split
        vectors = decode_vectors(self._first_cells)
        widths = {len(v) if v is not None else 0 for v in vectors}
        return len(widths) == 1 and 0 not in widths and any(not x.is_integer() for v in vectors if v is not None for x in v)

    @cached_property
    def is_listed(self) -> bool:
        if self._is_split:
            return False
        cells = self._first_cells
        if is_list(cells.type) or not is_text(cells) or not len(cells):
            return is_list(cells.type)
        return all(text.lstrip().startswith("[") for text in cells.to_pylist()) or _have_bars(cells.to_pylist())

    @property
    def is_number(self) -> bool:
        if not is_text(self._first_cells):
            return not pa.types.is_boolean(self._first_cells.type)
        numbers = decode_numbers(pc.drop_null(self.arrays[0]))
        return len(numbers) > 0 and not np.isnan(numbers).any()

    def first(self) -> object:
        cells = pc.drop_null(self.arrays[0])
        return cells[0].as_py() if len(cells) else None

    def different(self) -> int:
        cells = self.arrays[0] if is_list(self.arrays[0].type) else self.arrays[0].unique()  # Arrow finds no different ones among lists
        return len(set(decode_categories(cells, self._column.separator)))

    def numbers(self) -> np.ndarray:
        return decode_numbers(self.arrays[0])

    def categories(self) -> Sequence[Any]:
        return decode_categories(self.arrays[0], self._column.separator)

    def bags(self) -> Sequence[Any]:
        return decode_bags(self.arrays[0], self._column.separator)

    def vectors(self, width: int) -> list[list[float] | None]:
        """A cell that is no vector, or one of another width, is noted as rejected; an empty cell is left out."""
        split, separator = self._is_split, self._column.separator
        vectors = join_vectors(self.arrays) if split else decode_vectors(self.arrays[0], separator)
        empty = self.arrays[0].is_null().to_pylist()
        for row, vector in enumerate(vectors):
            if vector is not None and len(vector) == width:
                continue
            if not empty[row]:
                got = "no vector of finite numbers" if vector is None else f"{len(vector)} numbers"
                self._rows.reject(row, f"{self._name} has {got}, expected {width}")
            vectors[row] = None
        return vectors

    def width(self) -> int:
        """The number of columns, or the numbers of the first cell that is a vector."""
        if len(self.arrays) > 1:
            return len(self.arrays)
        parts = (chunk.slice(first, _SEEN_CELLS) for chunk in self.arrays[0].chunks for first in range(0, len(chunk), _SEEN_CELLS))
        vectors = (vector for part in parts for vector in decode_vectors(part, self._column.separator))
        found = next((vector for vector in vectors if vector is not None), None)
        if found is None:
            raise ValueError("a vector: a list, or numbers set apart by spaces, commas or semicolons")
        return len(found)


def _have_bars(texts: Sequence[str]) -> bool:
    """Whether cells are values with bars between, like "Comedy|Drama": the same values come in several combinations."""
    cells = [text.split("|") for text in texts]
    several = sum(len(parts) > 1 for parts in cells)
    return several >= _BARS_SHARE * len(cells) and len({part for parts in cells for part in parts}) < len(set(texts))


@dataclass(frozen=True)
class LoadedTable:
    """All rows of a section that count. `id_forms` says of each column of ids what all of its cells have in common."""

    source: Source
    spool: Spool
    files: tuple[str, ...]
    rejections: Rejections
    id_forms: Mapping[str, IdForm]

    def __len__(self) -> int:
        return len(self.spool)

    def has(self, role: str) -> bool:
        """Whether the mapping names a column for this role."""
        return role in self.source.roles

    def rows(self, table: pa.Table) -> LoadedRows:
        """Rows of this section, as they came out of a spool."""
        return LoadedRows(self, table)

    def blocks(self) -> Iterator[LoadedRows]:
        """All rows in file order, some at a time."""
        return (self.rows(block) for _, block in self.spool.blocks())

    @cached_property
    def sample(self) -> LoadedRows:
        """All rows, or every n-th of more than a million or of more than 64 MiB: what kinds, buckets and scales are taken from."""
        step = max(1, -(-len(self) // SAMPLED_ROWS_MAX), -(-self.spool.bytes // SAMPLED_BYTES_MAX))
        parts = [block.take(pa.array(np.arange(-start % step, len(block), step))) for start, block in self.spool.blocks()]
        return self.rows(pa.concat_tables([self.spool.schema.empty_table(), *parts]))


class IdPlaces:
    """Ids by the place at which they were first met, `known` before all others."""

    def __init__(self, kind: IdKind, known: Sequence[Id] = ()) -> None:
        self._kind = kind
        self.places: dict[Id, int] = {item: place for place, item in enumerate(known)}

    def encode(self, rows: LoadedRows, role: str) -> np.ndarray:
        """The place of the id in the cell of a role in each row, int64, -1 if absent."""
        cells, places = distinct(rows.array(role))
        ids = decode_ids(cells, self._kind, rows.of.id_forms[role].fractions)
        return np.array([-1 if i is None else self.places.setdefault(i, len(self.places)) for i in ids], np.int64)[places]

    @property
    def ids(self) -> list[Id]:
        """The ids by place."""
        return list(self.places)


def read_times(rows: LoadedRows, role: str, first: int = 0) -> np.ndarray:
    """Times of a role in ms, [rows]; the row number where the mapping names no column. `first` = rows of the section before these."""
    if not rows.has(role):
        return np.arange(first + 1, first + len(rows) + 1)
    column = rows.of.source.roles[role]
    return decode_times(rows.array(role), column.time_unit, column.time_formats)


def rows_where(conditions: Sequence[Condition], batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Which rows of the batch or table fulfil all conditions, [R] bool."""
    kept = np.ones(batch.num_rows, bool)
    for condition in conditions:
        kept &= _fulfilled(condition, batch.column(condition.column))
    return kept


def _fulfilled(condition: Condition, column: Array) -> np.ndarray:
    if condition.op in ("in", "not in"):
        found = np.zeros(len(column), bool)
        for value in condition.value:
            found |= _compared(column, "==", value)
        return found if condition.op == "in" else ~found
    return _compared(column, condition.op, condition.value)


def _compared(column: Array, op: str, value: Any) -> np.ndarray:
    """One comparison, by the type of the value: flags, numbers, times (where the column is one), texts."""
    compare = _COMPARE[op]
    if isinstance(value, bool):
        flags, known = decode_flags(column)
        return np.where(known, compare(flags, value), op == "!=")
    if isinstance(value, int | float):
        numbers = decode_numbers(column)
        return np.where(np.isnan(numbers), op == "!=", compare(numbers, value))
    if is_moment(column):
        times = decode_times(column)
        return np.where(times < 0, op == "!=", compare(times, decode_times(pa.array([value]))[0]))
    texts = decode_texts(column)
    return np.fromiter((op == "!=" if text is None else compare(text, value) for text in texts), bool, len(texts))
