"""Periods and times: the part held out for evaluation, the window of sampled impressions, and the grid of times of item features.

Here: pure functions of a mapping and of the times in its log. Not here: the events at these times (mapped_catalogue.py).
"""

import datetime as dt
import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.clock import DAY_MS
from infra.data.columns import decode_times
from infra.data.interactions import Interactions
from infra.data.mapping import DataMapping, reject
from schemas.errors import Misconfigured
from schemas.statistics import HOUR_MS

_WINDOW_DAYS_MAX = 28  # a longer window leaves so few requests that a network knows them by heart
_HELD_OUT_SHARE = 0.15
_CUTS_LEAST = 10  # of sampled impressions of items that pass
_LIVES_MAX = 2_000_000
SHORT_LIFE = 1 / 3  # of a log; news have .2 of three days, a shop's items .8 of a year, films .6 of twenty years
_TIMES_LEAST = 50  # of fewer none is far from the others
_QUESTIONS_MAX = 10  # cuts of a period that is measured
_SHOWN_TIMES = 48  # of item features, in a log of shown items of a few days
_YEAR_MS = 31_556_952_000
_CALENDAR_ENDS_MS = 8_000 * _YEAR_MS


@dataclass(frozen=True, slots=True)
class HeldOutPeriod:
    """[start, end) in ms since 1970: nothing from `start` on becomes an event; items taken before `end` are the right answers."""

    start_ms: int
    end_ms: int


def find_period(mapping: DataMapping, times: np.ndarray, last_told: int) -> HeldOutPeriod:
    """From the [evaluation] of the mapping, or the last part of the positives, whose `times` ascend. `last_told`: the last usual time of any behaviour.
    Raises Misconfigured."""
    holdout, last, usual = mapping.holdout, int(times[-1]), usual_times(times)[1]
    if not holdout.hold_out:
        return HeldOutPeriod(max(usual, last_told) + 1, usual + 1)
    if holdout.split == "user":
        if mapping.impressions is not None or holdout.start is not None or holdout.end is not None:
            raise _refuse(mapping, "split", '= "user" is for sampled impressions, without from and until; leave it out')
        return HeldOutPeriod(last_told, last_told + 1)
    end = usual + 1 if holdout.end is None else _evaluation_time(mapping, times, holdout.end, "until")
    if holdout.start is not None:
        start = _evaluation_time(mapping, times, holdout.start, "from")
    else:
        count = bisect_left(times, end)
        start = int(times[min(count - 1, int(count * (1 - _HELD_OUT_SHARE)))])
    if start >= end and holdout.end is None:
        raise _refuse(mapping, "from", f"= {holdout.start} leaves nothing to measure: nearly all positives are before {spell_time(end)}")
    if start >= end:
        raise _refuse(mapping, "until", f"= {holdout.end} must come after the time from which is measured, {spell_time(start)}")
    return HeldOutPeriod(start, min(end, last + 1))


