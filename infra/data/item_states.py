"""What is known of each item as of any time: its columns, the latest rows of its history table, and statistics of the behaviours before that time.

Here: `ItemStates`, features as of a time. Not here: the rows of the items' file (item_rows.py), values over time (item_history.py), the statistics
themselves (item_statistics.py), the times at which they are told (mapped_sources.py), events (mapped_catalogue.py).
Invariant: a statistic as of t holds nothing from t or later, and a history row counts from the time at which it is known, so no impression sees its own
answer.
Memory: some numbers for each item and feature that changes with time; columns stay in the spool of the rows.

Arrays: I items. Time is in milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from infra.data.columns import decode_numbers
from infra.data.item_history import HistoryFeature, HistoryRows
from infra.data.item_rows import ItemRows
from infra.data.item_statistics import ItemStatistic
from infra.data.shown_statistics import LogStatistic
from infra.data.spool import BLOCK_ROWS
from infra.data.tables import LoadedRows
from schemas.features import Feature


class ItemStates:
    """Features of items as of a time. They come from the items' file (its rows as of `now_ms`), from the rows of the history table, from statistics by feature
    name, and from groups: clusters_I by feature name, the number of each item's group, int64."""

    def __init__(
        self,
        items: ItemRows,
        features: Sequence[Feature],
        now_ms: int,
        history: HistoryRows | None = None,
        statistics: Mapping[str, ItemStatistic | LogStatistic] = MappingProxyType({}),
        clusters: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.items, self.features = items, {f.name: f for f in features}
        self._latest_I = np.maximum(items.latest_rows(now_ms), 0)
        self._histories: dict[str, HistoryFeature] = {}
        if history is not None:
            self._histories = {name: HistoryFeature(history, name, len(items.ids)) for name in history.names}
        self._statistics, self._clusters = statistics, clusters

    @property
    def changes_with_time(self) -> bool:
        """Whether any feature depends on the time."""
        return bool(self._histories or self._statistics)

    def latest_rows(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the rows of the items' file that `features_of` reads for some items."""
        return np.asarray(self._latest_I[places])

    def state_at(self, time_ms: int) -> dict[str, np.ndarray]:
        """What changes with time, by feature: codes of the history and statistics, each [I], or [I, E] for a vector of width E."""
        found = {name: history.codes_at(time_ms) for name, history in self._histories.items()}
        return found | {name: statistic.at(time_ms) for name, statistic in self._statistics.items()}

    def told_at(self, places: np.ndarray, time_ms: int) -> list[dict[str, Any]]:
        """What columns of files tell of some items as of a time, without what is derived from behaviours."""
        return self.features_of(places, {name: history.codes_at(time_ms) for name, history in self._histories.items()})

    def features_of(self, places: np.ndarray, state: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """The features of some items in a state that `state_at` gave. What the history does not tell comes from the items' file."""
        found = self.features_of_rows(self.items.rows_at(self._latest_I[places]), places)
        for name, state_I in state.items():
            if name in self._histories:
                told = self._histories[name].values(state_I[places])
            else:
                signed = self._statistics[name].is_rate
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
            if not self._statistics[name].is_rate:
                numbers[numbers < 0] = np.nan
        return numbers

    def _parts(self) -> Iterator[slice]:
        return (slice(first, first + BLOCK_ROWS) for first in range(0, len(self.items.ids), BLOCK_ROWS))


def _statistic_value(value: float | list[float], signed: bool) -> float | list[float] | None:
    """What an event tells of a statistic: nothing of a vector of zeros and, except of a rate, of a negative number."""
    if isinstance(value, list):
        return value if any(value) else None
    return float(value) if signed or value >= 0 else None
