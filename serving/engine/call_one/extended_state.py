"""Call 1 after a few new behaviours: an earlier state of the user is extended, and only what the new behaviours change is computed.

Here: `extend_arrays`, which equals `UserHalf.make` on the whole history up to rounding. Not here: when a state is stale (serving/calls/state_pool.py), the
user half (user_half.py).

    attention, bridges   computed again, from the few latest behaviours that they read
    sums of DIN          the sums of the new behaviours are added: a rank-1 update each, whatever the length of the history
    SimTier              the new signatures are appended, the oldest dropped
    sub-sequences        those of the new behaviours' categories are computed again from their latest behaviours

A kept sum contains the rows as they were then; a row that changed since is seen when the state is made from scratch (protocol D1). That happens after
STATE_EXTENSIONS_MAX extensions at the latest, which also bounds the rounding errors.

Arrays: L behaviours (a window of them), D width, W signature bytes, G categories.
"""

from collections.abc import Sequence

import numpy as np

from schemas.limits import BEHAVIOURS_PER_USER_MAX, STATE_EXTENSIONS_MAX
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.call_one.history import find_slots, join_history
from serving.engine.call_one.history_pass import HistorySums
from serving.engine.call_one.user_arrays import UserArrays
from serving.engine.call_one.user_half import UserHalf
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.tables.tables import Tables
from serving.engine.work import UserWork

_LOOK_BACK = 2_048  # behaviours searched at once for those of a category


def extend_arrays(half: UserHalf, base: EngineUserState, work: UserWork) -> tuple[UserArrays, int]:
    """(the state of `work`, how many behaviours have no row), made from `base`. REQUIRES: `base` came from `find_base`."""
    spec, events, before = half.spec, work.behaviours, base.arrays
    new = len(events) - base.behaviours
    window = join_history(half.weights, half.tables, events[-spec.attended_behaviours :])
    sums = half.read(window, spec.attended_behaviours, new, len(window.slots_L) - new, 0)
    user_U, bridges_NP = half.make_vectors(work, sums.attended_AD)
    sum_D, cross_KD, count = half.din_of(sums)
    kept = slice(-spec.simtier_behaviours, None)
    arrays = UserArrays(
        user_U,
        bridges_NP,
        before.din_sum_D + sum_D,
        before.din_cross_KD + cross_KD,
        before.din_count + count,
        np.concatenate([before.simtier_SW, sums.signatures_SW])[kept],
        np.concatenate([before.simtier_mask_S, sums.has_S.view(np.bool_)])[kept],
        *_extend_sim(half, before, events, _categories(half.tables, window.slots_L[-new:])),
    )
    return arrays, base.behaviours_without_row + int((window.slots_L[-new:] < 0).sum())


def find_base(spec: ModelSpec, version: int, work: UserWork) -> EngineUserState | None:
    """The state to extend, or None if the whole history must be read.

    It must be of this version, contain the first of these behaviours, lack only a few, and not have been extended too often. A history at its maximum length
    cannot be extended: it has lost its oldest behaviours, which the sums still contain. Neither can any history of a model that reads recency: a new
    behaviour changes that of all others, which are in the sums as they were.
    """
    base, events = work.base, work.behaviours
    if not isinstance(base, EngineUserState) or base.version != version or base.extensions >= STATE_EXTENSIONS_MAX or spec.recency:
        return None
    few = 0 < len(events) - base.behaviours <= spec.attended_behaviours
    if not few or base.newest is None or len(events) >= BEHAVIOURS_PER_USER_MAX:
        return None
    return base if events[base.behaviours - 1] == base.newest else None


def _extend_sim(
    half: UserHalf, before: UserArrays, events: Sequence[BehaviourEvent], category_L: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sub-sequences, with those of the new behaviours' categories computed again."""
    touched = sorted({int(one) for one in category_L.tolist() if one > 0})
    if not touched or not half.spec.schema.sim_category:
        return before.categories_G, before.means_GD, before.log_counts_G
    fresh = half.sub_sequences_of(_read_latest(half, events, touched))
    stays_G = ~np.isin(before.categories_G, fresh[0])
    old = (before.categories_G[stays_G], before.means_GD[stays_G], before.log_counts_G[stays_G])
    categories_G, means_GD, log_counts_G = (np.concatenate(pair) for pair in zip(old, fresh, strict=True))
    order_G = np.argsort(categories_G)
    return categories_G[order_G], means_GD[order_G], log_counts_G[order_G]


def _read_latest(half: UserHalf, events: Sequence[BehaviourEvent], touched: list[int]) -> HistorySums:
    """A pass over the latest behaviours of these categories. The history is searched from its end, only as far as needed."""
    latest, found = half.spec.sim_behaviours, list[int]()
    left = dict.fromkeys(touched, latest)
    for end in range(len(events), 0, -_LOOK_BACK):
        start = max(0, end - _LOOK_BACK)
        category_L = _categories(half.tables, find_slots(half.tables, events[start:end]))
        for at in np.flatnonzero(np.isin(category_L, touched))[::-1].tolist():
            if left[int(category_L[at])] > 0:
                left[int(category_L[at])] -= 1
                found.append(start + at)
        if not any(left.values()):
            break
    joined = join_history(half.weights, half.tables, [events[at] for at in sorted(found)])
    return half.read(joined, 0, 0, len(found), latest)


def _categories(tables: Tables, slots_L: np.ndarray) -> np.ndarray:
    """int64 [L]: the category of each behaviour's row, 0 if there is no row."""
    return np.where(slots_L >= 0, tables.columns["category"][np.maximum(slots_L, 0)], 0)