def usual_times(times: np.ndarray) -> tuple[int, int]:
    """The first and the last time without outliers, like 2037 in a log of a week. At each end one of a thousand rows may be an outlier. `times` ascend."""
    first, last = int(times[0]), int(times[-1])
    if len(times) < _TIMES_LEAST:
        return first, last
    far = max(1, len(times) // 1_000)
    low, high = int(times[far]), int(times[len(times) - 1 - far])
    if 2 * (high - low) >= last - first:
        return first, last
    reach = (high - low) // 20
    return int(times[bisect_left(times, low - reach)]), int(times[bisect_right(times, high + reach) - 1])


def _evaluation_time(mapping: DataMapping, times: np.ndarray, value: str | float, key: str) -> int:
    """A time of [evaluation], which has to lie within the positives, or may be after them where it is the end."""
    found, first, last = int(decode_times(pa.array([value]))[0]), int(times[0]), int(times[-1])
    if found <= 0:
        raise _refuse(mapping, key, f"is {value!r}, expected a date or time like 2011-10-01")
    if found <= first or (found > last and key != "until"):
        raise _refuse(mapping, key, f"= {value} must lie within the positives, which are from {spell_time(first)} to {spell_time(last)}")
    return found


def _refuse(mapping: DataMapping, key: str, expectation: str) -> Misconfigured:
    return reject(mapping.path, f"[evaluation] {key}", expectation)


def window_of(mapping: DataMapping, evaluation_ms: int, log_ms: int, items_pass: bool) -> int:
    """The time that a sampled impression looks ahead: the mapping's, else the length of the evaluation, four weeks at most. Without a held-out part at the end
    of the log there is no such length; then it is a share of the log. For items that pass it is at most a tenth of the time before. A longer one leaves few
    cuts, and a network learns only the items that are popular at these."""
    if mapping.sampling.window_days is not None:
        return round(mapping.sampling.window_days * DAY_MS)
    length = evaluation_ms if mapping.holdout.holds_out_the_end else round(_HELD_OUT_SHARE * log_ms)
    if items_pass:
        length = min(length, (log_ms - evaluation_ms) // _CUTS_LEAST)
    return max(1, min(length, _WINDOW_DAYS_MAX * DAY_MS))


def life_of_items(positives: Interactions, first_ms: int, now_ms: int) -> float:
    """How long an item is popular, as a share of the log before `now_ms`: the median over positives. An item is popular from the first tenth of its positives
    to the last. 1 where no item has ten positives. In a long log every n-th positive counts."""
    rows = slice(positives.before(first_ms), positives.before(now_ms))
    step = -(-(rows.stop - rows.start) // _LIVES_MAX) or 1
    item_X, time_X = (np.asarray(column[rows][::step]) for column in (positives.item_X, positives.time_X))
    by_item = np.argsort(item_X, kind="stable")
    item_X, time_X = item_X[by_item], time_X[by_item]
    _, begin_I, count_I = np.unique(item_X, return_index=True, return_counts=True)
    begin_I, count_I = (of[count_I >= 10] for of in (begin_I, count_I))
    if not len(count_I):
        return 1.0
    first_I, last_I = (time_X[begin_I + count_I * tenths // 10] for tenths in (1, 9))
    life_I = last_I - first_I
    shortest = np.argsort(life_I)
    median = np.searchsorted(np.cumsum(count_I[shortest]), count_I.sum() / 2)
    return float(life_I[shortest][median] / max(1, now_ms - first_ms))


def cut_period(period: HeldOutPeriod, window_ms: int) -> list[HeldOutPeriod]:
    """The period in equal parts about as long as the window that a sampled impression looks ahead: each is measured from its own beginning on."""
    length = period.end_ms - period.start_ms
    parts = min(_QUESTIONS_MAX, max(1, round(length / window_ms)))
    edges = [period.start_ms + length * part // parts for part in range(parts + 1)]
    return [HeldOutPeriod(start, end) for start, end in itertools.pairwise(edges)]


def cut_of(mapping: DataMapping, window_ms: int) -> int:
    """The distance between cuts of sampled impressions."""
    days = mapping.sampling.every_days
    return window_ms if days is None else round(days * DAY_MS)


def plan_sample_times(mapping: DataMapping, first_ms: int, now_ms: int, window_ms: int) -> list[int]:
    """The times of item features, oldest first. They are `every_days` apart, back from the evaluation time to just before the first positive, because no
    item is known before the first of them. Without `every_days` they are the cuts of sampled impressions, between which there is no request. With shown
    impressions they are a week apart, or as far as the evaluation is long."""
    span, days = now_ms - first_ms, mapping.items.every_days
    of_shown = min(window_ms, 7 * DAY_MS, max(HOUR_MS, span // _SHOWN_TIMES))
    usual = cut_of(mapping, window_ms) if mapping.impressions is None else of_shown
    every = max(usual, span // 52) if days is None else round(days * DAY_MS)
    every = max(every, span // 400 + 1)
    return list(range(now_ms, first_ms - every, -every))[::-1]


def spell_time(time_ms: int) -> str:
    """A time in ms as ISO text, or the year where a calendar has none that late."""
    if time_ms >= _CALENDAR_ENDS_MS:
        return f"the year {1970 + time_ms // _YEAR_MS:,}"
    return dt.datetime.fromtimestamp(time_ms / 1_000, dt.UTC).isoformat(timespec="seconds")
