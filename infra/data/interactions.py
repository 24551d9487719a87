"""Interactions (user, item, time, kind) as columns in order of time: the one form for histories, counts, samples and measures.

Here: the columns. Not here: reading them from files (log.py), sampling from them (sampled_impressions.py).
Memory: the bound of a spool. Columns beyond it are mapped from disk; `blocks` walks through them.

Arrays: X interactions, I items.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa

from infra.data.spool import Spool, SpoolBounds, slices
from schemas.ids import Id

DEFAULT_KIND = "click"
COLUMNS = ("#user", "#item", "#kind", "#time")
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])


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
