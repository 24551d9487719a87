"""What is known of each item as of any time: its columns, its history table's latest rows, and statistics of behaviours before then.

Here: `ItemRows` (one file's rows by item) and `ItemStates` (features as of t). Not here: the statistics themselves (item_statistics.py),
events, which times are told (mapped_catalogue.py).
Invariant: a state as of t holds nothing from t or later; that is what keeps an impression from seeing its own answer.

Arrays: I items, R rows of a file, X interactions. Time is in milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from infra.data.columns import decode_numbers
from infra.data.feature_values import decode_feature, decode_features
from infra.data.interactions import encode_ids, read_times
from infra.data.item_statistics import DAY_MS, ItemStatistic
from infra.data.tables import LoadedTable
from schemas.features import Feature
from schemas.ids import Id, IdKind

ALWAYS = -1  # created before all time


@dataclass(frozen=True)
class ItemRows:
    """The rows of the items' file by item: `item_R` places in `ids` (-1: rejected), their times, and when each item came to be."""

    ids: Sequence[Id]
    table: LoadedTable
    item_R: np.ndarray
    time_R: np.ndarray
    created_I: np.ndarray

    @cached_property
    def in_time_order(self) -> np.ndarray:
        """Usable rows, oldest first, ties in file order."""
        rows = np.flatnonzero((self.item_R >= 0) & (self.time_R >= 0))
        return rows[np.argsort(self.time_R[rows], kind="stable")]

    def latest_rows(self, time_ms: int) -> np.ndarray:
        """The row of each item as of a time (not after it); the oldest where all are after it: [I] int64."""
        rows = self.in_time_order
        latest_I = np.full(len(self.ids), -1, np.int64)
        latest_I[self.item_R[rows[::-1]]] = rows[::-1]
        rows = rows[self.time_R[rows] <= time_ms]
        latest_I[self.item_R[rows]] = rows  # of equal places the last one stays
        return latest_I


