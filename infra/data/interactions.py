"""Interactions (user, item, time, kind) as columns in order of time: the one form for histories, counts, samples and measures.

Here: the columns. Not here: reading them from files (log.py), sampling from them (sampled_impressions.py).
Memory: the bound of a spool. Columns beyond it are mapped from disk; `blocks` walks through them.

Arrays: X interactions, I items.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.data.spool import BLOCK_ROWS, Spool, SpoolBounds
from schemas.ids import Id
from schemas.limits import NAME_CHARS_MAX

DEFAULT_KIND = "click"
COLUMNS = ("#user", "#item", "#kind", "#time")


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
    rows: Spool | None = None

    def __len__(self) -> int:
        return len(self.time_X)

    def before(self, time_ms: int) -> int:
        """How many are strictly before a time: rows of one basket are never each other's history."""
        return bisect_left(self.time_X, time_ms)

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator["Interactions"]:
        """Those from place `first` to before `last`, some at a time."""
        last = len(self) if last is None else last
        for start in range(first, last, BLOCK_ROWS):
            part = slice(start, min(last, start + BLOCK_ROWS))
            yield self.take(part)

    def counts(self, owners: int, start_ms: int, end_ms: int, owner: str = "item_X") -> np.ndarray:
        """How many there are of each of the first items, or users with `owner` "user_X", in [start, end): [owners] int64."""
        found = np.zeros(owners, np.int64)
        for block in self.blocks(self.before(start_ms), self.before(end_ms)):
            owner_X = getattr(block, owner)
            found += np.bincount(owner_X[owner_X < owners], minlength=owners)
        return found

    def take(self, chosen: np.ndarray | slice) -> "Interactions":
        """Some of them, by a mask, by places or by a slice."""
        columns = (self.user_X[chosen], self.item_X[chosen], self.kind_X[chosen], self.time_X[chosen])
        return Interactions(self.user_ids, self.item_ids, self.kinds, *columns)

    def of_kinds(self, codes: Sequence[int], bounds: SpoolBounds) -> "Interactions":
        """Those of some kinds."""
        spool = Spool(pa.schema([(name, pa.int64()) for name in COLUMNS]), bounds)
        for block in self.blocks():
            chosen = block.take(np.isin(block.kind_X, codes))
            columns = [pa.array(column) for column in (chosen.user_X, chosen.item_X, chosen.kind_X, chosen.time_X)]
            spool.append(pa.RecordBatch.from_arrays(columns, schema=spool.schema))
        spool.finish()
        user_X, item_X, kind_X, time_X = (spool.column(name) for name in COLUMNS)
        return Interactions(self.user_ids, self.item_ids, self.kinds, user_X, item_X, kind_X, time_X)


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
    spool, later = Spool(log.rows.schema, bounds), pa.array([end_ms], pa.int64())
    for is_held, wanted_X in ((False, kept_X), (True, held_X)):
        for first, table in log.rows.blocks():
            kept = table.filter(pa.array(wanted_X[first : first + len(table)]))
            if is_held:
                kept = kept.set_column(kept.schema.get_field_index("#time"), "#time", later.take(pa.array(np.zeros(len(kept), np.int64))))
            for batch in kept.combine_chunks().to_batches():
                spool.append(batch)
    spool.finish()
    user_X, item_X, kind_X, time_X = (spool.column(name) for name in COLUMNS)
    return Interactions(log.user_ids, log.item_ids, log.kinds, user_X, item_X, kind_X, time_X, rows=spool)


def kind_name(text: str | None) -> str:
    """A kind of behaviour as events spell it: "add to cart" becomes add_to_cart."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", (text or "other").strip())[:NAME_CHARS_MAX]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:NAME_CHARS_MAX]
