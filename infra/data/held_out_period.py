"""The period that is held out for measuring: from the [evaluation] of a mapping, or the last part of the positives.

Here: its start and end, checked against the data. Not here: the events before it, and the users who are measured (mapped_catalogue.py).
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from infra.data.interactions import Interactions, times_of_constant
from infra.data.mapping import Holdout
from infra.data.spool import RowColumn
from schemas.errors import Misconfigured

_HELD_OUT_SHARE = 0.15
Reject = Callable[[str, str], Misconfigured]


@dataclass(frozen=True, slots=True)
class HeldOutPeriod:
    """[start, end) in ms since 1970: nothing from `start` on becomes an event; items taken before `end` are the right answers."""

    start_ms: int
    end_ms: int


def find_period(holdout: Holdout, positives: Interactions, history: Interactions, reject: Reject) -> HeldOutPeriod:
    """The period of a catalogue with positives. Raises the error of `reject` for a time that cannot be read or is outside the data."""
    times = positives.time_X
    last = int(times[-1])
    if not holdout.hold_out:
        return HeldOutPeriod(max(last, int(history.time_X[-1])) + 1, last + 1)
    end = last + 1 if holdout.end is None else _read_time(holdout.end, "until", times, reject)
    if holdout.start is not None:
        start = _read_time(holdout.start, "from", times, reject)
    else:
        count = positives.before(end)
        start = int(times[min(count - 1, int(count * (1 - _HELD_OUT_SHARE)))])
    if start >= end:
        raise reject("[evaluation] until", f"= {holdout.end} must come after the time from which is measured, {_spelt(start)}")
    return HeldOutPeriod(start, min(end, last + 1))


def _read_time(value: str | float, key: str, times: RowColumn, reject: Reject) -> int:
    found = times_of_constant(value)
    if found <= 0:
        raise reject(f"[evaluation] {key}", f"is {value!r}, expected a date or time like 2011-10-01")
    if not times[0] < found <= times[-1] and not (key == "until" and found > times[-1]):
        raise reject(
            f"[evaluation] {key}",
            f"= {value} must lie within the positives, which are from {_spelt(int(times[0]))} to {_spelt(int(times[-1]))}",
        )
    return found


def _spelt(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1_000, dt.UTC).isoformat(timespec="seconds")
