"""Features of each item as of any time: from rows of its file, from its history table, and from statistics of the log before that time.

`RowsById` has the rows of a section, in order of time. `HistoryFeature` is a feature of [item_history], whose rows are known from their own times on.
`ItemStates` has features as of a time. Not here: statistics (log_statistics.py), the grid of times (periods.py), events (mapped_catalogue.py).
Invariants: a statistic as of t contains nothing from t or later. A row counts from the time at which it is known. So no impression sees its own outcome.
Memory: ids with their places (about 200 bytes an item), and one number for each item and feature that changes with time; rows stay in a spool.
A value of the history is a code: the bits of a number, or for anything else its place among the distinct values; -1 = no value yet.

Arrays: I items, R rows in order of time. Time is in milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from infra.data.columns import decode_categories, decode_numbers, distinct
from infra.data.mapping_source import Column
from infra.data.spool import Spool, SpoolBounds, slices, sort_into_spool
from infra.data.tables import IdPlaces, LoadedRows, LoadedTable, read_times
from schemas.features import Feature
from schemas.ids import Id, IdKind
from schemas.kinds import NUMERIC

ALWAYS = -1  # for an item without a creation time
_NOTHING = -1
_ITEM, _TIME, _CREATED = "#item", "#time", "#created"


@dataclass(frozen=True)
class RowsById:
    """The rows of [items], [users] or [embeddings]. `place_R`: places in `ids`; `time_R`: ascending; `created_I`: creation time, or else the first time."""

    ids: Sequence[Id]
    table: LoadedTable
    spool: Spool
    place_R: np.ndarray
    time_R: np.ndarray
    created_I: np.ndarray

    def rows_at(self, rows: np.ndarray) -> LoadedRows:
        """The cells of some rows."""
        return self.table.rows(self.spool.take(rows))

    def latest_rows(self, time_ms: int) -> np.ndarray:
        """The latest row of each item up to a time, or its oldest row if all are later: [I] int64. Of rows of one time it is the last of the file."""
        latest_I = np.full(len(self.ids), -1, np.int64)
        for first, place_R, time_R in self.blocks():
            early = np.flatnonzero(time_R <= time_ms)
            latest_I[place_R[early]] = first + early  # of equal places the last one stays
            late = np.flatnonzero(time_R > time_ms)[::-1]
            late = late[latest_I[place_R[late]] < 0]
            latest_I[place_R[late]] = first + late
        return latest_I

    def groups(self, column: Column, time_ms: int) -> np.ndarray:
        """The group of each item by the category that a column holds as of a time: codes [I], -1 for an empty cell."""
        codes: dict[int | str, int] = {}
        latest_I, found = self.latest_rows(time_ms), [np.zeros(0, np.int64)]
        for part in slices(len(latest_I)):
            cells, places = distinct(self.rows_at(latest_I[part]).arrays(column)[0])
            values = decode_categories(cells, column.separator)  # as events carry them
            code_N = np.array([-1 if value is None else codes.setdefault(value, len(codes)) for value in values], np.int64)
            found.append(code_N[places])
        return np.concatenate(found)

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(number of the first row, items, times), some rows at a time."""
        return ((part.start, self.place_R[part], self.time_R[part]) for part in slices(len(self.spool)))


def read_rows_by_id(table: LoadedTable, kind: IdKind, bounds: SpoolBounds, known_after_ms: int = 0) -> RowsById:
    """The rows of a section, each with a time known so long after it. A row without an id, or with a time that cannot be read, is rejected."""
    places = IdPlaces(kind)
    schema = table.spool.schema
    for name in (_ITEM, _TIME, _CREATED):
        schema = schema.append(pa.field(name, pa.int64()))
    spool = sort_into_spool(_batches_with_ids(table, schema, places, known_after_ms), schema, [_TIME], bounds)
    place_R, created_R = spool.column(_ITEM), spool.column(_CREATED)
    created_I = np.full(len(places.places), np.iinfo(np.int64).max)
    for part in slices(len(spool)):
        np.minimum.at(created_I, place_R[part], created_R[part])
    return RowsById(places.ids, table, spool, place_R, spool.column(_TIME), created_I)


