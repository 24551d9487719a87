"""What behaviours before a time say of each item: how many, of how many users, since when, and with which others.

Here: one derived feature as of any time (`ItemStatistic`), and counts. Not here: columns and histories of files (item_states.py).
Invariant: a value as of t holds nothing from t or later. A negative number, and a vector of zeros, mean "nothing known".

Arrays: I items, X interactions, E width of a vector.
"""

from collections.abc import Sequence

import numpy as np

from infra.data.interactions import Interactions
from infra.data.mapping import FeatureSource
from infra.data.taken_together import TogetherVectors

DAY_MS = 86_400_000
_NEVER = -1.0


class ItemStatistic:
    """The feature of a mapping that is made from behaviours; vectors only change at `grid_ms`, ascending."""

    def __init__(self, source: FeatureSource, positives: Interactions, items: int, grid_ms: Sequence[int]) -> None:
        self._source, self._positives, self._items = source, positives, items
        width = source.taken_together
        self._together = TogetherVectors(positives, items, width, grid_ms) if width is not None else None

    def at(self, time_ms: int) -> np.ndarray:
        """[I] or [I, E]."""
        if self._together is not None:
            return self._together.at(time_ms)
        if self._source.days_since is not None:
            return days_since(self._positives, self._items, time_ms, self._source.days_since == "first")
        count = count_takers if self._source.of == "users" else count_positives
        assert self._source.count_days is not None
        return count(self._positives, self._items, time_ms, self._source.count_days)


def count_positives(positives: Interactions, items: int, time_ms: int, days: float) -> np.ndarray:
    """Interactions of each item in the days before a time, [I] int64."""
    return np.bincount(_items_in(positives, items, time_ms, days)[0], minlength=items)


def count_takers(positives: Interactions, items: int, time_ms: int, days: float) -> np.ndarray:
    """Different users with an interaction in the days before a time, [I] int64: one who takes often counts once."""
    item_X, user_X = _items_in(positives, items, time_ms, days)
    pairs = np.unique(item_X * max(1, len(positives.user_ids)) + user_X)
    return np.bincount(pairs // max(1, len(positives.user_ids)), minlength=items)


def days_since(positives: Interactions, items: int, time_ms: int, first: bool) -> np.ndarray:
    """Whole days since the first (or last) interaction before a time, [I] float64; negative where there is none."""
    item_X = positives.item_X[: positives.before(time_ms)]
    at_X = np.flatnonzero(item_X < items)
    days_I = np.full(items, _NEVER)
    at_X = at_X[::-1] if first else at_X  # of several the one that is written last stays
    days_I[item_X[at_X]] = (time_ms - positives.time_X[at_X]) // DAY_MS
    return days_I


def _items_in(positives: Interactions, items: int, time_ms: int, days: float) -> tuple[np.ndarray, np.ndarray]:
    """(items, users) of the interactions with the catalogue in the days before a time."""
    part = slice(positives.before(time_ms - round(days * DAY_MS)), positives.before(time_ms))
    known = positives.item_X[part] < items
    return positives.item_X[part][known], positives.user_X[part][known]
