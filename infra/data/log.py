"""Reads who did what when from the rows of a section: ids to places, times, kinds, order.

Rows of equal time keep the order of the file. Where a source has no times, the row number stands for it (in milliseconds).
Memory: ids of users and items with their places (about 200 bytes each), and the bound of a spool.

Arrays: R rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from infra.data.columns import decode_texts, distinct
from infra.data.interactions import COLUMNS, DEFAULT_KIND, SCHEMA, Interactions
from infra.data.mapping import kind_name
from infra.data.spool import Spool, SpoolBounds, sort_rows
from infra.data.tables import IdPlaces, LoadedRows, LoadedTable, read_times
from schemas.errors import Misconfigured
from schemas.ids import Id, IdKind

Choose = Callable[[LoadedRows], np.ndarray]  # which of some rows count, [R] bool


class _Kinds:
    """Kinds of behaviour, by number of rows, then by name: their order does not depend on the file's."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._count = Counter[int]()

    def encode(self, rows: LoadedRows) -> np.ndarray:
        """Passing codes of some rows."""
        if not rows.has("kind"):
            return np.zeros(len(rows), np.int64)
        cells, places = distinct(rows.array("kind"))
        names = map(kind_name, decode_texts(cells))
        code_R = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int64)[places]
        self._count.update(dict(enumerate(np.bincount(code_R).tolist())))
        return code_R

    def ordered(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """(the code of each passing code, the names by code)."""
        met = sorted((-self._count[code], name) for name, code in self._codes.items() if self._count[code])
        names = tuple(name for _, name in met) or (DEFAULT_KIND,)
        codes = [names.index(name) if name in names else 0 for name in self._codes] or [0]
        return np.array(codes, np.int64), names


def read_interactions(
    table: LoadedTable, kind: IdKind, items: Sequence[Id], bounds: SpoolBounds, columns: Sequence[str] = (), choose: Choose | None = None
) -> Interactions:
    """The interactions of a table with the roles user and item, and where there are such time and kind. Places of `items` come first in
    `item_ids`. A row without user, item or time is rejected. `columns` = what else is kept of each row; `choose` = which rows count."""
    users, found, kinds = IdPlaces(kind), IdPlaces(kind, items), _Kinds()
    schema = pa.schema([*SCHEMA, *(table.spool.schema.field(name) for name in columns)])
    keys = ["#time", "#user", "#item", "#kind"] if table.source.distinct else ["#time"]
    in_order = sort_rows(_usable_batches(table, schema, (users, found, kinds), choose), schema, keys, bounds)
    spool = Spool.of(_with_last_codes(_without_repeats(in_order) if table.source.distinct else in_order, kinds), schema, bounds)
    if len(table) and not len(spool) and choose is None:
        _complain(table)
    return Interactions.of(users.ids, found.ids, kinds.ordered()[1], spool)


def _with_last_codes(tables: Iterable[pa.Table], kinds: _Kinds) -> Iterator[pa.Table]:
    """Sorted rows, so all are read, with the codes of kinds as `ordered` gives them."""
    for rows in tables:
        code_R = kinds.ordered()[0][rows.column("#kind").to_numpy()]
        yield rows.set_column(COLUMNS.index("#kind"), SCHEMA.field("#kind"), pa.array(code_R))


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
        user_R = users.encode(rows, "user")
        item_R = items.encode(rows, "item")
        for role, column in (("item", item_R), ("user", user_R), ("time", time_R)):
            rows.reject_cells(column < 0, role, role)
        kind_R = kinds.encode(rows)
        usable = pa.array((user_R >= 0) & (item_R >= 0) & (time_R >= 0))
        others = [rows.table.column(name) for name in schema.names[len(COLUMNS) :]]
        made = pa.table([pa.array(c, pa.int64()) for c in (user_R, item_R, kind_R, time_R)] + others, schema=schema)
        yield from made.filter(usable).combine_chunks().to_batches()


def _without_repeats(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Of rows that are equal in user, item, time and kind, which lie together, the first."""
    last = np.full((len(COLUMNS), 1), -1)
    for table in tables:
        columns = np.stack([table.column(name).to_numpy() for name in COLUMNS])
        changes = (np.diff(columns, axis=1, prepend=last) != 0).any(axis=0)
        last = columns[:, -1:] if len(table) else last
        yield table.filter(pa.array(changes))
