"""Interactions (user, item, time, kind) as columns in order of time: the one form for histories, counts, samples and measures.

Here: the columns, and reading them from the rows of a section: ids to places, times, kinds, order. Not here: sampling from them (sampled_impressions.py).
Rows of equal time keep the order of the file. Where a source has no times, the row number stands for it (in milliseconds).
Memory: ids of users and items with their places (about 200 bytes each), and the bound of a spool. Columns beyond it are mapped from disk; `blocks` walks
through them.

Arrays: X interactions, R rows, I items.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa

from infra.data.columns import decode_texts, distinct
from infra.data.mapping import kind_name
from infra.data.spool import Spool, SpoolBounds, slices, sort_rows
from infra.data.tables import IdPlaces, LoadedRows, LoadedTable, read_times
from schemas.errors import Misconfigured
from schemas.ids import Id, IdKind

DEFAULT_KIND = "click"
COLUMNS = ("#user", "#item", "#kind", "#time")
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])
Choose = Callable[[LoadedRows], np.ndarray]  # which of some rows count, [R] bool


@dataclass(frozen=True)
class Interactions:
    """`user_X` and `item_X` are places in `user_ids` and `item_ids`; `kind_X` in `kinds`; `rows` what else the file says of each."""

    user_ids: Sequence[Id]
    item_ids: Sequence[Id]
    kinds: tuple[str, ...]
    user_X: np.ndarray
    item_X: np.ndarray
    kind_X: np.ndarray
    time_X: np.ndarray
    rows: Spool | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, user_ids: Sequence[Id], item_ids: Sequence[Id], kinds: tuple[str, ...], rows: Spool) -> Self:
        """The rows of a finished spool that has the four columns."""
        return cls(user_ids, item_ids, kinds, *(rows.column(name) for name in COLUMNS), rows=rows)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The four columns, as `COLUMNS` names them."""
        return self.user_X, self.item_X, self.kind_X, self.time_X

    def __len__(self) -> int:
        return len(self.time_X)

    def before(self, time_ms: int) -> int:
        """How many are strictly before a time: rows of one basket are never each other's history."""
        return bisect_left(self.time_X, time_ms)

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator["Interactions"]:
        """Those from place `first` to before `last`, some at a time."""
        return (self.take(part) for part in slices(len(self) if last is None else last, first))

    def counts(self, owners: int, start_ms: int, end_ms: int, owner: str = "item_X") -> np.ndarray:
        """How many there are of each of the first items, or users with `owner` "user_X", in [start, end): [owners] int64."""
        found = np.zeros(owners, np.int64)
        for block in self.blocks(self.before(start_ms), self.before(end_ms)):
            owner_X = getattr(block, owner)
            found += np.bincount(owner_X[owner_X < owners], minlength=owners)
        return found

    def take(self, chosen: np.ndarray | slice) -> "Interactions":
        """Some of them, by a mask, by places or by a slice."""
        return Interactions(self.user_ids, self.item_ids, self.kinds, *(column[chosen] for column in self.columns))

    def of_kinds(self, codes: Sequence[int], bounds: SpoolBounds) -> "Interactions":
        """Those of some kinds."""
        chosen = (block.take(np.isin(block.kind_X, codes)) for block in self.blocks())
        rows = Spool.of((pa.table(list(block.columns), schema=SCHEMA) for block in chosen), SCHEMA, bounds)
        return Interactions.of(self.user_ids, self.item_ids, self.kinds, rows)


@dataclass(frozen=True)
class Log:
    """The log in columns, for plain scores. `positives` are the right answers. `shown` has the click as the first bit of a kind; None without a log of
    impressions. `item_ids`: the catalogue's, by place. Rows after the evaluation are there where they are kept."""

    item_ids: Sequence[Id]
    now_ms: int
    positives: Interactions
    history: Interactions
    shown: Interactions | None


def hold_out_latest(log: Interactions, share: float, end_ms: int, bounds: SpoolBounds) -> Interactions:
    """The log with that share of each user's rows, the latest ones, at the time `end_ms` after all others. Others from then on are left out."""
    by_user = np.argsort(log.user_X, kind="stable")
    count_U = np.bincount(log.user_X)
    place_X = np.empty(len(log), np.int64)
    place_X[by_user] = np.arange(len(log)) - np.repeat(np.cumsum(count_U) - count_U, count_U)
    held_X = place_X >= count_U[log.user_X] - np.floor(count_U * share).astype(np.int64)[log.user_X]
    kept_X = ~held_X & (log.time_X < end_ms)
    assert log.rows is not None
    rows = Spool.of(_split_rows(log.rows, kept_X, held_X, end_ms), log.rows.schema, bounds)
    return Interactions.of(log.user_ids, log.item_ids, log.kinds, rows)


def _split_rows(rows: Spool, kept_X: np.ndarray, held_X: np.ndarray, later_ms: int) -> Iterator[pa.Table]:
    """The rows that are kept, then those that are held out, at a later time."""
    for wanted_X in (kept_X, held_X):
        for first, table in rows.blocks():
            wanted = table.filter(pa.array(wanted_X[first : first + len(table)]))
            later = pa.array(np.full(len(wanted), later_ms))
            yield wanted.set_column(COLUMNS.index("#time"), SCHEMA.field("#time"), later) if wanted_X is held_X else wanted


# --- reading ---


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
