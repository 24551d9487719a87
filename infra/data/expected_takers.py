"""How often an item will be taken soon, predicted from the past of all items: the feature that `expected_days` in a mapping derives from behaviours.

Here: the expectation as of a time. Not here: other statistics (log_statistics.py), items taken by the same users (taken_together.py).
Why: the way from the counts of one month to the next is the same for all users, so an error in it affects every answer. The data has few months. A
network with many weights learns this differently with every seed. A dozen weights, learnt from every item in every week, stay the same.

    as of a time    log1p of: different takers in the window, in parts and in multiples of it, and ever; behaviours in the window; days
                    since the first and the last
    learnt from     those numbers at cuts a quarter of a window apart, and the takers in the window that follows each cut; items taken in
                    the window before it. Takers are divided by the mean of their cut, so that seasons are not learnt
    by              Poisson regression with a small ridge; with too few cuts, the count of the last window is the expectation

Invariant: an expectation as of t does not depend on anything at t or later: a cut is used only when its window is over.
Source: scikit-learn, PoissonRegressor.

Arrays: I items, X behaviours, P pairs of item and user, R examples, F numbers.
"""

from dataclasses import dataclass

import numpy as np

from infra.clock import DAY_MS
from infra.data.interactions import Interactions

PAST_ROWS_MAX = 2_000_000  # only the latest behaviours before a time are used, because they are in memory
CUTS_MAX = 52
EXAMPLES_MAX = 4_000  # from one cut
AVERAGE = 100.0  # the expectation for the average item of the last window
_WINDOWS = (0.25, 0.5, 1.0, 2.0, 3.0, np.inf)
_LATEST = 2  # place of the window itself among them
_RIDGE = 0.01
_CUTS_MIN = 3
_LOG_MAX = 8.0


@dataclass(frozen=True)
class _Examples:
    """One cut: numbers [R, F] float32 and takers of the window after it, over their mean, [R]."""

    numbers_RF: np.ndarray
    takers_R: np.ndarray


class ExpectedTakers:
    """Takers in the next `days` as of any time, `AVERAGE` for the average item; cuts are those of a calendar on which `anchor_ms` is one."""

    is_signed = False  # a negative number means unknown

    def __init__(self, positives: Interactions, items: int, days: float, anchor_ms: int) -> None:
        self._positives, self._items, self._anchor_ms = positives, items, anchor_ms
        self._window_ms = max(4, round(days * DAY_MS))
        self._cuts: dict[int, _Examples] = {}

    def at(self, time_ms: int) -> np.ndarray:
        """[I] float64, rounded; negative for an item without earlier takers."""
        past_IF = past_numbers(self._positives, self._items, time_ms, self._window_ms)
        examples = [found for cut in self._plan_cuts(time_ms) if len((found := self._learn_from(cut)).takers_R)]
        log_I = _expect_log(examples, past_IF) if len(examples) >= _CUTS_MIN else past_IF[:, _LATEST]
        rate_I = np.exp(np.clip(log_I, -_LOG_MAX, _LOG_MAX))
        recent_I = past_IF[:, _LATEST] > 0
        scale = AVERAGE / rate_I[recent_I].mean() if recent_I.any() else AVERAGE
        return np.where(past_IF[:, len(_WINDOWS) - 1] > 0, np.round(rate_I * scale, 2), -1.0)

    def _plan_cuts(self, time_ms: int) -> list[int]:
        """The latest cuts whose window is over at a time and that have a window before them."""
        if not len(self._positives):
            return []
        step = self._window_ms // 4
        last = self._anchor_ms + (time_ms - self._window_ms - self._anchor_ms) // step * step
        return list(range(last, int(self._positives.time_X[0]) + self._window_ms - 1, -step))[:CUTS_MAX]

    def _learn_from(self, cut_ms: int) -> _Examples:
        if cut_ms not in self._cuts:
            past_IF = past_numbers(self._positives, self._items, cut_ms, self._window_ms)
            recent = np.flatnonzero(past_IF[:, _LATEST] > 0)
            chosen = recent[:: max(1, -(-len(recent) // EXAMPLES_MAX))]
            takers_R = _count_takers(*self._after(cut_ms), self._items)[chosen].astype(np.float64)
            takers_R = takers_R / takers_R.mean() if takers_R.any() else takers_R[:0]
            self._cuts[cut_ms] = _Examples(past_IF[chosen[: len(takers_R)]].astype(np.float32), takers_R)
        return self._cuts[cut_ms]

    def _after(self, cut_ms: int) -> tuple[np.ndarray, np.ndarray]:
        """(items, users) of the catalogue's behaviours in the window after a cut; of a large one the first."""
        first, end = self._positives.before(cut_ms), self._positives.before(cut_ms + self._window_ms)
        part = slice(first, min(end, first + PAST_ROWS_MAX))
        item_X, user_X = self._positives.item_X[part], self._positives.user_X[part]
        return item_X[item_X < self._items], user_X[item_X < self._items]


def past_numbers(positives: Interactions, items: int, time_ms: int, window_ms: int) -> np.ndarray:
    """The inputs of the regression as of a time: [I, F] float64, 0 for nothing."""
    before = positives.before(time_ms)
    part = slice(max(0, before - PAST_ROWS_MAX), before)
    item_X, user_X, time_X = positives.item_X[part], positives.user_X[part], positives.time_X[part]
    known_X = item_X < items
    item_X, user_X, age_X = item_X[known_X], user_X[known_X], time_ms - time_X[known_X]
    _, latest_P = np.unique((item_X * (user_X.max(initial=0) + 1) + user_X)[::-1], return_index=True)
    item_P, age_P = item_X[::-1][latest_P], age_X[::-1][latest_P]
    counts = [np.bincount(item_P[age_P <= share * window_ms], minlength=items) for share in _WINDOWS]
    counts.append(np.bincount(item_X[age_X <= window_ms], minlength=items))
    first_I, last_I = np.zeros(items), np.zeros(items)
    last_I[item_X] = age_X / DAY_MS  # of several behaviours, the one written last stays
    first_I[item_X[::-1]] = age_X[::-1] / DAY_MS
    return np.log1p(np.stack([*counts, first_I, last_I], axis=1))


def _count_takers(item_X: np.ndarray, user_X: np.ndarray, items: int) -> np.ndarray:
    """Different users of each item, [I]."""
    users = int(user_X.max(initial=0)) + 1
    return np.bincount(np.unique(item_X * users + user_X) // users, minlength=items)


def _expect_log(examples: list[_Examples], past_IF: np.ndarray) -> np.ndarray:
    """The logarithm of each item's rate, [I], learnt from the examples."""
    from sklearn.linear_model import PoissonRegressor

    numbers_RF = np.concatenate([e.numbers_RF for e in examples]).astype(np.float64)
    mean_F, scale_F = numbers_RF.mean(axis=0), np.maximum(numbers_RF.std(axis=0), 1e-9)
    learnt = PoissonRegressor(alpha=_RIDGE, solver="newton-cholesky", max_iter=100)
    learnt.fit((numbers_RF - mean_F) / scale_F, np.concatenate([e.takers_R for e in examples]))
    return np.asarray((past_IF - mean_F) / scale_F @ learnt.coef_)
