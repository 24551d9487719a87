"""Statistics of items as of a time, defined once: which events count, and how counts become the number that a model reads.

Here: pure functions of counts and times, for an import and for a stream alike. Not here: counting (infra/data/shown_statistics.py).

    window   events at times in [t - window, t), without a window all before t: an event at t is not yet known at t
    rate     log-odds of the smoothed share of positives, less the log-odds of the share of all items: 0 where nothing is known
    count    two significant digits; a feature's log1p makes the number

A rate is smoothed towards the share of all items with the weight of `PRIOR` events. It is the difference of two log-odds because a linear layer can use that
at once, and because it stays the same for an item without events while the share of all items moves. Rates and counts are coarse, so that an item is told
again only where a number has moved by a step that matters. Sums of counts are whole numbers: their order does not matter, and equal counts give equal bits.

Arrays: I items or groups.
"""

import math

import numpy as np

from schemas.features import Transform

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PRIOR = 20.0
RATE_STEP = 0.05
_WINDOWS = {"1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS, "28d": 28 * DAY_MS, "365d": 365 * DAY_MS}
_WINDOWS_MAX = 3
_SPANS_MIN, _SPANS_MAX = 2.0, 50.0


def fit_windows(span_ms: int) -> dict[str, int]:
    """The windows in ms, by name, that a log of this length can fill: each fits into it at least twice and at most fifty times; the longest three."""
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


def rate_details(values: np.ndarray) -> dict[str, object]:
    """How a model reads a rate: around 0, in units of its deviation."""
    deviation = float(values.std()) if len(values) else 0.0
    return {"transform": Transform.NONE, "mean": 0.0, "scale": round(deviation, 6) if deviation > 1e-3 else 1.0, "default": 0.0}
