"""Call 1 of one version, the same for every device: a user's state, from scratch or from an earlier one.

The specification is `AifNetwork.user_states` (schemas/model/network.py); a test compares the two.

After a few new behaviours, an earlier state is extended. This equals the whole history up to rounding, and computes only what the new ones change:

    attention, bridges   computed again, from the few latest behaviours that they read
    sums of DIN          the sums of the new behaviours are added: a rank-1 update each, whatever the length of the history
    SimTier              the new signatures are appended, the oldest dropped
    sub-sequences        those of the new behaviours' categories are computed again from their latest behaviours

A kept sum contains the rows as they were then; a row that changed since is seen when the state is made from scratch (protocol D1). That happens after
STATE_EXTENSIONS_MAX extensions at the latest, which also bounds the rounding errors.

Arrays: L behaviours (or a window of them), D width, N bridges, P bridge width, K bits, S for SimTier, G categories, W signature bytes, H first hidden width.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.errors import RejectedInput
from schemas.kernels.products import padded
from schemas.kernels.vector_blocks import aligned
from schemas.limits import BEHAVIOURS_PER_USER_MAX, STATE_EXTENSIONS_MAX
from schemas.model.behaviour_codes import NO_CATEGORY
from schemas.model.parameters import Parameters
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.call_one.attention import UserVectors, attend, lay_out_attended
from serving.engine.call_one.history import (
    History,
    HistorySums,
    find_rows,
    join_history,
    open_history_scratch,
    open_sums,
    read_history,
    spread_nibbles,
)
from serving.engine.call_one.user_state import EngineUserState, HalfArrays, HeadSplit, HeadTables
from serving.engine.call_one.user_weights import UserWeights
from serving.engine.tables.tables import Tables, columns_of
from serving.engine.work import UserWork

_LOOK_BACK = 2_048  # behaviours searched at once for those of a category


class CallOne:
    """The user's side of one version on its tables. Several threads may use it at once."""

    def __init__(self, parameters: Parameters, version: int, tables: Tables) -> None:
        self.version, self.spec, self.tables, self.columns = version, parameters.spec, tables, columns_of(tables)
        self.weights = UserWeights(parameters)
        self.vectors, self._head = UserVectors(self.weights), HeadSplit(parameters)

    def user_state(self, work: UserWork) -> EngineUserState:
        """Extends the work's `base` if there is one and it fits. Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
        base = find_base(self.spec, self.version, work)
        arrays, missing = self._make(work) if base is None else _extend_arrays(self, base, work)
        cold, newest = not work.profile and not work.behaviours, work.behaviours[-1] if work.behaviours else None
        extensions = 0 if base is None else base.extensions + 1
        read = min(len(work.behaviours), self.spec.behaviours_max)
        tables = self._head.tables(arrays)
        return EngineUserState(self.version, arrays, tables, read, missing, cold, newest, extensions)

    def tables_of(self, state: EngineUserState) -> HeadTables:
        """The tables that call 2 reads; made here for a state that a client carried."""
        return state.tables or self._head.tables(state.arrays)

    def context(self, context: Mapping[str, Any]) -> np.ndarray:
        """[H]: the request's part of the first layer."""
        return self._head.context_row(self.weights.context_features.embed_one(context))

    def _make(self, work: UserWork) -> tuple[HalfArrays, int]:
        """(the user half of one user, how many behaviours have no row). Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
        length = len(work.behaviours)
        if length > BEHAVIOURS_PER_USER_MAX:
            raise RejectedInput("too_many_behaviours", f"{length} behaviours, expected at most {BEHAVIOURS_PER_USER_MAX}")
        history = join_history(self.weights, self.tables, work.behaviours[-self.spec.behaviours_max :])
        sums = self.read(history, self.spec.attended_behaviours, self.spec.simtier_behaviours, 0, self.spec.sim_behaviours)
        user_U, bridges_NP = self.make_vectors(work, sums.attended_AD)
        arrays = HalfArrays(
            user_U, bridges_NP, *self.din_of(sums), sums.signatures_SW, sums.has_S.view(np.bool_), *self.sub_sequences_of(sums)
        )
        return arrays, history.missing

    def read(self, history: History, attended: int, signatures: int, first_signed: int, latest: int) -> HistorySums:
        """One pass over a history; see `read_history`."""
        length = len(history.row_L)
        sums = open_sums(self.weights, length, min(length, attended), min(length, signatures))
        read_history(self.columns, self.weights.history, history, first_signed, latest, open_history_scratch(self.weights), sums)
        return sums

    def make_vectors(self, work: UserWork, attended_AD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(user_U, bridges_NP) of a profile and its latest projected behaviours."""
        width = self.spec.width
        features_F, profile_D = self.vectors.embed_profile(work)
        out_2D = np.zeros((2, self.weights.width_padded), np.float32)
        if len(attended_AD):
            padded_D = np.zeros(self.weights.width_padded, np.float32)
            padded_D[:width] = profile_D
            attend(attended_AD, padded_D, width, *self.weights.ffn, lay_out_attended(self.weights, attended_AD), out_2D)
        attended_2D = out_2D[:, :width]
        return np.concatenate([profile_D, *attended_2D]), self.vectors.bridge_vectors(features_F, attended_2D)

    def din_of(self, sums: HistorySums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """DIN's (sum V, S^T V, number of behaviours with a signature) from a pass."""
        width = self.spec.width
        cross_KD = aligned((4 * len(sums.nibbles_NVD), padded(width)))
        spread_nibbles(sums.nibbles_NVD, cross_KD)
        return sums.sum_D[:width].copy(), np.ascontiguousarray(cross_KD[:, :width]), np.array(sums.counts[0], np.float32)

    def sub_sequences_of(self, sums: HistorySums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(categories ascending, means, log(1 + count)) from a pass; if there are none, one entry with NO_CATEGORY."""
        met, width = int(sums.counts[1]), self.spec.width
        if met == 0:
            return np.array([NO_CATEGORY]), np.zeros((1, width), np.float32), np.zeros(1, np.float32)
        order_G = np.argsort(sums.categories_G[:met])
        often_G = sums.often_G[order_G].astype(np.float32)
        return sums.categories_G[order_G], sums.sums_GD[order_G, :width] / often_G[:, None], np.log1p(often_G)


def _extend_arrays(call: CallOne, base: EngineUserState, work: UserWork) -> tuple[HalfArrays, int]:
    """(the state of `work`, how many behaviours have no row), made from `base`. REQUIRES: `base` came from `find_base`."""
    spec, events, before = call.spec, work.behaviours, base.arrays
    new = len(events) - base.behaviours
    window = join_history(call.weights, call.tables, events[-spec.attended_behaviours :])
    sums = call.read(window, spec.attended_behaviours, new, len(window.row_L) - new, 0)
    user_U, bridges_NP = call.make_vectors(work, sums.attended_AD)
    sum_D, cross_KD, count = call.din_of(sums)
    kept = slice(-spec.simtier_behaviours, None)
    arrays = HalfArrays(
        user_U,
        bridges_NP,
        before.din_sum_D + sum_D,
        before.din_cross_KD + cross_KD,
        before.din_count + count,
        np.concatenate([before.simtier_SW, sums.signatures_SW])[kept],
        np.concatenate([before.simtier_mask_S, sums.has_S.view(np.bool_)])[kept],
        *_extend_sim(call, before, events, _categories(call.tables, window.row_L[-new:])),
    )
    return arrays, base.behaviours_without_row + int((window.row_L[-new:] < 0).sum())


def find_base(spec: ModelSpec, version: int, work: UserWork) -> EngineUserState | None:
    """The state to extend, or None if the whole history must be read.

    It must be of this version, contain the first of these behaviours, lack only a few, and not have been extended too often. A history longer than the
    model reads cannot be extended: the sums would still contain the oldest behaviours. Neither can any history of a model that reads recency: a new
    behaviour changes that of all others, which are in the sums as they were.
    """
    base, events = work.base, work.behaviours
    if not isinstance(base, EngineUserState) or base.version != version or base.extensions >= STATE_EXTENSIONS_MAX or spec.recency:
        return None
    few = 0 < len(events) - base.behaviours <= spec.attended_behaviours
    if not few or base.newest is None or len(events) > min(spec.behaviours_max, BEHAVIOURS_PER_USER_MAX - 1):
        return None
    return base if events[base.behaviours - 1] == base.newest else None


def _extend_sim(
    call: CallOne, before: HalfArrays, events: Sequence[BehaviourEvent], category_L: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sub-sequences, with those of the new behaviours' categories computed again."""
    touched = sorted({int(one) for one in category_L.tolist() if one > 0})
    if not touched or not call.spec.schema.sim_category:
        return before.categories_G, before.means_GD, before.log_counts_G
    fresh = call.sub_sequences_of(_read_latest(call, events, touched))
    stays_G = ~np.isin(before.categories_G, fresh[0])
    old = (before.categories_G[stays_G], before.means_GD[stays_G], before.log_counts_G[stays_G])
    categories_G, means_GD, log_counts_G = (np.concatenate(pair) for pair in zip(old, fresh, strict=True))
    order_G = np.argsort(categories_G)
    return categories_G[order_G], means_GD[order_G], log_counts_G[order_G]


def _read_latest(call: CallOne, events: Sequence[BehaviourEvent], touched: list[int]) -> HistorySums:
    """A pass over the latest behaviours of these categories. The history is searched from its end, only as far as needed."""
    latest, found = call.spec.sim_behaviours, list[int]()
    left = dict.fromkeys(touched, latest)
    for end in range(len(events), 0, -_LOOK_BACK):
        start = max(0, end - _LOOK_BACK)
        category_L = _categories(call.tables, find_rows(call.tables, events[start:end]))
        for at in np.flatnonzero(np.isin(category_L, touched))[::-1].tolist():
            if left[int(category_L[at])] > 0:
                left[int(category_L[at])] -= 1
                found.append(start + at)
        if not any(left.values()):
            break
    joined = join_history(call.weights, call.tables, [events[at] for at in sorted(found)])
    return call.read(joined, 0, 0, len(found), latest)


def _categories(tables: Tables, row_L: np.ndarray) -> np.ndarray:
    """int64 [L]: the category of each behaviour's row, 0 if there is no row."""
    return np.where(row_L >= 0, tables.columns["category"][np.maximum(row_L, 0)], 0)
