"""Interactions (user, item, time, kind) as columns in order of time: the one form for histories, counts, samples and measures.

Here: ids to places, times, kinds, order. Not here: what is sampled or measured from them (sampled_impressions.py).
Rows of equal time keep the order of the file. Where a source has no times, the row number stands for it (in milliseconds).
Memory: ids of users and items with their places (about 200 bytes each), and the bound of a spool; columns beyond it are on disk, have
slices only, and are read by `blocks`.

Arrays: X interactions.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.data.columns import Array, IdForm, decode_ids, decode_texts, decode_times, distinct
from infra.data.sorted_rows import sort_rows
from infra.data.spool import BLOCK_ROWS, RowColumn, Spool, SpoolBounds
from infra.data.tables import LoadedRows, LoadedTable
from schemas.errors import Misconfigured
from schemas.ids import Id, IdKind
from schemas.limits import NAME_CHARS_MAX

DEFAULT_KIND = "click"
_COLUMNS = ("#user", "#item", "#kind", "#time")
Choose = Callable[[LoadedRows], np.ndarray]  # which of some rows count, [R] bool


@dataclass(frozen=True)
class Interactions:
    """`user_X` and `item_X` are places in `user_ids` and `item_ids`; `kind_X` in `kinds`; `rows` what else the file says of each."""

    user_ids: Sequence[Id]
    item_ids: Sequence[Id]
    kinds: tuple[str, ...]
    user_X: RowColumn
    item_X: RowColumn
    kind_X: RowColumn
    time_X: RowColumn
    rows: Spool | None = None

    def __len__(self) -> int:
        return len(self.time_X)

    def before(self, time_ms: int) -> int:
        """How many are strictly before a time: rows of one basket are never each other's history."""
        return bisect_left(self.time_X, time_ms)

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator["HeldInteractions"]:
        """Those from place `first` to before `last`, some at a time, with columns in memory."""
        last = len(self) if last is None else last
        for start in range(first, last, BLOCK_ROWS):
            part = slice(start, min(last, start + BLOCK_ROWS))
            columns = (self.user_X[part], self.item_X[part], self.kind_X[part], self.time_X[part])
            yield HeldInteractions(self.user_ids, self.item_ids, self.kinds, *columns)

    def counts(self, items: int, start_ms: int, end_ms: int) -> np.ndarray:
        """How many there are of each of the first `items` items in [start, end), [I] int64."""
        count_I = np.zeros(items, np.int64)
        for block in self.blocks(self.before(start_ms), self.before(end_ms)):
            count_I += np.bincount(block.item_X[block.item_X < items], minlength=items)
        return count_I

    def take(self, chosen: np.ndarray) -> "HeldInteractions":
        """Some of them, by a mask or by places; of columns in memory."""
        user_X, item_X, kind_X, time_X = (np.asarray(column)[chosen] for column in (self.user_X, self.item_X, self.kind_X, self.time_X))
        return HeldInteractions(self.user_ids, self.item_ids, self.kinds, user_X, item_X, kind_X, time_X)

    def of_kinds(self, codes: Sequence[int], bounds: SpoolBounds) -> "Interactions":
        """Those of some kinds."""
        spool = Spool(pa.schema([(name, pa.int64()) for name in _COLUMNS]), bounds)
        for block in self.blocks():
            chosen = block.take(np.isin(block.kind_X, codes))
            columns = [pa.array(column) for column in (chosen.user_X, chosen.item_X, chosen.kind_X, chosen.time_X)]
            spool.append(pa.RecordBatch.from_arrays(columns, schema=spool.schema))
        user_X, item_X, kind_X, time_X = (spool.finish().column(name) for name in _COLUMNS)
        return Interactions(self.user_ids, self.item_ids, self.kinds, user_X, item_X, kind_X, time_X)


@dataclass(frozen=True)
class HeldInteractions(Interactions):
    """The same with columns in memory."""

    user_X: np.ndarray
    item_X: np.ndarray
    kind_X: np.ndarray
    time_X: np.ndarray


@dataclass(frozen=True)
class Log:
    """What happened before the evaluation and, where it is kept, after it, in columns: what plain scores are made of. `positives` are what is measured; `shown`
    has the click as the first bit of a kind, None without a log of impressions. `item_ids`: the catalogue's, by place."""

    item_ids: Sequence[Id]
    now_ms: int
    positives: Interactions
    history: Interactions
    shown: Interactions | None


class IdPlaces:
    """Ids by the place at which they were first met, `known` before all others."""

    def __init__(self, kind: IdKind, known: Sequence[Id] = ()) -> None:
        self._kind = kind
        self.places: dict[Id, int] = {item: place for place, item in enumerate(known)}

    def encode(self, array: Array, form: IdForm | None = None) -> np.ndarray:
        """The place of the id in each cell, int64, -1 if absent. `form` = of the whole column, where this is a part of it."""
        cells, places = distinct(array)
        ids = decode_ids(cells, self._kind, form.fractions if form is not None else None)
        return np.array([-1 if i is None else self.places.setdefault(i, len(self.places)) for i in ids], np.int64)[places]

    @property
    def ids(self) -> list[Id]:
        """The ids by place."""
        return list(self.places)


