"""Rates and counts of items from what was shown and what users did, as of ascending times (schemas/statistics.py defines them).

Here: logs as flags, counters over a log, one statistic of it (`LogStatistic`), and which features a mapping gets that names none. Not here: statistics that
no stream keeps (item_statistics.py).
Memory: one whole number for each item and counter; logs stay in spools.

Arrays: I items, X events, R rows.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from infra.data.interactions import Interactions, read_interactions
from infra.data.mapping_source import FeatureSource
from infra.data.shown_impressions import ShownRows, request_codes
from infra.data.sorted_rows import sort_rows
from infra.data.spool import Spool, SpoolBounds
from schemas.ids import Id, IdKind
from schemas.statistics import CLICK, SHOWN, TAKEN, Counter, Measure, Statistic, fit_windows, window_begin

_COLUMNS = ("#user", "#item", "#kind", "#time")
_REQUEST = "#request"
_GROUPS_MAX, _KINDS_MAX, _OUTCOMES_MAX = 3, 3, 3


def read_shown_log(shown: ShownRows, kind: IdKind, items: Sequence[Id], bounds: SpoolBounds) -> Interactions:
    """What was shown, in order of time, as the events tell it: each item of a request once, at the time of the request's first row. `kinds` are the click and
    the outcomes; a row's code holds a bit for each that came of any of its rows."""
    found = read_interactions(shown.table, kind, items, bounds, shown.table.spool.schema.names)
    schema = pa.schema([(name, pa.int64()) for name in (*_COLUMNS, _REQUEST)])
    by_request = sort_rows(_coded_rows(shown, found, schema), schema, ["#user", _REQUEST], bounds)
    log = pa.schema([(name, pa.int64()) for name in _COLUMNS])
    spool = Spool(log, bounds)
    for table in sort_rows(_once_a_request(by_request, log), log, ["#time"], bounds):
        for batch in table.combine_chunks().to_batches():
            spool.append(batch)
    spool.finish()
    user_X, item_X, kind_X, time_X = (spool.column(name) for name in _COLUMNS)
    return Interactions(found.user_ids, found.item_ids, (CLICK, *shown.outcomes), user_X, item_X, kind_X, time_X)


def _coded_rows(shown: ShownRows, found: Interactions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    assert found.rows is not None
    for _, block in found.rows.blocks():
        rows = shown.table.rows(block)
        code_R = shown.clicked(rows).astype(np.int64)
        for bit, came_R in enumerate(shown.flags_of(rows).values(), start=1):
            code_R |= came_R.astype(np.int64) << bit
        columns = [rows.numbers("#user"), rows.numbers("#item"), code_R, rows.numbers("#time"), request_codes(rows)]
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=schema)


def _once_a_request(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Of rows that lie together by user and request, one for each item. A request may go over the end of a table."""
    left_CR = np.empty((len(_COLUMNS) + 1, 0), np.int64)
    for table in (*tables, None):
        rows_CR = left_CR
        if table is not None:
            rows_CR = np.hstack([left_CR, np.stack([table.column(name).to_numpy() for name in (*_COLUMNS, _REQUEST)])])
        user_R, item_R, code_R, time_R, request_R = rows_CR
        starts = np.flatnonzero(np.r_[True, (np.diff(user_R) != 0) | (np.diff(request_R) != 0)][: len(user_R)])
        end = len(user_R) if table is None or not len(starts) else int(starts[-1])
        left_CR, starts = rows_CR[:, end:], starts[starts < end]
        if not end:
            continue
        number_R = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, end]))
        time_R = np.minimum.reduceat(time_R[:end], starts)[number_R]
        order = np.lexsort((item_R[:end], number_R))
        first = np.flatnonzero(np.r_[True, (np.diff(item_R[order]) != 0) | (np.diff(number_R[order]) != 0)])
        chosen = order[first]
        columns = [user_R[chosen], item_R[chosen], np.bitwise_or.reduceat(code_R[order], first), time_R[chosen]]
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=schema)


class LogCounter:
    """A counter (schemas/statistics.py) over a log, int64 [I]. Times are best asked for in ascending order: then each event is read once as it comes, and once
    as it leaves the window."""

    def __init__(self, counter: Counter, log: Interactions, items: int, bits: bool) -> None:
        self._counter, self._log, self._items, self._bits = counter, log, items, bits
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
            counted = block.item_X < self._items
            if self._counter.kinds:
                mask = sum(1 << code for code in self._codes)
                counted &= (block.kind_X & mask > 0) if self._bits else np.isin(block.kind_X, self._codes)
            yield block.item_X[counted], block.time_X[counted]


class LogStatistic:
    """A statistic (schemas/statistics.py) over a log: one number of each item, or of the group that the item is in (`group_I`, codes; -1 = in none). `bits`: a
    kind of the log is a set of outcomes."""

    def __init__(self, statistic: Statistic, log: Interactions, items: int, group_I: np.ndarray | None = None, bits: bool = False) -> None:
        self._statistic, self._group_I = statistic, group_I
        self._counters = {counter: LogCounter(counter, log, items, bits) for counter in statistic.counters}
        self.is_rate = statistic.measure is Measure.RATE

    def at(self, time_ms: int) -> np.ndarray:
        """[I] float64."""
        return self._statistic.numbers(lambda counter: self._counters[counter].at(time_ms), time_ms, self._group_I)


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
