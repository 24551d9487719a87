"""Counters of items or of users in memory as of a time, and the numbers that they make.

Here: pure state. Not here: what an event changes (events.py), storage and sending (tally.py).
Changes commute: however events are cut into batches, the same events before a time give the same whole numbers, and those give the bits that an import has.
Only items that exist count, for a share of all items is part of every rate; counts of others wait until their item comes. A user exists from the first event.

Arrays: I items or users in the order in which they were met, C counters, S statistics by name.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from schemas.statistics import NEVER, Counter, Statistic, counters_of, first_bucket

_ROOM_MIN = 1_024
_MISSING = -1  # an item of no group; also the time of an event that never came


class Change(NamedTuple):
    """Where a counter changes: its number, the step of the event (schemas/statistics.py), the index key of the item or user."""

    counter: int
    bucket: int
    key: bytes


class Counts:
    """The counters of all items, or of all users, in the windows before `clock_ms`, which only moves on. `exist`: whether all that were met exist."""

    def __init__(self, statistics: Mapping[str, Statistic], exist: bool = False) -> None:
        self.statistics = dict(sorted(statistics.items()))
        self.counters: tuple[Counter, ...] = counters_of(self.statistics.values())
        self.group_names = tuple(sorted({s.by for s in self.statistics.values() if s.by is not None}))
        self.clock_ms, self._all_exist = 0, exist
        self.keys: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._codes: dict[str, dict[object, int]] = {name: {} for name in self.group_names}
        self._nothing_C = np.array([_MISSING if counter.edge else 0 for counter in self.counters], np.int64)
        self._totals_CI = np.empty((len(self.counters), 0), np.int64)
        self._groups_BI = np.empty((len(self.group_names), 0), np.int64)
        self._exists_I = np.empty(0, bool)

    def place_of(self, key: bytes) -> int:
        """The place of an item, which may be new."""
        place = self._places.setdefault(key, len(self.keys))
        if place == len(self.keys):
            self.keys.append(key)
            if place == len(self._exists_I):
                more = max(_ROOM_MIN, place)
                self._totals_CI = np.hstack([self._totals_CI, np.repeat(self._nothing_C[:, None], more, axis=1)])
                self._groups_BI = np.hstack([self._groups_BI, np.full((len(self.group_names), more), _MISSING)])
                self._exists_I = np.append(self._exists_I, np.full(more, self._all_exist))
        return place

    def set_item(self, key: bytes, exists: bool, groups: Mapping[str, object]) -> int:
        """Whether an item exists, and its values of the features that statistics group by. Returns its place."""
        place = self.place_of(key)
        self._exists_I[place] = exists
        for number, name in enumerate(self.group_names):
            value, codes = groups.get(name), self._codes[name]
            is_value = isinstance(value, int | str) and not isinstance(value, bool)
            self._groups_BI[number, place] = codes.setdefault(value, len(codes)) if is_value else _MISSING
        return place

    def add(self, changes: Mapping[Change, int]) -> None:
        """More events by where they count, fewer of those that leave a window, or the time of a first or last one."""
        for (counter, _, key), value in changes.items():
            place = self.place_of(key)
            if self.counters[counter].edge:
                self._totals_CI[counter, place] = value
            else:
                self._totals_CI[counter, place] += value

    def total(self, change: Change) -> int | None:
        """What a counter has for an item; None for the time of an event that never came."""
        place = self._places.get(change.key)
        total = int(self._nothing_C[change.counter] if place is None else self._totals_CI[change.counter, place])
        return None if self.counters[change.counter].edge and total == _MISSING else total

    def first_buckets(self, time_ms: int) -> list[int]:
        """The oldest step of each counter that counts as of a time."""
        return [first_bucket(time_ms, counter.window_ms) for counter in self.counters]

    @property
    def exist(self) -> np.ndarray:
        """Which items exist."""
        return self._exists_I[: len(self.keys)]

    def numbers(self) -> np.ndarray:
        """Every statistic of every item as of `clock_ms`, float64 [S, I]; only of those that exist it means something."""
        items, exists_I = len(self.keys), self.exist
        totals_CI = np.where(exists_I, self._totals_CI[:, :items], self._nothing_C[:, None])
        counts = dict(zip(self.counters, totals_CI, strict=True))
        groups_BI = np.where(exists_I, self._groups_BI[:, :items], _MISSING)
        group_of = dict(zip(self.group_names, groups_BI, strict=True))
        found = [s.numbers(counts.__getitem__, self.clock_ms, group_of.get(s.by) if s.by else None) for s in self.statistics.values()]
        return np.array(found, np.float64).reshape(len(self.statistics), items)

    def told_by(self, features: Mapping[str, object]) -> np.ndarray:
        """The numbers that an item's own record tells, float64 [S]; where it tells none, those of an item without events."""
        return np.array([_number(features.get(name), statistic) for name, statistic in self.statistics.items()], np.float64)

    def values(self, number_SN: np.ndarray) -> list[dict[str, float | None]]:
        """Numbers of some items as events carry them, by name; None where an event never came."""
        names = list(self.statistics)
        found: list[dict[str, float | None]] = [dict(zip(names, numbers, strict=True)) for numbers in number_SN.T.tolist()]
        for name in [name for name, statistic in self.statistics.items() if statistic.is_edge]:
            for features in found:
                features[name] = None if features[name] == NEVER else features[name]
        return found


def _number(value: object, statistic: Statistic) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return statistic.nothing