def _batches_with_ids(table: LoadedTable, schema: pa.Schema, places: IdPlaces, known_after_ms: int) -> Iterator[pa.RecordBatch]:
    """The rows that have an id, and a time where there are times, with item, time and creation, in file order."""
    for rows in table.blocks():
        time_R = read_times(rows, "time") if table.has("time") else np.zeros(len(rows), np.int64)
        rows.reject_cells(time_R < 0, "time", "time")
        timed = np.flatnonzero(time_R >= 0)
        rows, time_R = rows.take(timed), time_R[timed] + (known_after_ms if table.has("time") else 0)
        created_R = read_times(rows, "created") if table.has("created") else time_R if table.has("time") else np.full(len(rows), ALWAYS)
        if table.has("created"):
            rows.reject_cells(created_R < 0, "created", "time of creation, taken as always there")
        item_R = places.encode(rows, "id")
        rows.reject_cells(item_R < 0, "id", "id")
        columns = [*rows.table.columns, *(pa.array(c, pa.int64()) for c in (item_R, time_R, created_R))]
        yield from pa.table(columns, schema=schema).filter(pa.array(item_R >= 0)).combine_chunks().to_batches()


class _Codes:
    """Values of one feature as codes."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self._places: dict[Any, int] = {}

    def encode(self, values: Sequence[Any]) -> np.ndarray:
        """int64, -1 for None."""
        if self.feature.kind is NUMERIC:
            numbers = np.array([np.nan if v is None else v for v in values], np.float64) + 0.0  # + 0.0: no minus zero
            return np.where(np.isnan(numbers), _NOTHING, numbers.view(np.int64))
        keys = (tuple(v) if isinstance(v, list) else v for v in values)
        return np.array([_NOTHING if k is None else self._places.setdefault(k, len(self._places)) for k in keys], np.int64)

    def decode(self, codes: np.ndarray) -> list[Any]:
        """The values, None for -1."""
        if self.feature.kind is NUMERIC:
            return [
                None if code == _NOTHING else number for code, number in zip(codes.tolist(), codes.view(np.float64).tolist(), strict=True)
            ]
        values = list(self._places)
        found = [None if code == _NOTHING else values[code] for code in codes.tolist()]
        return [list(v) if isinstance(v, tuple) else v for v in found]


def read_item_history(
    table: LoadedTable, kind: IdKind, items: Sequence[Id], features: dict[str, Feature], known_after_ms: int, bounds: SpoolBounds
) -> dict[str, "HistoryFeature"]:
    """The features in the rows of the catalogue's items, by name; each row counts as known from `known_after_ms` after its time."""
    codes = {name: _Codes(features[name]) for name in table.source.feature_columns()}
    schema = pa.schema([(name, pa.int64()) for name in (_ITEM, _TIME, *codes)])
    spool = sort_into_spool(_history_batches(table, schema, IdPlaces(kind, items), codes, known_after_ms), schema, [_TIME], bounds)
    return {name: HistoryFeature(codes[name], spool, len(items)) for name in codes}


def _history_batches(
    table: LoadedTable, schema: pa.Schema, places: IdPlaces, codes: dict[str, _Codes], known_after_ms: int
) -> Iterator[pa.RecordBatch]:
    items = len(places.places)
    for rows in table.blocks():
        item_R, time_R = places.encode(rows, "id"), read_times(rows, "time")
        for role, column in (("id", item_R), ("time", time_R)):
            rows.reject_cells(column < 0, role, role)
        usable = np.flatnonzero((item_R >= 0) & (item_R < items) & (time_R >= 0))
        kept = rows.take(usable)
        told = [code.encode(kept.feature(code.feature)) for code in codes.values()]
        known_from = time_R[usable] + known_after_ms
        yield pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in (item_R[usable], known_from, *told)], schema=schema)


class HistoryFeature:
    """The latest value of one feature of each item. Ask for times in ascending order: each one continues from the one before."""

    def __init__(self, codes: _Codes, rows: Spool, items: int) -> None:
        self._codes, self._items = codes, items
        self._columns = tuple(rows.column(name) for name in (_ITEM, _TIME, codes.feature.name))
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
        end = int(np.searchsorted(known_R, time_ms, "right"))
        for part in slices(end, self._next):
            code, item = code_R[part], item_R[part]
            self._codes_I[item[code != _NOTHING]] = code[code != _NOTHING]
        self._next = end
        return self._codes_I.copy()

    def values(self, codes: np.ndarray) -> list[Any]:
        """The values of codes, None for -1."""
        return self._codes.decode(codes)

    def numbers_at(self, time_ms: int) -> np.ndarray:
        """A numeric feature of all items as of a time, [I] float64, NaN for no value."""
        codes_I = self.codes_at(time_ms)
        return np.where(codes_I == _NOTHING, np.nan, codes_I.view(np.float64))


