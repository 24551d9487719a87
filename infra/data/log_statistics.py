"""Statistics of each item, or of each user, over a log, as of ascending times: counts, rates, days, distinct users, means of a value.

Here: counters over a log, and one statistic of it. Not here: the choice of statistics (inferred_schema.py), the meaning of their numbers, which streams
share (schemas/statistics.py), features that are learnt from the whole log (expected_takers.py, taken_together.py).
Invariant: a value as of t contains nothing from t or later. A negative number means unknown, except of a statistic that `is_signed`.
Memory: one number for each item and counter; logs stay in spools.

Arrays: I items, or users; X events.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from infra.clock import DAY_MS
from infra.data.interactions import Interactions
from schemas.ids import Id
from schemas.statistics import PRIOR, Counter, Log, Measure, Statistic, window_begin

_PAIRS_AT_ONCE = 4_000_000
_DECIMALS = 3


class LogCounter:
    """A counter (schemas/statistics.py) over a log, int64 [I]. Times are best asked for in ascending order: then each event is read once as it comes, and once
    as it leaves the window. `owner`: the column of those whose counts they are, "item_X" or "user_X"."""

    def __init__(self, counter: Counter, log: Interactions, items: int, bits: bool, owner: str = "item_X") -> None:
        self._counter, self._log, self._items, self._bits, self._owner = counter, log, items, bits, owner
        self._codes = [log.kinds.index(kind) for kind in counter.kinds if kind in log.kinds]
        self._restart(0)

    def _restart(self, begin: int) -> None:
        self._begin = self._end = begin
        self._counts_I = np.full(self._items, -1 if self._counter.edge else 0, np.int64)

    def at(self, time_ms: int) -> np.ndarray:
        """The counts, or the times of the first or last events, as of a time."""
        window = self._counter.window_ms
        begin = 0 if window is None else self._log.before(window_begin(time_ms, window))
        end = self._log.before(time_ms)
        if begin < self._begin or end < self._end:
            self._restart(begin)
        if self._counter.edge:
            self._note_times(self._end, end)
        else:
            self._counts_I = self._counts_I + self._count(self._end, end) - self._count(self._begin, begin)
        self._begin, self._end = begin, end
        return self._counts_I

    def _count(self, first: int, last: int) -> np.ndarray:
        found_I = np.zeros(self._items, np.int64)
        for item_X, _ in self._events(first, last):
            found_I += np.bincount(item_X, minlength=self._items)
        return found_I

    def _note_times(self, first: int, last: int) -> None:
        self._counts_I = self._counts_I.copy()
        for item_X, time_X in self._events(first, last):
            if self._counter.edge == "first":  # of several the one that is written last stays
                unseen = self._counts_I[item_X] < 0
                item_X, time_X = item_X[unseen][::-1], time_X[unseen][::-1]
            self._counts_I[item_X] = time_X

    def _events(self, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(items, times) of the events of the counter's kinds with the catalogue, some at a time."""
        for block in self._log.blocks(first, last):
            owner_X = getattr(block, self._owner)
            counted = owner_X < self._items
            if self._counter.kinds:
                mask = sum(1 << code for code in self._codes)
                counted &= (block.kind_X & mask > 0) if self._bits else np.isin(block.kind_X, self._codes)
            yield owner_X[counted], block.time_X[counted]


class LogStatistic:
    """A statistic (schemas/statistics.py) over a log: one number of each item, or of the item's group (`group_I`, codes; -1 = in none). A kind of a log of
    impressions is a set of outcomes. `owner`: as of a counter."""

    def __init__(
        self, statistic: Statistic, log: Interactions, items: int, group_I: np.ndarray | None = None, owner: str = "item_X"
    ) -> None:
        self._statistic, self._group_I = statistic, group_I
        bits = statistic.log is Log.IMPRESSIONS
        self._counters = {counter: LogCounter(counter, log, items, bits, owner) for counter in statistic.counters}
        self.is_signed = statistic.measure is Measure.RATE

    def at(self, time_ms: int) -> np.ndarray:
        """[I] float64."""
        return self._statistic.numbers(lambda counter: self._counters[counter].at(time_ms), time_ms, self._group_I)


def count_users(statistic: Statistic, log: Interactions, time_ms: int) -> tuple[Sequence[Id], np.ndarray]:
    """(the users of a log, the number of each as of a time)."""
    return log.user_ids, LogStatistic(statistic, log, len(log.user_ids), owner="user_X").at(time_ms)


class TakersCount:
    """How many different users had an interaction in some days before. For a long window, the pairs of only every n-th item are in memory at once."""

    is_signed = False

    def __init__(self, log: Interactions, items: int, days: float) -> None:
        self._log, self._items, self._window_ms = log, items, round(days * DAY_MS)

    def at(self, time_ms: int) -> np.ndarray:
        """[I] int64."""
        users, counts_I = max(1, len(self._log.user_ids)), np.zeros(self._items, np.int64)
        first, last = self._log.before(time_ms - self._window_ms), self._log.before(time_ms)
        rounds = -(-(last - first) // _PAIRS_AT_ONCE)
        for turn in range(rounds):
            found = [
                block.item_X[chosen] * users + block.user_X[chosen]
                for block in self._log.blocks(first, last)
                for chosen in [(block.item_X < self._items) & (block.item_X % rounds == turn)]
            ]
            counts_I += np.bincount(np.unique(np.concatenate(found)) // users, minlength=self._items)
        return counts_I


class MeanOfValue:
    """The mean of a value over all that came before: (sum + PRIOR m) / (n + PRIOR) with the mean m of all items, so that one rating alone says little.
    Times are best asked for in ascending order. `values` gives the cells of some rows of the log as numbers, NaN for a missing one."""

    is_signed = True  # -inf where there is nothing yet

    def __init__(self, log: Interactions, items: int, values: Callable[[pa.Table], np.ndarray]) -> None:
        self._log, self._items, self._values = log, items, values
        self._restart()

    def _restart(self) -> None:
        self._end, self._sum_I, self._count_I = 0, np.zeros(self._items), np.zeros(self._items, np.int64)

    def at(self, time_ms: int) -> np.ndarray:
        """[I] float64, rounded; -inf for an item without a value."""
        end = self._log.before(time_ms)
        if end < self._end:
            self._restart()
        assert self._log.rows is not None
        for _, block in self._log.rows.blocks(self._end, end):
            item_X, value_X = block.column("#item").to_numpy(), self._values(block)
            known = (item_X < self._items) & ~np.isnan(value_X)
            np.add.at(self._sum_I, item_X[known], value_X[known])  # sequentially: no bit depends on the blocks
            np.add.at(self._count_I, item_X[known], 1)
        self._end = end
        mean = self._sum_I.sum() / max(1, self._count_I.sum())
        return np.where(self._count_I > 0, np.round((self._sum_I + PRIOR * mean) / (self._count_I + PRIOR), _DECIMALS), -np.inf)
