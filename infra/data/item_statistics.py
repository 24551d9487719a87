"""Statistics of each item from behaviours before a time that only an import makes: by how many users, with which other items, and what to expect.

Here: one derived feature as of any time (`ItemStatistic`), and counts. Not here: statistics that a stream keeps too (shown_statistics.py), columns and
histories of files (item_states.py).
Invariant: a value as of t contains nothing from t or later. A negative number, and a vector of zeros, mean "nothing is known".

Arrays: I items, X interactions, E width of a vector.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from infra.clock import DAY_MS
from infra.data.expected_takers import ExpectedTakers
from infra.data.interactions import Interactions
from infra.data.mapping_source import FeatureSource
from infra.data.taken_together import TogetherVectors

_PAIRS_AT_ONCE = 4_000_000


class ItemStatistic:
    """A feature of a mapping that is derived from behaviours. Vectors change only at the times `grid_ms`, which ascend."""

    is_rate = False  # a negative number means that nothing is known

    def __init__(self, source: FeatureSource, positives: Interactions, items: int, grid_ms: Sequence[int]) -> None:
        self._source, self._positives, self._items = source, positives, items
        width = source.taken_together
        self._together = TogetherVectors(positives, items, width, grid_ms) if width is not None else None
        expected = source.expected_days
        self._expected = ExpectedTakers(positives, items, expected, grid_ms[-1]) if expected is not None else None

    def at(self, time_ms: int) -> np.ndarray:
        """The value of each item as of a time: [I], or [I, E] for vectors."""
        if self._together is not None:
            return self._together.at(time_ms)
        if self._expected is not None:
            return self._expected.at(time_ms)
        assert self._source.count_days is not None
        return count_takers(self._positives, self._items, time_ms, self._source.count_days)


def count_takers(positives: Interactions, items: int, time_ms: int, days: float) -> np.ndarray:
    """How many different users had an interaction in the days before a time, [I] int64.

    For a long window, the pairs of only every n-th item are in memory at once.
    """
    users, counts_I = max(1, len(positives.user_ids)), np.zeros(items, np.int64)
    rounds = -(-(positives.before(time_ms) - positives.before(time_ms - round(days * DAY_MS))) // _PAIRS_AT_ONCE)
    for turn in range(rounds):
        found = [(item_X * users + user_X)[item_X % rounds == turn] for item_X, user_X in _pairs_in(positives, items, time_ms, days)]
        counts_I += np.bincount(np.unique(np.concatenate(found)) // users, minlength=items)
    return counts_I


def _pairs_in(positives: Interactions, items: int, time_ms: int, days: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(items, users) of the interactions with the catalogue in the days before a time, some at a time."""
    for block in positives.blocks(positives.before(time_ms - round(days * DAY_MS)), positives.before(time_ms)):
        known = block.item_X < items
        yield block.item_X[known], block.user_X[known]