class _Kinds:
    """Kinds of behaviour, by number of rows, then by name: their order does not depend on the file's."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._count: list[int] = []

    def encode(self, rows: LoadedRows) -> np.ndarray:
        """Passing codes of some rows."""
        if not rows.has("kind"):
            return np.zeros(len(rows), np.int64)
        cells, places = distinct(rows.array("kind"))
        names = map(kind_name, decode_texts(cells))
        code_R = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int64)[places]
        self._count += [0] * (len(self._codes) - len(self._count))
        for code, count in enumerate(np.bincount(code_R).tolist()):
            self._count[code] += count
        return code_R

    def ordered(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """(the code of each passing code, the names by code)."""
        met = sorted((-count, name) for name, count in zip(self._codes, self._count, strict=True) if count)
        names = tuple(name for _, name in met) or (DEFAULT_KIND,)
        codes = [names.index(name) if name in names else 0 for name in self._codes] or [0]
        return np.array(codes, np.int64), names


def read_interactions(
    table: LoadedTable, kind: IdKind, items: Sequence[Id], bounds: SpoolBounds, columns: Sequence[str] = (), choose: Choose | None = None
) -> Interactions:
    """The interactions of a table with the roles user and item, and where there are such time and kind. Places of `items` come first in
    `item_ids`. A row without user, item or time is rejected. `columns` = what else is kept of each row; `choose` = which rows count."""
    users, found, kinds = IdPlaces(kind), IdPlaces(kind, items), _Kinds()
    schema = pa.schema([*((name, pa.int64()) for name in _COLUMNS), *(table.spool.schema.field(name) for name in columns)])
    batches = _usable_batches(table, schema, (users, found, kinds), choose)
    spool = Spool(schema, bounds)
    distinct = table.source.distinct
    in_order = sort_rows(batches, schema, ["#time", "#user", "#item", "#kind"] if distinct else ["#time"], bounds)
    for rows in _without_repeats(in_order) if distinct else in_order:
        codes, _ = kinds.ordered()
        kind_R = pa.array(codes[rows.column("#kind").to_numpy()])
        for batch in rows.set_column(2, schema.field("#kind"), kind_R).to_batches():
            spool.append(batch)
    spool.finish()
    if len(table) and not len(spool) and choose is None:
        _complain(table)
    user_X, item_X, kind_X, time_X = (spool.column(name) for name in _COLUMNS)
    return Interactions(users.ids, found.ids, kinds.ordered()[1], user_X, item_X, kind_X, time_X, rows=spool)


def _complain(table: LoadedTable) -> None:
    """Every row was rejected: a column is named wrongly, or reads in another way."""
    section = table.source.section
    named = [r for r in table.rejections.named if r.section == section]
    what, _ = Counter(r.reason.partition(":")[0] for r in named).most_common(1)[0] if named else ("", 0)
    told = next((f"; row {r.row} of {r.file}: {r.reason}" for r in named if r.reason.startswith(what)), "")
    hint = ""
    if what == "no usable time":
        forms = table.source.roles["time"].time_formats
        hint = (
            f"; time_format {list(forms)} does not fit" if forms else "; a time that is not ISO text is { column = ..., time_format = ... }"
        )
        hint += ", as docs/IMPORT.md shows"
    raise Misconfigured("bad_mapping", f"[{section}] none of its {len(table):,} rows can be used{told}{hint}")


def _usable_batches(
    table: LoadedTable, schema: pa.Schema, encoders: tuple[IdPlaces, IdPlaces, _Kinds], choose: Choose | None
) -> Iterator[pa.RecordBatch]:
    """The rows that have all they need, in file order."""
    users, items, kinds = encoders
    first = 0
    for rows in table.blocks():
        time_R = read_times(rows, "time", first)
        first += len(rows)
        if choose is not None:
            chosen = np.flatnonzero(choose(rows))
            rows, time_R = rows.take(chosen), time_R[chosen]
        user_R = users.encode(rows.array("user"), table.id_forms["user"])
        item_R = items.encode(rows.array("item"), table.id_forms["item"])
        for role, column in (("item", item_R), ("user", user_R), ("time", time_R)):
            rows.reject_cells(column < 0, role, role)
        kind_R = kinds.encode(rows)
        usable = pa.array((user_R >= 0) & (item_R >= 0) & (time_R >= 0))
        others = [rows.table.column(name) for name in schema.names[len(_COLUMNS) :]]
        made = pa.table([pa.array(c, pa.int64()) for c in (user_R, item_R, kind_R, time_R)] + others, schema=schema)
        yield from made.filter(usable).combine_chunks().to_batches()


def _without_repeats(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Of rows that are equal in user, item, time and kind, which lie together, the first."""
    last = np.full((len(_COLUMNS), 1), -1)
    for table in tables:
        columns = np.stack([table.column(name).to_numpy() for name in _COLUMNS])
        changes = (np.diff(columns, axis=1, prepend=last) != 0).any(axis=0)
        last = columns[:, -1:] if len(table) else last
        yield table.filter(pa.array(changes))


def read_times(rows: LoadedRows, role: str, first: int = 0) -> np.ndarray:
    """Times of a role in ms, [rows]; the row number where the mapping names no column. `first` = rows of the section before these."""
    if not rows.has(role):
        return np.arange(first + 1, first + len(rows) + 1)
    column = rows.source.roles[role]
    return decode_times(rows.array(role), column.time_unit, column.time_formats)


def kind_name(text: str | None) -> str:
    """A kind of behaviour as events spell it: "add to cart" becomes add_to_cart."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", (text or "other").strip())[:NAME_CHARS_MAX]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:NAME_CHARS_MAX]


def times_of_constant(value: object) -> int:
    """A time as a mapping writes it, in ms; -1 if it is none."""
    return int(decode_times(pa.array([value]))[0])
