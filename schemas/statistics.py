"""Statistics of items and of users as of a time, defined once: which events count, and how counts become the number that a model reads.

    window   events at times in [begin, t), begin = t - window rounded down to a step, without a window all before t: an event at t is not yet known at t
    rate     log-odds of the smoothed share of positives, less the log-odds of the share of all: 0 where nothing is known
    count    two significant digits; a feature's log1p makes the number
    exact    the number of events
    decayed  a count in which an event weighs 1 in the first half-life, 1/2 in the second, ..., 1/32 in the sixth, and then nothing; two significant digits
    first, last   whole days since the first or last event; NEVER without any

A window begins on a whole step: a minute, or an hour for windows of a day and more. So a stream forgets whole steps and needs no log of events.
A rate is smoothed towards the share of all items, or of all users, with the weight of `PRIOR` events. It is the difference of two log-odds, which a linear
layer can use at once. It also stays the same for an item without events while the share of all moves. Rates and counts are coarse, so that an item is
published again only after a change that matters. Sums of counts are whole numbers: their order does not matter, and equal counts give equal bits.

A statistic belongs to the scope of its feature. That of an item counts the events of items that exist; that of a user counts all events of the user.

Arrays: I items, or users; G groups.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
PRIOR = 20.0
RATE_STEP = 0.05
_WINDOWS = {"1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS, "28d": 28 * DAY_MS, "365d": 365 * DAY_MS}
_WINDOWS_MAX = 4
_HALF_LIVES = 6
_SPANS_MIN = 2.0
NEVER = -1.0
CLICK, SHOWN, TAKEN = "click", "shown", "taken"
OF_USER = "user:"  # before the name of a user's statistic where those of items and users stand together


class Log(enum.StrEnum):
    """The topic that a statistic counts."""

    BEHAVIOURS = "behaviours"
    IMPRESSIONS = "impressions"


class Measure(enum.StrEnum):
    """What becomes of the counts."""

    RATE = "rate"
    COUNT = "count"
    EXACT = "exact"
    DECAYED = "decayed"
    FIRST = "first"
    LAST = "last"


class Counter(NamedTuple):
    """One whole number kept for each item or user: the events of `kinds` (empty: any) of a log in a window (None: all). With `edge` "first" or "last": the
    time of that event."""

    log: Log
    kinds: tuple[str, ...]
    window_ms: int | None
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Statistic:
    """One number of each item or user, or of all items with its value of the feature `by`.
    The kinds are kinds of behaviour, or outcomes of shown items (`CLICK` is one). Of a rate they are the positive ones. None given means every event.
    `window_ms` of a decayed count is its half-life."""

    log: Log
    measure: Measure
    kinds: tuple[str, ...] = ()
    by: str | None = None
    window_ms: int | None = None

    @property
    def is_edge(self) -> bool:
        """Whether it is about one event, the first or the last."""
        return self.measure in (Measure.FIRST, Measure.LAST)

    @property
    def nothing(self) -> float:
        """The number without any event."""
        return NEVER if self.is_edge else 0.0

    @property
    def counters(self) -> tuple[Counter, ...]:
        """Its inputs: of a rate positives and all, of a decayed count windows of one half-life, two, and so on, otherwise one."""
        if self.is_edge:
            return (Counter(self.log, self.kinds, None, str(self.measure)),)
        if self.measure is Measure.DECAYED:
            return tuple(Counter(self.log, self.kinds, lives * (self.window_ms or DAY_MS)) for lives in range(1, _HALF_LIVES + 1))
        counted = Counter(self.log, self.kinds, self.window_ms)
        return (counted, Counter(self.log, (), self.window_ms)) if self.measure is Measure.RATE else (counted,)

    def numbers(
        self,
        counts: Callable[[Counter], np.ndarray],
        time_ms: int | np.ndarray,
        group_I: np.ndarray | None = None,
        totals: Callable[[Counter], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The number of each item as of a time, float64 [I], from the int64 [I] of each counter. `group_I`: codes of the values of `by`, -1 for none.
        `totals`: the sum of all of each counter where `counts` has only some; `time_ms` may then be a time for each."""
        if self.is_edge:
            seen_I = counts(self.counters[0])
            return np.where(seen_I >= 0, (time_ms - seen_I) // DAY_MS, NEVER)
        counts_NG = [grouped(counts(counter), group_I) for counter in self.counters]
        if self.measure is Measure.RATE:
            found_G = smoothed_rates(*counts_NG, *(map(totals, self.counters) if totals is not None else map(np.sum, counts_NG)))
        elif self.measure is Measure.DECAYED:
            found_G = decayed_counts(counts_NG)
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


def first_bucket(time_ms: Any, window_ms: int | None) -> Any:
    """The oldest step that lies in the window before a time."""
    return 0 if window_ms is None else (time_ms - window_ms) // step_ms(window_ms)


def window_begin(time_ms: Any, window_ms: int) -> Any:
    """The time, or times, from which events lie in the window before a time."""
    return first_bucket(time_ms, window_ms) * step_ms(window_ms)


def grouped(counts_I: np.ndarray, group_I: np.ndarray | None) -> np.ndarray:
    """The whole counts of groups, int64 [G]; without groups those of the items. Items of no group count nowhere."""
    if group_I is None:
        return counts_I
    found_G = np.zeros(int(group_I.max(initial=-1)) + 1, np.int64)
    counted = group_I >= 0
    np.add.at(found_G, group_I[counted], counts_I[counted])
    return found_G


def fit_windows(span_ms: int, spans_max: float = 400.0) -> dict[str, int]:
    """The windows in ms, by name, that suit a log of this length: the longest four that fit into it at least twice and at most `spans_max` times."""
    fitting = {name: ms for name, ms in _WINDOWS.items() if _SPANS_MIN * ms <= span_ms <= spans_max * ms}
    return dict(list(fitting.items())[-_WINDOWS_MAX:])


def smoothed_rates(positives_I: np.ndarray, shown_I: np.ndarray, all_positives: Any = None, all_shown: Any = None) -> np.ndarray:
    """The rate of each item from whole counts, a multiple of `RATE_STEP`: float64 [I]. `all_positives`, `all_shown`: sums over all items; None: over these."""
    all_positives, all_shown = (positives_I.sum(), shown_I.sum()) if all_positives is None else (all_positives, all_shown)
    share = (all_positives + 1.0) / (all_shown + 2.0)
    rate_I = (positives_I + PRIOR * share) / (shown_I + PRIOR)
    odds_I = np.log(rate_I / np.maximum(1.0 - rate_I, 1e-9)) - np.log(share / (1.0 - share))
    return np.round(np.round(odds_I / RATE_STEP) * RATE_STEP, 2) + 0.0


def coarse_counts(counts_I: np.ndarray) -> np.ndarray:
    """Whole counts rounded down to two significant digits: float64 [I]."""
    step_I = 10.0 ** np.maximum(np.floor(np.log10(np.maximum(counts_I, 1))) - 1, 0)
    return np.asarray(np.floor(counts_I / step_I) * step_I)


def decayed_counts(counts_NI: Sequence[np.ndarray]) -> np.ndarray:
    """The decayed count of each item from its whole counts in windows of one half-life, two, and so on: float64 [I].

    In units of the smallest weight it is a whole number, so no order of additions matters."""
    last = len(counts_NI) - 1
    units_I = sum((count_I << (last - 1 - n) for n, count_I in enumerate(counts_NI[:-1])), counts_NI[-1])
    return coarse_counts(units_I) / 2**last
