"""Call 1 of one version, the same for every device: a user's state, from scratch or from an earlier one, folded through the head.

Here: `CallOne`. Not here: the user half (user_half.py), its extension (extended_state.py), the fold (folded_user.py), call 2 (cpu.py, cuda.py).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from schemas.model.parameters import Parameters
from serving.engine.call_one.extended_state import extend_arrays, find_base
from serving.engine.call_one.folded_user import FoldedUser, UserFold
from serving.engine.call_one.user_half import UserHalf
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.tables.tables import Tables, columns_of
from serving.engine.work import UserWork


class CallOne:
    """The user's side of one version on its tables. Any thread may use it."""

    def __init__(self, parameters: Parameters, version: int, tables: Tables) -> None:
        self.version, self.columns = version, columns_of(tables)
        self.half, self._fold = UserHalf(parameters, tables, self.columns), UserFold(parameters)

    def user_state(self, work: UserWork) -> EngineUserState:
        """Extends the work's `base` if there is one and it fits. Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
        base = find_base(self.half.spec, self.version, work)
        arrays, missing = self.half.make(work) if base is None else extend_arrays(self.half, base, work)
        cold, newest = not work.profile and not work.behaviours, work.behaviours[-1] if work.behaviours else None
        extensions = 0 if base is None else base.extensions + 1
        folded = self._fold.fold(arrays)
        return EngineUserState(self.version, arrays, folded, len(work.behaviours), missing, cold, newest, extensions)

    def folded(self, state: EngineUserState) -> FoldedUser:
        """What call 2 reads of a state; it is made here for one that a client carried."""
        return state.folded or self._fold.fold(state.arrays)

    def context(self, context: Mapping[str, Any]) -> np.ndarray:
        """[H]: the request's part of the first layer."""
        return self._fold.fold_context(self.half.weights.context_features.embed_one(context))
