"""Rates and counts of items from what was shown and what users did, as of ascending times (schemas/statistics.py defines them).

Here: logs as flags, counters with a window, one derived feature (`ShownStatistic`), and which features a mapping gets that names none. Not here: the
counts of positives that older mappings name (item_statistics.py).
Memory: one whole number for each item, counter and group of events; logs stay in spools.

Arrays: I items, G groups, X events, R rows.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from infra.data.interactions import Interactions, read_interactions
from infra.data.mapping_source import FeatureSource
from infra.data.shown_impressions import ShownRows
from infra.data.spool import Spool, SpoolBounds
from schemas.ids import Id, IdKind
from schemas.statistics import coarse_counts, fit_windows, smoothed_rates

CLICK, SHOWN, TAKEN = "click", "shown", "taken"
_COLUMNS = ("#user", "#item", "#kind", "#time")
_GROUPS_MAX, _KINDS_MAX, _OUTCOMES_MAX = 3, 3, 3


def read_shown_log(shown: ShownRows, kind: IdKind, items: Sequence[Id], bounds: SpoolBounds) -> Interactions:
    """All shown rows in order of time. `kinds` are the click and the outcomes; a row's code holds a bit for each that came of it."""
    found = read_interactions(shown.table, kind, items, bounds, shown.table.spool.schema.names)
    spool = Spool(pa.schema([(name, pa.int64()) for name in _COLUMNS]), bounds)
    assert found.rows is not None
    for _, block in found.rows.blocks():
        rows = shown.table.rows(block)
        code_R = shown.clicked(rows).astype(np.int64)
        for bit, came_R in enumerate(shown.flags_of(rows).values(), start=1):
            code_R |= came_R.astype(np.int64) << bit
        columns = [rows.numbers("#user"), rows.numbers("#item"), code_R, rows.numbers("#time")]
        spool.append(pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=spool.schema))
    spool.finish()
    user_X, item_X, kind_X, time_X = (spool.column(name) for name in _COLUMNS)
    return Interactions(found.user_ids, found.item_ids, (CLICK, *shown.outcomes), user_X, item_X, kind_X, time_X)


class WindowCounter:
    """How many events of each item lie in a window before a time, [I] int64: all of them, or those with a kind. Times are best asked for in ascending order:
    then each event is read once as it comes, and once as it leaves the window."""

    def __init__(self, log: Interactions, items: int, window_ms: int | None, kind: int | None, bits: bool) -> None:
        self._log, self._window, self._kind, self._bits = log, window_ms, kind, bits
        self._items, self._begin, self._end = items, 0, 0
        self._counts_I = np.zeros(items, np.int64)

    def at(self, time_ms: int) -> np.ndarray:
        """The counts as of a time."""
        begin = 0 if self._window is None else self._log.before(time_ms - self._window)
        end = self._log.before(time_ms)
        if begin < self._begin or end < self._end:
            self._counts_I, self._begin, self._end = np.zeros(self._items, np.int64), begin, begin
        self._counts_I = self._counts_I + self._count(self._end, end) - self._count(self._begin, begin)
        self._begin, self._end = begin, end
        return self._counts_I

    def _count(self, first: int, last: int) -> np.ndarray:
        found_I = np.zeros(self._items, np.int64)
        for block in self._log.blocks(first, last):
            counted = block.item_X < self._items
            if self._kind is not None:
                counted &= (block.kind_X >> self._kind & 1 > 0) if self._bits else (block.kind_X == self._kind)
            found_I += np.bincount(block.item_X[counted], minlength=self._items)
        return found_I


class ShownStatistic:
    """One feature: a rate or a count of each item, or of the group that the item is in (`group_I`, codes; -1 = in none, which has no events)."""

    def __init__(self, source: FeatureSource, log: Interactions, items: int, group_I: np.ndarray | None, bits: bool) -> None:
        window = source.window_ms
        name = source.rate or source.count
        kind = log.kinds.index(name) if name in log.kinds else None
        self.is_rate, self._group_I = source.rate is not None, group_I
        self._all = WindowCounter(log, items, window, None if self.is_rate else kind, bits)
        self._positive = WindowCounter(log, items, window, kind, bits) if self.is_rate else None

    def at(self, time_ms: int) -> np.ndarray:
        """[I] float64."""
        counts_I = self._grouped(self._all.at(time_ms))
        if self._positive is None:
            found_I = coarse_counts(counts_I)
        else:
            found_I = smoothed_rates(self._grouped(self._positive.at(time_ms)), counts_I)
        return found_I if self._group_I is None else np.where(self._group_I >= 0, found_I[self._group_I], 0.0)

    def _grouped(self, counts_I: np.ndarray) -> np.ndarray:
        """[G] counts of the groups, or those of the items."""
        if self._group_I is None:
            return counts_I
        counted = self._group_I >= 0
        found_G = np.zeros(int(self._group_I.max(initial=-1)) + 1, np.int64)
        np.add.at(found_G, self._group_I[counted], counts_I[counted])
        return found_G


def default_statistics(outcomes: Sequence[str], kinds: Sequence[str], groups: Sequence[str], span_ms: int) -> Mapping[str, FeatureSource]:
    """The features that a mapping with impressions gets where it names none of behaviours: rates of the click and of each outcome of the item and of its
    groups, how often it was shown in windows that fit the log, and, of behaviours in a file of their own (`kinds`, none without such a file), how
    often it was taken and which share of that was of each kind."""
    return {source.name: source for source in _defaults(outcomes, kinds, groups, span_ms)}


def _defaults(outcomes: Sequence[str], kinds: Sequence[str], groups: Sequence[str], span_ms: int) -> Iterator[FeatureSource]:
    rates = (CLICK, *outcomes[:_OUTCOMES_MAX])
    for by in (None, *groups[:_GROUPS_MAX]):
        of_group = "" if by is None else f"_of_{by}"
        yield from (FeatureSource(name=f"rate_{name}{of_group}", rate=name, by=by, realtime=True) for name in rates)
    yield FeatureSource(name="shown", count=SHOWN, realtime=True)
    for name in fit_windows(span_ms):
        yield FeatureSource(name=f"shown_{name}", count=SHOWN, window=name, realtime=True)
    if kinds:
        yield FeatureSource(name="taken", count=TAKEN, realtime=True)
        yield FeatureSource(name="taken_together", taken_together=32)
    if len(kinds) > 1:
        yield from (FeatureSource(name=f"rate_{kind}"[:60], rate=kind, realtime=True) for kind in kinds[1 : 1 + _KINDS_MAX])
