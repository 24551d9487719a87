"""Statistics of items as of a time, defined once: which events count, and how counts become the number that a model reads.

    window   events at times in [begin, t), begin = t - window rounded down to a step, without a window all before t: an event at t is not yet known at t
    rate     log-odds of the smoothed share of positives, less the log-odds of the share of all items: 0 where nothing is known
    count    two significant digits; a feature's log1p makes the number
    exact    the number of events
    first, last   whole days since the item's first or last event; NEVER for an item without any

A window begins on a whole step: a minute, or an hour for windows of a day and more. So a stream forgets whole steps and needs no log of events.
A rate is smoothed towards the share of all items with the weight of `PRIOR` events. It is the difference of two log-odds, which a linear layer can use at
once. It also stays the same for an item without events while the share of all items moves. Rates and counts are coarse, so that an item is published
again only after a change that matters. Sums of counts are whole numbers: their order does not matter, and equal counts give equal bits.

Arrays: I items, G groups.
"""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
PRIOR = 20.0
RATE_STEP = 0.05
_WINDOWS = {"1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS, "28d": 28 * DAY_MS, "365d": 365 * DAY_MS}
_WINDOWS_MAX = 3
_SPANS_MIN, _SPANS_MAX = 2.0, 50.0
NEVER = -1.0
CLICK, SHOWN, TAKEN = "click", "shown", "taken"


class Log(enum.StrEnum):
    """The topic that a statistic counts."""

    BEHAVIOURS = "behaviours"
    IMPRESSIONS = "impressions"


class Measure(enum.StrEnum):
    """What becomes of the counts."""

    RATE = "rate"
    COUNT = "count"
    EXACT = "exact"
    FIRST = "first"
    LAST = "last"


class Counter(NamedTuple):
    """One whole number kept for each item: the events of `kinds` (empty: any) of a log in a window (None: all). With `edge` "first" or "last": the time of
    that event."""

    log: Log
    kinds: tuple[str, ...]
    window_ms: int | None
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Statistic:
    """One number of each item, or of all items with its value of the feature `by`.
    The kinds are kinds of behaviour, or outcomes of shown items (`CLICK` is one). Of a rate they are the positive ones. None given means every event."""

    log: Log
    measure: Measure
    kinds: tuple[str, ...] = ()
    by: str | None = None
    window_ms: int | None = None

    @property
    def counters(self) -> tuple[Counter, ...]:
        """Its inputs: of a rate positives and all, otherwise one."""
        if self.measure in (Measure.FIRST, Measure.LAST):
            return (Counter(self.log, self.kinds, None, str(self.measure)),)
        counted = Counter(self.log, self.kinds, self.window_ms)
        return (counted, Counter(self.log, (), self.window_ms)) if self.measure is Measure.RATE else (counted,)

    def numbers(self, counts: Callable[[Counter], np.ndarray], time_ms: int, group_I: np.ndarray | None = None) -> np.ndarray:
        """The number of each item as of a time, float64 [I], from the int64 [I] of each counter. `group_I`: codes of the values of `by`, -1 for none."""
        if self.measure in (Measure.FIRST, Measure.LAST):
            seen_I = counts(self.counters[0])
            return np.where(seen_I >= 0, (time_ms - seen_I) // DAY_MS, NEVER)
        counts_NG = [grouped(counts(counter), group_I) for counter in self.counters]
        if self.measure is Measure.RATE:
            found_G = smoothed_rates(*counts_NG)
        else:
            found_G = coarse_counts(counts_NG[0]) if self.measure is Measure.COUNT else counts_NG[0].astype(np.float64)
        return found_G if group_I is None else np.where(group_I >= 0, np.append(found_G, 0.0)[group_I], 0.0)


def decode_statistic(raw: Mapping[str, Any]) -> Statistic:
    """From the plain values of `dataclasses.asdict`. Raises KeyError, TypeError, ValueError."""
    kinds = tuple(map(str, raw.get("kinds", ())))
    return Statistic(**{**raw, "log": Log(raw["log"]), "measure": Measure(raw["measure"]), "kinds": kinds})


def counters_of(statistics: Iterable[Statistic]) -> tuple[Counter, ...]:
    """The distinct counters of some statistics, in a fixed order."""
    return tuple(dict.fromkeys(counter for statistic in statistics for counter in statistic.counters))


def step_ms(window_ms: int) -> int:
    """The step on which a window begins."""
    return MINUTE_MS if window_ms < DAY_MS else HOUR_MS


def bucket_of(time_ms: int | np.ndarray, window_ms: int | None) -> Any:
    """The number of the step in which an event lies; 0 where nothing is ever forgotten."""
    return time_ms * 0 if window_ms is None else time_ms // step_ms(window_ms)


def first_bucket(time_ms: int, window_ms: int | None) -> int:
    """The oldest step that lies in the window before a time."""
    return 0 if window_ms is None else (time_ms - window_ms) // step_ms(window_ms)


def window_begin(time_ms: int, window_ms: int) -> int:
    """The time from which events lie in the window before a time."""
    return first_bucket(time_ms, window_ms) * step_ms(window_ms)


def grouped(counts_I: np.ndarray, group_I: np.ndarray | None) -> np.ndarray:
    """The whole counts of groups, int64 [G]; without groups those of the items. Items of no group count nowhere."""
    if group_I is None:
        return counts_I
    found_G = np.zeros(int(group_I.max(initial=-1)) + 1, np.int64)
    counted = group_I >= 0
    np.add.at(found_G, group_I[counted], counts_I[counted])
    return found_G


def fit_windows(span_ms: int) -> dict[str, int]:
    """The windows in ms, by name, that suit a log of this length: the longest three that fit into it at least twice and at most fifty times."""
    fitting = {name: ms for name, ms in _WINDOWS.items() if _SPANS_MIN * ms <= span_ms <= _SPANS_MAX * ms}
    return dict(list(fitting.items())[-_WINDOWS_MAX:])


def smoothed_rates(positives_I: np.ndarray, shown_I: np.ndarray) -> np.ndarray:
    """The rate of each item from whole counts, a multiple of `RATE_STEP`: float64 [I]."""
    share = (int(positives_I.sum()) + 1.0) / (int(shown_I.sum()) + 2.0)
    rate_I = (positives_I + PRIOR * share) / (shown_I + PRIOR)
    odds_I = np.log(rate_I / np.maximum(1.0 - rate_I, 1e-9)) - math.log(share / (1.0 - share))
    return np.round(np.round(odds_I / RATE_STEP) * RATE_STEP, 2) + 0.0


def coarse_counts(counts_I: np.ndarray) -> np.ndarray:
    """Whole counts rounded down to two significant digits: float64 [I]."""
    step_I = 10.0 ** np.maximum(np.floor(np.log10(np.maximum(counts_I, 1))) - 1, 0)
    return np.asarray(np.floor(counts_I / step_I) * step_I)
