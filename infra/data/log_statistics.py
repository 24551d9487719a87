"""Statistics of each item, or of each user, over a log, as of ascending times.

    counted    counts, rates, days, distinct users, means of a value
    learnt     the takers to expect, and vectors of items that the same users took

Here: counters over a log, and the statistics of it. Not here: the choice of statistics and of the times (inferred_schema.py, mapped_sources.py), the meaning
of numbers that streams keep too (schemas/statistics.py).
Invariant: a value as of t contains nothing from t or later. A negative number means unknown, except of a statistic that `is_signed`.
Memory: one number for each item and counter; logs stay in spools. The latest behaviours before a time, which are learnt from, are in memory.
Source: scikit-learn, scipy. They are loaded where something is learnt.

Arrays: I items, or users; X events; U users; P pairs of item and user; R examples; F numbers; E width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.clock import DAY_MS
from infra.data.interactions import Interactions
from schemas.ids import Id
from schemas.statistics import PRIOR, Counter, Log, Measure, Statistic, window_begin

_PAIRS_AT_ONCE = 4_000_000
_DECIMALS = 3
_PAST_ROWS_MAX = 2_000_000  # only the latest behaviours before a time are learnt from, because they are in memory

AVERAGE = 100.0  # the expectation for the average item of the last window
_CUTS_MIN, _CUTS_MAX = 3, 52
_EXAMPLES_MAX = 4_000  # from one cut
_WINDOWS = (0.25, 0.5, 1.0, 2.0, 3.0, np.inf)
_LATEST = 2  # place of the window itself among them
_RIDGE = 0.01
_LOG_MAX = 8.0

_ITERATIONS = 4
_VECTOR_DECIMALS = 4
_USER_POWER = 0.25
_SIZE_POWER = 0.25


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


# --- expected takers ---


@dataclass(frozen=True)
class _Examples:
    """One cut: numbers [R, F] float32 and takers of the window after it, over their mean, [R]."""

    numbers_RF: np.ndarray
    takers_R: np.ndarray


class ExpectedTakers:
    """How many users will take an item in the next `days`, as of any time, predicted from the past of all items; `AVERAGE` for the average item.

    Why: the way from the counts of one month to the next is the same for all users, so an error in it affects every answer. The data has few months. A
    network with many weights learns this differently with every seed. A dozen weights, learnt from every item in every week, stay the same.

        as of a time    log1p of: different takers in the window, in parts and in multiples of it, and ever; behaviours in the window; days
                        since the first and the last
        learnt from     those numbers at cuts a quarter of a window apart, on a calendar on which `anchor_ms` is one, and the takers in the window that
                        follows each cut; items taken in the window before it. Takers are divided by the mean of their cut, so that seasons are not learnt.
                        A cut is used only when its window is over
        by              Poisson regression with a small ridge; with too few cuts, the count of the last window is the expectation
    """

    is_signed = False  # a negative number means unknown

    def __init__(self, positives: Interactions, items: int, days: float, anchor_ms: int) -> None:
        self._positives, self._items, self._anchor_ms = positives, items, anchor_ms
        self._window_ms = max(4, round(days * DAY_MS))
        self._takers = TakersCount(positives, items, self._window_ms / DAY_MS)
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
        return list(range(last, int(self._positives.time_X[0]) + self._window_ms - 1, -step))[:_CUTS_MAX]

    def _learn_from(self, cut_ms: int) -> _Examples:
        if cut_ms not in self._cuts:
            past_IF = past_numbers(self._positives, self._items, cut_ms, self._window_ms)
            recent = np.flatnonzero(past_IF[:, _LATEST] > 0)
            chosen = recent[:: max(1, -(-len(recent) // _EXAMPLES_MAX))]
            takers_R = self._takers.at(cut_ms + self._window_ms)[chosen].astype(np.float64)
            takers_R = takers_R / takers_R.mean() if takers_R.any() else takers_R[:0]
            self._cuts[cut_ms] = _Examples(past_IF[chosen[: len(takers_R)]].astype(np.float32), takers_R)
        return self._cuts[cut_ms]


def past_numbers(positives: Interactions, items: int, time_ms: int, window_ms: int) -> np.ndarray:
    """The inputs of the regression as of a time: [I, F] float64, 0 for nothing."""
    before = positives.before(time_ms)
    part = slice(max(0, before - _PAST_ROWS_MAX), before)
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


def _expect_log(examples: list[_Examples], past_IF: np.ndarray) -> np.ndarray:
    """The logarithm of each item's rate, [I], learnt from the examples."""
    from sklearn.linear_model import PoissonRegressor

    numbers_RF = np.concatenate([e.numbers_RF for e in examples]).astype(np.float64)
    mean_F, scale_F = numbers_RF.mean(axis=0), np.maximum(numbers_RF.std(axis=0), 1e-9)
    learnt = PoissonRegressor(alpha=_RIDGE, solver="newton-cholesky", max_iter=100)
    learnt.fit((numbers_RF - mean_F) / scale_F, np.concatenate([e.takers_R for e in examples]))
    return np.asarray((past_IF - mean_F) / scale_F @ learnt.coef_)


