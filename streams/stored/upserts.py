"""Upserts of items as columns, many at once, from the record to the fold without a Python object for each.

Here: `Upserts`, a run of them that reads as `FeaturesUpdate`s one by one. Not here: where they come from (plain_records.py), what they do to an item
(folded_upserts.py).

Arrays: U upserts, T bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from streams.core.item_state import FeaturesUpdate
from streams.stored.item_block import Joined, join_stored


class UpsertColumns(NamedTuple):
    """keys of the index; orders_U3 int64: event version, offset, index; raw: canonical features."""

    keys: Sequence[bytes]
    orders_U3: np.ndarray
    raw: Joined


class Upserts(Sequence[FeaturesUpdate]):
    """Those from `begin` to `end` of columns that several records share."""

    __slots__ = ("_columns", "begin", "end")

    def __init__(self, columns: UpsertColumns, begin: int, end: int) -> None:
        self._columns, self.begin, self.end = columns, begin, end

    @classmethod
    def of(cls, updates: Sequence[FeaturesUpdate]) -> "Upserts":
        """From upserts that lie apart, each with a version."""
        orders_U3 = np.array([(update.version, update.offset, update.index) for update in updates], np.int64).reshape(-1, 3)
        columns = UpsertColumns([update.key for update in updates], orders_U3, join_stored([update.raw for update in updates]))
        return cls(columns, 0, len(updates))

    @classmethod
    def join(cls, parts: "Sequence[Upserts]") -> "Upserts":
        """One run of several, in their order. Those that follow each other in the same columns are not copied."""
        runs: list[Upserts] = []
        for part in parts:
            if runs and runs[-1]._columns is part._columns and runs[-1].end == part.begin:
                runs[-1] = Upserts(part._columns, runs[-1].begin, part.end)
            else:
                runs.append(part)
        return runs[0] if len(runs) == 1 else _copy_runs([run.columns() for run in runs])

    def columns(self) -> UpsertColumns:
        """Only these."""
        keys, orders_U3, raw = self._columns
        cut = slice(self.begin, self.end)
        return UpsertColumns(keys[cut], orders_U3[cut], Joined(raw.bytes_T, raw.starts_R[cut], raw.ends_R[cut]))

    def take(self, places: Sequence[int]) -> "Upserts":
        """Some of them."""
        keys, orders_U3, raw = self.columns()
        at = np.array(places, np.int64)
        return Upserts(UpsertColumns([keys[place] for place in places], orders_U3[at], raw.take(at)), 0, len(places))

    def __len__(self) -> int:
        return self.end - self.begin

    @overload
    def __getitem__(self, place: int) -> FeaturesUpdate: ...
    @overload
    def __getitem__(self, place: slice) -> "Upserts": ...
    def __getitem__(self, place: int | slice) -> "FeaturesUpdate | Upserts":
        if isinstance(place, slice):
            return self.take(range(*place.indices(len(self))))
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        keys, orders_U3, raw = self._columns
        at = (self.end if place < 0 else self.begin) + place
        version, offset, index = orders_U3[at].tolist()
        return FeaturesUpdate(keys[at], version, offset, index, False, raw.bytes_T[raw.starts_R[at] : raw.ends_R[at]].tobytes())


def _copy_runs(runs: Sequence[UpsertColumns]) -> Upserts:
    """Texts of the runs side by side."""
    keys = [key for run in runs for key in run.keys]
    if not keys:
        return Upserts.of([])
    buffers = {id(run.raw.bytes_T): run.raw.bytes_T for run in runs}
    sizes = [len(buffer) for buffer in buffers.values()]
    begins = dict(zip(buffers, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    starts_R = np.concatenate([run.raw.starts_R + begins[id(run.raw.bytes_T)] for run in runs])
    ends_R = np.concatenate([run.raw.ends_R + begins[id(run.raw.bytes_T)] for run in runs])
    bytes_T = np.concatenate(list(buffers.values()))
    bytes_T.flags.writeable = False
    return Upserts(UpsertColumns(keys, np.concatenate([run.orders_U3 for run in runs]), Joined(bytes_T, starts_R, ends_R)), 0, len(keys))