class AsOf(Protocol):
    """A number or a vector of each item, as of ascending times. A negative number, or zeros, means unknown; of a statistic that `is_signed` only -inf does."""

    @property
    def is_signed(self) -> bool: ...

    def at(self, time_ms: int) -> np.ndarray: ...


class ItemStates:
    """Features of items as of a time. They come from the items' file (its rows as of `now_ms`), the history table and statistics.
    Groups are in `clusters`: by feature name the number of each item's group, int64 [I]."""

    def __init__(
        self,
        items: RowsById,
        features: Sequence[Feature],
        now_ms: int,
        histories: Mapping[str, HistoryFeature] = MappingProxyType({}),
        statistics: Mapping[str, AsOf] = MappingProxyType({}),
        clusters: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.items, self.features = items, {f.name: f for f in features}
        self._latest_I = np.maximum(items.latest_rows(now_ms), 0)
        self._histories, self._statistics, self._clusters = histories, statistics, clusters

    @property
    def changes_with_time(self) -> bool:
        """Whether any feature depends on the time."""
        return bool(self._histories or self._statistics)

    def latest_rows(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the rows of the items' file that `features_of` reads for some items."""
        return np.asarray(self._latest_I[places])

    def state_at(self, time_ms: int) -> dict[str, np.ndarray]:
        """The features that change with time: codes of the history and statistics, each [I], or [I, E] for a vector of width E."""
        found = {name: history.codes_at(time_ms) for name, history in self._histories.items()}
        return found | {name: statistic.at(time_ms) for name, statistic in self._statistics.items()}

    def told_at(self, places: np.ndarray, time_ms: int) -> list[dict[str, Any]]:
        """The features of some items as of a time that come from columns of files."""
        return self.features_of(places, {name: history.codes_at(time_ms) for name, history in self._histories.items()})

    def features_of(self, places: np.ndarray, state: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """The features of some items in a state that `state_at` gave. The items' file fills gaps of the history."""
        found = self.features_of_rows(self.items.rows_at(self._latest_I[places]), places)
        for name, state_I in state.items():
            if name in self._histories:
                told = self._histories[name].values(state_I[places])
            else:
                signed = self._statistics[name].is_signed
                told = [_statistic_value(value, signed) for value in state_I[places].tolist()]
            for features, value in zip(found, told, strict=True):
                features |= {} if value is None else {name: value}
        return found

    def features_of_rows(self, rows: LoadedRows, item_R: np.ndarray) -> list[dict[str, Any]]:
        """The features in some rows of the items' file, which may be of an earlier version of an item, and the items' groups. item_R: places of their items."""
        found = rows.features(self.features.values())
        for name, groups_I in self._clusters.items():
            for features, group in zip(found, groups_I[item_R].tolist(), strict=True):
                features[name] = f"c{group}"
        return found

    def numbers_at(self, name: str, time_ms: int) -> np.ndarray:
        """One numeric feature of all items as of a time: float64 [I], NaN where it is missing."""
        numbers = np.full(len(self.items.ids), np.nan)
        column = self.items.table.source.feature_columns().get(name)
        if column is not None:
            for part in slices(len(self.items.ids)):
                numbers[part] = decode_numbers(self.items.rows_at(self._latest_I[part]).arrays(column)[0])
        if name in self._histories:
            told = self._histories[name].numbers_at(time_ms)
            numbers = np.where(np.isnan(told), numbers, told)
        if name in self._statistics:
            numbers = self._statistics[name].at(time_ms).astype(np.float64)
            numbers[numbers < (-np.finfo(float).max if self._statistics[name].is_signed else 0)] = np.nan
        return numbers


def _statistic_value(value: float | list[float], signed: bool) -> float | list[float] | None:
    """The value that an event carries; None for a vector of zeros and, except for a rate, for a negative number."""
    if isinstance(value, list):
        return value if any(value) else None
    return float(value) if value >= 0 or (signed and value > -np.inf) else None
