"""Columns of [items] that seem to know what happens after the evaluation time: totals of the whole period, a last sale, a final rank.

A column without a time counts as known at every time, so one that sums up the whole period gives the answer away in training and in
measuring alike. Nothing in a file says so; but such a column goes with what follows more than what came before explains.
Here: that sign, for columns of numbers. Not here: features that are made as of a time (item_states.py), which cannot know.
Measure: the partial rank correlation of the column with the positives of the held-out period, given those of all the time before it, and
of an equally long time just before it.

Arrays: I items, P plain counts.
"""

from collections.abc import Iterator

import numpy as np

from infra.data.item_statistics import DAY_MS, count_positives
from infra.data.mapped_sources import MappedSources
from schemas.features import Kind

# Of 180 days with 22 held out a total has 0.8, one with 30% of noise 0.7, the last sale 0.8; a price or a total until then 0.0.
SUSPICIOUS = 0.5
_ITEMS_LEAST = 50


def find_telling_features(sources: MappedSources) -> dict[str, float]:
    """Features of [items] with a suspicious correlation, and that; none where there is too little to tell."""
    if sources.period is None or "time" in sources.mapping.items.roles or sources.end_ms <= sources.now_ms:
        return {}
    before_PI, after_I = _counts(sources)
    active_I = (before_PI[0] > 0) | (after_I > 0)
    found = {}
    for name, value_I in _columns(sources):
        known_I = active_I & np.isfinite(value_I)
        if known_I.sum() >= _ITEMS_LEAST:
            correlation = partial_rank_correlation(value_I[known_I], after_I[known_I], before_PI[:, known_I])
            if abs(correlation) >= SUSPICIOUS:
                found[name] = round(correlation, 2)
    return found


def _counts(sources: MappedSources) -> tuple[np.ndarray, np.ndarray]:
    """(positives of each item before the period [P, I]: ever, and as long before it as it lasts; positives in it [I])."""
    items, now, end = len(sources.item_rows.ids), sources.now_ms, sources.end_ms
    days = (end - now) / DAY_MS
    before = [count_positives(sources.positives, items, now, back) for back in (now / DAY_MS, days)]
    return np.stack(before), count_positives(sources.positives, items, end, days)


def _columns(sources: MappedSources) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers of every numeric feature that a column of [items] holds, [I], NaN where missing."""
    numeric = {feature.name for feature in sources.features if feature.kind is Kind.NUMERIC}
    history = sources.mapping.item_history
    dated = set(history.feature_columns()) if history is not None else set()
    for name, column in sources.mapping.items.feature_columns().items():
        if name in numeric - dated and column.value is None:
            yield name, sources.states.numbers_at(name, sources.now_ms)


def partial_rank_correlation(one_I: np.ndarray, other_I: np.ndarray, given_PI: np.ndarray) -> float:
    """Correlation of the ranks of two, from each of which the ranks of what is given are taken away (least squares); 0 where one is constant."""
    given_IP = np.stack([_ranks(given_I) for given_I in (*given_PI, np.zeros(len(one_I)))], axis=1)
    left = []
    for values_I in (one_I, other_I):
        rank_I = _ranks(values_I)
        left.append(rank_I - given_IP @ np.linalg.lstsq(given_IP, rank_I, rcond=None)[0])
    size = float(np.linalg.norm(left[0]) * np.linalg.norm(left[1]))
    return float(left[0] @ left[1]) / size if size > 1e-9 * len(one_I) else 0.0


def _ranks(values_I: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, equal values the mean of theirs."""
    _, place_I, count_V = np.unique(values_I, return_inverse=True, return_counts=True)
    return ((np.cumsum(count_V) - (count_V + 1) / 2) / len(values_I))[place_I]
