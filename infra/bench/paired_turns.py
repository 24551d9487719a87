"""The ratio of a quantile of latencies between two kinds of turns that alternate, and how far chance alone moves it.

Here: the ratio over all turns, and its interval. Not here: the turns (serving/bench/overload.py), latencies (load.py).
A p99 hangs on one answer in a hundred: a few stalls of the machine decide it, and the ratio of two of them differs from run to run though nothing has
changed. So a ratio without its interval says little. A stall touches the answers of one moment together, so turns are drawn again and not answers, and
each turn with its neighbour of the other kind.
Source: Efron, "Bootstrap methods" (1979); percentile interval.
"""

import math
from collections.abc import Sequence

import numpy as np

from infra.bench.load import OK, Latencies
from infra.bench.report import Interval

_DRAWS = 400
_PERCENTILES = (2.5, 97.5)


def ratio_of_turns(over: Sequence[Latencies], under: Sequence[Latencies], share: float) -> Interval:
    """The quantile `share` of all answers in `over`, divided by that of `under`; over[i] and under[i] are neighbours in time."""
    turns, rng = len(over), np.random.default_rng(0)
    drawn = [_ratio(over, under, rng.integers(0, turns, turns), share) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, _PERCENTILES)
    return Interval(_ratio(over, under, range(turns), share), float(low), float(high))


def merge_turns(turns: Sequence[Latencies]) -> Latencies:
    """All of them as one."""
    merged = Latencies()
    for one in turns:
        merged.merge(one)
    return merged


def _ratio(over: Sequence[Latencies], under: Sequence[Latencies], places: Sequence[int] | np.ndarray, share: float) -> float:
    above, below = (merge_turns([turns[at] for at in places]).quantile(OK, share) for turns in (over, under))
    return math.nan if above is None or not below else above / below
