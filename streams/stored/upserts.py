"""Upserts of items as columns: many at once, from the record to the fold, without a Python object for each.

Here: `Upserts`, a run of upserts that is also a sequence of `FeaturesUpdate`s. Not here: where they come from (plain_records.py), what they do to an item
(folded_upserts.py).

Arrays: U upserts, T bytes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from infra.joined import Joined, join_runs, join_stored
from streams.core.item_state import FeaturesUpdate


class UpsertColumns(NamedTuple):
    """U upserts: their index keys, orders_U3 int64 (event version, offset, index in the record), and their canonical features."""

    keys: Joined
    orders_U3: np.ndarray
    raw: Joined


class Upserts(Sequence[FeaturesUpdate]):
    """The upserts from `begin` to before `end` of some columns. Several runs may share the columns, as the records of one pass do."""

    __slots__ = ("_columns", "begin", "end")

    def __init__(self, columns: UpsertColumns, begin: int, end: int) -> None:
        self._columns, self.begin, self.end = columns, begin, end

    @classmethod
    def of(cls, updates: Sequence[FeaturesUpdate]) -> "Upserts":
        """A run of upserts that lie apart, copied into columns."""
        orders_U3 = np.array([(update.version, update.offset, update.index) for update in updates], np.int64).reshape(-1, 3)
        keys, raw = join_stored([update.key for update in updates]), join_stored([update.raw for update in updates])
        return cls(UpsertColumns(keys, orders_U3, raw), 0, len(updates))

    @classmethod
    def join(cls, parts: "Sequence[Upserts]") -> "Upserts":
        """One run of several, in their order. Runs that follow each other in the same columns are not copied."""
        runs: list[Upserts] = []
        for part in parts:
            if runs and runs[-1]._columns is part._columns and runs[-1].end == part.begin:
                runs[-1] = Upserts(part._columns, runs[-1].begin, part.end)
            else:
                runs.append(part)
        if len(runs) < 2:
            return runs[0] if runs else cls.of([])
        keys, orders_U3, raw = zip(*(run.columns() for run in runs), strict=True)
        return cls(UpsertColumns(join_runs(keys), np.concatenate(orders_U3), join_runs(raw)), 0, sum(map(len, runs)))

    def columns(self) -> UpsertColumns:
        """The columns of these upserts alone, in the same buffers."""
        keys, orders_U3, raw = self._columns
        return UpsertColumns(keys.cut(self.begin, self.end), orders_U3[self.begin : self.end], raw.cut(self.begin, self.end))

    def take(self, places: Sequence[int]) -> "Upserts":
        """The upserts at some places of the run, in that order."""
        keys, orders_U3, raw = self.columns()
        at = np.array(places, np.int64)
        return Upserts(UpsertColumns(keys.take(at), orders_U3[at], raw.take(at)), 0, len(places))

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, place: Any) -> Any:
        """One upsert; there are no slices."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        keys, orders_U3, raw = self._columns
        at = self.begin + place
        version, offset, index = orders_U3[at].tolist()
        key, text = keys.cut(at, at + 1).present()[0], raw.cut(at, at + 1).present()[0]
        return FeaturesUpdate(key, version, offset, index, False, text)