# --- items taken by the same users ---


class TogetherVectors:
    """Vectors that are near for items which the same users took, [I, E]. As of any time they are those of the latest time of the grid `times_ms` (ascending)
    that is not after it; zeros before the first. The axes of one time are turned onto those of the previous time (orthogonal Procrustes). So a model that is
    trained on one time reads the next.
    """

    is_signed = False  # a negative number means unknown

    def __init__(self, positives: Interactions, items: int, width: int, times_ms: Sequence[int]) -> None:
        self._positives, self._items, self._width, self._times = positives, items, width, np.asarray(times_ms, np.int64)
        self._turned: list[np.ndarray] = []

    def at(self, time_ms: int) -> np.ndarray:
        """[I, E] float64, rounded. The times before it are made first: each is turned onto the one before."""
        place = int(np.searchsorted(self._times, time_ms, "right"))
        while len(self._turned) < place:
            made = together_vectors(self._positives, self._items, self._width, int(self._times[len(self._turned)]))
            self._turned.append(np.round(_turn(made, self._turned[-1]) if self._turned else made, _VECTOR_DECIMALS) + 0.0)
        return self._turned[place - 1] if place else np.zeros((self._items, self._width))


def together_vectors(positives: Interactions, items: int, width: int, time_ms: int) -> np.ndarray:
    """The vectors as of one time, on axes of their own: [I, E] float64.

        matrix    users x items, log1p(count)
        scaling   each row is divided by the fourth root of its number of items; each column by the root of its users plus the users of the average item
        axes      truncated SVD; each axis times the fourth root of its singular value; then length 1. An item without users has zeros

    The average in the columns is a ridge. Without it an item of three users weighs as much as one of three hundred, and the first axes go to such items.
    Low-rank EASE (arXiv 1905.03375) with a ridge of that size has nearly these axes, but inverts a matrix of the catalogue's square.
    """
    from scipy.sparse import csr_array, diags_array
    from sklearn.utils.extmath import randomized_svd

    before = positives.before(time_ms)
    latest = slice(max(0, before - _PAST_ROWS_MAX), before)
    user_X, item_X = positives.user_X[latest], positives.item_X[latest]
    known = item_X < items
    pairs, times = np.unique(np.stack([user_X[known], item_X[known]]), axis=1, return_counts=True)
    users, user_P = np.unique(pairs[0], return_inverse=True)
    taken_UI = csr_array((np.log1p(times), (user_P, pairs[1])), shape=(len(users), items))
    vectors_IE = np.zeros((items, width))
    rank = min(width, len(users), items)
    if not rank:
        return vectors_IE
    items_U, users_I = np.bincount(user_P, minlength=len(users)), np.bincount(pairs[1], minlength=items)
    ridge = len(pairs[1]) / np.count_nonzero(users_I)
    scaled_UI = diags_array(items_U**-_USER_POWER) @ taken_UI @ diags_array((users_I + ridge) ** -0.5)
    _, size_E, axes_EI = randomized_svd(scaled_UI, rank, n_iter=_ITERATIONS, random_state=0)
    vectors_IE[:, :rank] = axes_EI.T * size_E**_SIZE_POWER
    vectors_IE[users_I == 0] = 0.0
    return vectors_IE / np.maximum(np.linalg.norm(vectors_IE, axis=1, keepdims=True), 1e-9)


def _turn(vectors_IE: np.ndarray, onto_IE: np.ndarray) -> np.ndarray:
    """The same vectors, turned as near as can be to those of the time before."""
    from scipy.linalg import orthogonal_procrustes

    rotation_EE, _ = orthogonal_procrustes(vectors_IE, onto_IE)
    return np.asarray(vectors_IE @ rotation_EE)