def read_item_rows(table: LoadedTable, kind: IdKind) -> ItemRows:
    """The items of the section [items]. A row without an id, or with a time that does not read, is rejected."""
    time_R = read_times(table, "time") if table.has("time") else np.zeros(len(table), np.int64)
    created_R = read_times(table, "created") if table.has("created") else time_R if table.has("time") else np.full(len(table), ALWAYS)
    item_R, ids = encode_ids(table.array("id"), kind, ())
    usable = (item_R >= 0) & (time_R >= 0)
    for row in np.flatnonzero(~usable).tolist():
        table.reject(row, "no usable id" if item_R[row] < 0 else "no usable time")
    kept = np.unique(item_R[usable])
    place = np.full(len(ids) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    item_R = np.where(usable, place[item_R], -1)
    created_I = np.full(len(kept), np.iinfo(np.int64).max)
    np.minimum.at(created_I, item_R[usable], created_R[usable])
    return ItemRows([ids[i] for i in kept.tolist()], table, item_R, time_R, created_I)


@dataclass(frozen=True)
class _History:
    """One feature of the history table: rows in order of the time from which they are known; `values` by code, -1 = nothing new."""

    known_from_R: np.ndarray
    item_R: np.ndarray
    code_R: np.ndarray
    values: Sequence[Any]

    def codes_at(self, time_ms: int, items: int) -> np.ndarray:
        """The latest code of each item that is known at a time, [I] int64."""
        known = self.known_from_R <= time_ms
        codes_I = np.full(items, -1, np.int64)
        codes_I[self.item_R[known]] = self.code_R[known]
        return codes_I


class ItemStates:
    """Item features as of a time. They come from the items' file, from behaviours (`statistics`), and from the history table."""

    def __init__(self, items: ItemRows, features: Sequence[Feature], now_ms: int) -> None:
        self.items, self.features = items, {f.name: f for f in features}
        self._latest = items.table.take(np.maximum(items.latest_rows(now_ms), 0))
        self._histories: dict[str, _History] = {}
        self._statistics: dict[str, ItemStatistic] = {}
        self._clusters: dict[str, np.ndarray] = {}

    @property
    def changes_with_time(self) -> bool:
        """Whether any feature depends on the time."""
        return bool(self._histories or self._statistics)

    def add_statistic(self, name: str, statistic: ItemStatistic) -> None:
        """A feature that is made from behaviours."""
        self._statistics[name] = statistic

    def add_clusters(self, name: str, clusters_I: np.ndarray) -> None:
        """A feature that names the group of an item."""
        self._clusters[name] = clusters_I

    def add_history(self, table: LoadedTable, kind: IdKind, known_after_days: float) -> None:
        """Features of a table with id and time; a row is known from `known_after_days` after its time."""
        item_R, _ = encode_ids(table.array("id"), kind, self.items.ids)
        time_R = read_times(table, "time")
        for row in np.flatnonzero((item_R < 0) | (time_R < 0)).tolist():
            table.reject(row, "no usable id or time")
        rows = np.flatnonzero((item_R >= 0) & (item_R < len(self.items.ids)) & (time_R >= 0))
        rows = rows[np.argsort(time_R[rows], kind="stable")]
        known_from = time_R[rows] + round(known_after_days * DAY_MS)
        for name, column in table.source.feature_columns().items():
            codes, values = _encode_values(decode_feature(table.take(rows), column, self.features[name]))
            told = codes >= 0
            self._histories[name] = _History(known_from[told], item_R[rows][told], codes[told], values)

    def state_at(self, time_ms: int) -> dict[str, np.ndarray]:
        """What changes with time: codes of history features and statistics, each [I] or, of a vector, [I, E]."""
        items = len(self.items.ids)
        found = {name: history.codes_at(time_ms, items) for name, history in self._histories.items()}
        return found | {name: statistic.at(time_ms) for name, statistic in self._statistics.items()}

    def features_of(self, places: np.ndarray, state: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """The features of some items; what the history does not tell comes from the items' file."""
        rows = self._latest.take(places)
        found = decode_features(rows, rows.source.feature_columns(), self.features.values())
        for name, groups_I in self._clusters.items():
            for features, group in zip(found, groups_I[places].tolist(), strict=True):
                features[name] = f"c{group}"
        for name, state_I in state.items():
            values = self._histories[name].values if name in self._histories else None
            for features, code in zip(found, state_I[places].tolist(), strict=True):
                if isinstance(code, list):
                    features |= {name: code} if any(code) else {}
                elif code >= 0:
                    features[name] = float(code) if values is None else values[code]
        return found

    def features_of_rows(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """The features that rows of the items' file hold (a file with several versions of an item)."""
        table = self.items.table.take(rows)
        found = decode_features(table, table.source.feature_columns(), self.features.values())
        for name, groups_I in self._clusters.items():
            for features, group in zip(found, groups_I[self.items.item_R[rows]].tolist(), strict=True):
                features[name] = f"c{group}"
        return found

    def numbers_at(self, name: str, time_ms: int) -> np.ndarray:
        """One numeric feature of all items as of a time, [I] float64, NaN where missing."""
        numbers = np.full(len(self.items.ids), np.nan)
        column = self.items.table.source.feature_columns().get(name)
        if column is not None:
            constant = column.value is not None
            numbers[:] = float(column.value) if constant else decode_numbers(self._latest.arrays(column)[0])
        if name in self._histories:
            history = self._histories[name]
            codes = history.codes_at(time_ms, len(numbers))
            numbers[codes >= 0] = np.array(history.values, np.float64)[codes[codes >= 0]]
        if name in self._statistics:
            numbers = self._statistics[name].at(time_ms).astype(np.float64)
            numbers[numbers < 0] = np.nan
        return numbers


def _encode_values(values: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """(code of each value, -1 for None; the values by code)."""
    places: dict[Any, int] = {}
    codes = [-1 if v is None else places.setdefault(tuple(v) if isinstance(v, list) else v, len(places)) for v in values]
    return np.array(codes, np.int64), [list(v) if isinstance(v, tuple) else v for v in places]
