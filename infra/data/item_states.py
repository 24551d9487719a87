"""What is known of each item as of any time: its columns, its history table's latest rows, and statistics of behaviours before then.

Here: `ItemStates` (features as of t). Not here: the rows of the items' file (item_rows.py), values over time (item_history.py), the
statistics themselves (item_statistics.py), events, which times are told (mapped_catalogue.py).
Invariant: a state as of t holds nothing from t or later; that is what keeps an impression from seeing its own answer.
Memory: some numbers per item and feature that changes with time; columns stay in the spool of the rows.

Arrays: I items. Time is in milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from infra.data.columns import decode_numbers
from infra.data.feature_values import decode_features
from infra.data.item_history import HistoryFeature, HistoryRows
from infra.data.item_rows import ItemRows
from infra.data.item_statistics import ItemStatistic
from infra.data.tables import LoadedRows
from schemas.features import Feature

_CHUNK = 65_536


class ItemStates:
    """Item features as of a time. They come from the items' file, from behaviours (`statistics`), and from the history table."""

    def __init__(self, items: ItemRows, features: Sequence[Feature], now_ms: int) -> None:
        self.items, self.features = items, {f.name: f for f in features}
        self._latest_I = np.maximum(items.latest_rows(now_ms), 0)
        self._histories: dict[str, HistoryFeature] = {}
        self._statistics: dict[str, ItemStatistic] = {}
        self._clusters: dict[str, np.ndarray] = {}

    @property
    def changes_with_time(self) -> bool:
        """Whether any feature depends on the time."""
        return bool(self._histories or self._statistics)

    def latest_rows(self, places: np.ndarray) -> np.ndarray:
        """The rows of some items that `features_of` reads."""
        return np.asarray(self._latest_I[places])

    def add_statistic(self, name: str, statistic: ItemStatistic) -> None:
        """A feature that is made from behaviours."""
        self._statistics[name] = statistic

    def add_clusters(self, name: str, clusters_I: np.ndarray) -> None:
        """A feature that names the group of an item."""
        self._clusters[name] = clusters_I

    def add_history(self, history: HistoryRows) -> None:
        """Features of a table with id and time."""
        self._histories |= {name: HistoryFeature(history, name, len(self.items.ids)) for name in history.names}

    def state_at(self, time_ms: int) -> dict[str, np.ndarray]:
        """What changes with time: codes of history features and statistics, each [I] or, of a vector, [I, E]."""
        found = {name: history.codes_at(time_ms) for name, history in self._histories.items()}
        return found | {name: statistic.at(time_ms) for name, statistic in self._statistics.items()}

    def told_at(self, places: np.ndarray, time_ms: int) -> list[dict[str, Any]]:
        """What columns of files tell of some items as of a time, and nothing that is made from behaviours."""
        return self.features_of(places, {name: history.codes_at(time_ms) for name, history in self._histories.items()})

    def features_of(self, places: np.ndarray, state: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """The features of some items; what the history does not tell comes from the items' file."""
        rows = self.items.rows_at(self._latest_I[places])
        found = decode_features(rows, rows.source.feature_columns(), self.features.values())
        for name, groups_I in self._clusters.items():
            for features, group in zip(found, groups_I[places].tolist(), strict=True):
                features[name] = f"c{group}"
        for name, state_I in state.items():
            if name in self._histories:
                told = self._histories[name].values(state_I[places])
            else:
                told = [_statistic_value(value) for value in state_I[places].tolist()]
            for features, value in zip(found, told, strict=True):
                features |= {} if value is None else {name: value}
        return found

    def features_of_rows(self, rows: LoadedRows, item_R: np.ndarray) -> list[dict[str, Any]]:
        """The features that rows of the items' file hold (a file with several versions of an item); `item_R` = their items' places."""
        found = decode_features(rows, rows.source.feature_columns(), self.features.values())
        for name, groups_I in self._clusters.items():
            for features, group in zip(found, groups_I[item_R].tolist(), strict=True):
                features[name] = f"c{group}"
        return found

    def numbers_at(self, name: str, time_ms: int) -> np.ndarray:
        """One numeric feature of all items as of a time, [I] float64, NaN where missing."""
        numbers = np.full(len(self.items.ids), np.nan)
        column = self.items.table.source.feature_columns().get(name)
        if column is not None and column.value is not None:
            numbers[:] = float(column.value)
        elif column is not None:
            for part in self._parts():
                numbers[part] = decode_numbers(self.items.rows_at(self._latest_I[part]).arrays(column)[0])
        if name in self._histories:
            told = self._histories[name].numbers_at(time_ms)
            numbers = np.where(np.isnan(told), numbers, told)
        if name in self._statistics:
            numbers = self._statistics[name].at(time_ms).astype(np.float64)
            numbers[numbers < 0] = np.nan
        return numbers

    def _parts(self) -> Iterator[slice]:
        return (slice(first, first + _CHUNK) for first in range(0, len(self.items.ids), _CHUNK))


def _statistic_value(value: float | list[float]) -> float | list[float] | None:
    """What an event tells of a statistic: nothing of a negative number and of a vector of zeros."""
    if isinstance(value, list):
        return value if any(value) else None
    return float(value) if value >= 0 else None
