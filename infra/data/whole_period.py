"""Columns of [items] that are made of the whole log: a brand's share of clicks, a category's mean of sales, an item's, or classes cut of these.

Of a group of items (one item; all of one category; all that have the same number in the column) the log has a rate until the evaluation time, and one of all
its time. A column that orders the groups as the rate of all time does, and clearly less as the rate until then, was made with what follows. A price, a true
category, a sum until the evaluation time do not: they follow neither, or the earlier one.
Here: that comparison. Not here: what goes with the future by more than the past explains (telling_features.py), what is told about a column (doubts.py).
Measure: Goodman and Kruskal's gamma of column and rate over pairs of groups. Classes are in the order of their mean rate.

Arrays: I items, G groups.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from infra.data.interactions import IdPlaces, read_times
from infra.data.mapped_sources import MappedSources
from infra.data.shown_impressions import ShownRows
from infra.data.telling_features import undated_columns

MADE_OF = 0.9  # gamma from which on a column follows a rate
_CLOSER = 0.5  # of the pairs in another order: all time has at most so many of those that the time until the evaluation has
_GROUPS_LEAST, _GROUPS_MOST, _ITEMS_MOST = 12, 500, 200_000
_CLASS_GROUPS_LEAST = 8  # groups of a class, on average: smaller classes follow any rate
_SEED = 0


def find_made_of_the_log(sources: MappedSources) -> dict[str, tuple[float, float]]:
    """The columns, such as "[items] features.rate", each with its gamma with a rate of all time and with that until the evaluation time."""
    if sources.period is None or sources.end_ms <= sources.now_ms:
        return {}
    counts = [_counts(sources, ((block.item_X, block.time_X) for block in sources.positives.blocks()))]
    if sources.shown is not None:
        counts.append(_counts(sources, _shown(sources.shown, sources)))
    places = np.sort(np.random.default_rng(_SEED).permutation(counts[0].shape[1])[:_ITEMS_MOST])
    counts, rows = [count_2I[:, places] for count_2I in counts], sources.states.told_at(places, sources.now_ms)
    columns = {name: np.array([row.get(name) for row in rows], object) for name in undated_columns(sources)}
    codes = {name: _codes(cells) for name, cells in columns.items()}
    found = {}
    for name, cells in columns.items():
        pairs = [pair for group_I in (np.arange(len(places)), *codes.values()) for pair in _compare(cells, codes[name], group_I, counts)]
        made = [(whole, before) for whole, before in pairs if whole >= MADE_OF and 1 - whole <= _CLOSER * (1 - before)]
        if made:
            found[f"[items] features.{name}"] = max(made)
    return found


def _counts(sources: MappedSources, told: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """[2, I]: how often each item is told of with its place and time, at any time and before the evaluation time."""
    count_2I = np.zeros((2, len(sources.item_rows.ids)), np.int64)
    for item_X, time_X in told:
        known_X = (item_X >= 0) & (item_X < count_2I.shape[1])
        for count_I, chosen_X in zip(count_2I, (known_X, known_X & (time_X < sources.now_ms)), strict=True):
            count_I += np.bincount(item_X[chosen_X], minlength=len(count_I))
    return count_2I


def _shown(shown: ShownRows, sources: MappedSources) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places and times of what was shown, as the file has it: to be counted it needs no order, which would be a sort of the whole log."""
    items, users, first = IdPlaces(sources.id_kind, sources.item_rows.ids), IdPlaces(sources.id_kind), 0
    for rows in shown.table.blocks():
        place_R, user_R = (
            places.encode(rows.array(role), shown.table.id_forms[role]) for role, places in (("item", items), ("user", users))
        )
        time_R = read_times(rows, "time", first)
        first += len(rows)
        usable_R = (user_R >= 0) & (time_R >= 0)
        yield place_R[usable_R], time_R[usable_R]


def _codes(cells: np.ndarray) -> np.ndarray:
    """Which items have the same cell, [I]; -1 where there is none."""
    codes: dict[Any, int] = {None: -1}
    return np.array([codes.setdefault(cell, len(codes) - 1) for cell in cells], np.int64)


def _compare(cells: np.ndarray, code_I: np.ndarray, group_I: np.ndarray, counts: Sequence[np.ndarray]) -> Iterator[tuple[float, float]]:
    """Gammas of a column with each rate of the groups: nothing where the column is not one of the groups. `counts`: of what is taken, and of what is shown."""
    used_I = np.flatnonzero((group_I >= 0) & (code_I >= 0))
    of_I, groups = group_I[used_I], int(group_I.max(initial=-1)) + 1
    place_G = np.zeros(groups, np.int64)
    place_G[of_I] = used_I  # one item of each group
    code_G = code_I[place_G]
    if (code_G[of_I] != code_I[used_I]).any():
        return
    sums = [np.stack([np.bincount(of_I, count_I[used_I], groups) for count_I in count_2I]) for count_2I in counts]
    known_G = np.flatnonzero(sums[-1][1])  # chosen by what was before, not by what follows
    numbers = all(isinstance(cell, float) for cell in cells[place_G[known_G]])
    if len(known_G) < max(_GROUPS_LEAST, 0 if numbers else _CLASS_GROUPS_LEAST * len(np.unique(code_G[known_G]))):
        return
    known_G = np.random.default_rng(_SEED).permutation(known_G)[:_GROUPS_MOST]
    in_all, by_item = np.ones((2, groups)), np.tile(np.bincount(of_I, minlength=groups), (2, 1))
    for base_2G in (in_all, by_item, *sums[1:]):  # the last: of what is shown
        gammas = []
        for rate_G in sums[0][:, known_G] / base_2G[:, known_G]:
            value_G = cells[place_G[known_G]].astype(float) if numbers else _order_of_classes(code_G[known_G], rate_G)
            gammas.append(gamma(value_G, rate_G))
        yield abs(gammas[0]), float(gammas[1] * np.sign(gammas[0]))


def _order_of_classes(code_G: np.ndarray, rate_G: np.ndarray) -> np.ndarray:
    """Each class as the mean rank of its groups, [G]."""
    _, of_G = np.unique(code_G, return_inverse=True)
    rank_G = np.unique(rate_G, return_inverse=True)[1]
    return np.asarray((np.bincount(of_G, rank_G) / np.bincount(of_G))[of_G])


def gamma(one_G: np.ndarray, other_G: np.ndarray) -> float:
    """Of the pairs that differ in both: those in the same order minus those in the other, as a share of all. -1 to 1, 0 where there is none."""
    sign_GG = (np.sign(values_G[:, None] - values_G).astype(np.int8) for values_G in (one_G, other_G))
    agrees_GG = np.multiply(*sign_GG)
    return float(agrees_GG.sum(dtype=np.int64) / max(1, np.count_nonzero(agrees_GG)))
