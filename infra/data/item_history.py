"""Values of items over time: the rows of [item_history], each known from its own time on.

Here: the latest value of each item as of a time. Not here: features from other sources (item_states.py).
A value is represented by a code: the bits of a number, or for anything else its place among the distinct values; -1 = no value yet.
Memory: one code per item and feature, and the distinct values of features that are not numbers; rows stay in a spool.

Arrays: I items, R rows in order of the time from which they are known. Time is in milliseconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from infra.data.interactions import IdPlaces, read_times
from infra.data.sorted_rows import sort_into_spool
from infra.data.spool import BLOCK_ROWS, RowColumn, Spool, SpoolBounds
from infra.data.tables import LoadedTable
from schemas.features import Feature, Kind
from schemas.ids import Id, IdKind

_ITEM, _KNOWN_FROM = "#item", "#known_from"
_NOTHING = -1


class _Codes:
    """Values of one feature as codes."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self._places: dict[Any, int] = {}

    def encode(self, values: Sequence[Any]) -> np.ndarray:
        """int64, -1 for None."""
        if self.feature.kind is Kind.NUMERIC:
            numbers = np.array([np.nan if v is None else v for v in values], np.float64) + 0.0  # + 0.0: no minus zero
            return np.where(np.isnan(numbers), _NOTHING, numbers.view(np.int64))
        keys = (tuple(v) if isinstance(v, list) else v for v in values)
        return np.array([_NOTHING if k is None else self._places.setdefault(k, len(self._places)) for k in keys], np.int64)

    def decode(self, codes: np.ndarray) -> list[Any]:
        """The values, None for -1."""
        if self.feature.kind is Kind.NUMERIC:
            return [
                None if code == _NOTHING else number for code, number in zip(codes.tolist(), codes.view(np.float64).tolist(), strict=True)
            ]
        values = list(self._places)
        found = [None if code == _NOTHING else values[code] for code in codes.tolist()]
        return [list(v) if isinstance(v, tuple) else v for v in found]


@dataclass(frozen=True)
class HistoryRows:
    """The rows of the table: items' places, from when each is known, and a column of codes for each feature."""

    names: tuple[str, ...]
    spool: Spool
    codes: dict[str, _Codes]


def read_item_history(
    table: LoadedTable, kind: IdKind, items: Sequence[Id], features: dict[str, Feature], known_after_ms: int, bounds: SpoolBounds
) -> HistoryRows:
    """Reads the rows of the catalogue's items; each counts as known from `known_after_ms` after its time."""
    names = tuple(table.source.feature_columns())
    codes = {name: _Codes(features[name]) for name in names}
    schema = pa.schema([(name, pa.int64()) for name in (_ITEM, _KNOWN_FROM, *names)])
    batches = _usable_batches(table, schema, IdPlaces(kind, items), codes, known_after_ms)
    return HistoryRows(names, sort_into_spool(batches, schema, [_KNOWN_FROM], bounds), codes)


def _usable_batches(
    table: LoadedTable, schema: pa.Schema, places: IdPlaces, codes: dict[str, _Codes], known_after_ms: int
) -> Iterator[pa.RecordBatch]:
    items = len(places.places)
    for rows in table.blocks():
        item_R, time_R = places.encode(rows.array("id"), table.id_forms["id"]), read_times(rows, "time")
        for role, column in (("id", item_R), ("time", time_R)):
            rows.reject_cells(column < 0, role, role)
        usable = np.flatnonzero((item_R >= 0) & (item_R < items) & (time_R >= 0))
        kept = rows.take(usable)
        told = [code.encode(kept.feature(code.feature)) for code in codes.values()]
        known_from = time_R[usable] + known_after_ms
        yield pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in (item_R[usable], known_from, *told)], schema=schema)


class HistoryFeature:
    """The latest value of one feature of each item. Ask for times in ascending order: each one continues from the one before."""

    def __init__(self, history: HistoryRows, name: str, items: int) -> None:
        self._codes, self._items = history.codes[name], items
        self._columns: tuple[RowColumn, ...] = tuple(history.spool.column(c) for c in (_ITEM, _KNOWN_FROM, name))
        self._restart()

    def _restart(self) -> None:
        self._told_until, self._next = -1, 0
        self._codes_I = np.full(self._items, _NOTHING, np.int64)

    def codes_at(self, time_ms: int) -> np.ndarray:
        """The latest code of each item that is known at a time, [I] int64."""
        if time_ms < self._told_until:
            self._restart()
        self._told_until = time_ms
        item_R, known_R, code_R = self._columns
        while self._next < len(known_R):
            part = slice(self._next, min(len(known_R), self._next + BLOCK_ROWS))
            known = int(np.searchsorted(known_R[part], time_ms, "right"))
            code, item = code_R[part][:known], item_R[part][:known]
            self._codes_I[item[code != _NOTHING]] = code[code != _NOTHING]
            self._next += known
            if known < part.stop - part.start:
                break
        return self._codes_I.copy()

    def values(self, codes: np.ndarray) -> list[Any]:
        """The values of codes, None for -1."""
        return self._codes.decode(codes)

    def numbers_at(self, time_ms: int) -> np.ndarray:
        """A numeric feature of all items as of a time, [I] float64, NaN for no value."""
        codes_I = self.codes_at(time_ms)
        return np.where(codes_I == _NOTHING, np.nan, codes_I.view(np.float64))
