"""A user's state as the engine keeps it between the calls, and as bytes for a client that carries it.

Here: `EngineUserState`, and its arrays by name as safetensors. Not here: how it is made (user_half.py, folded_user.py); signatures and Base64
(serving/calls/carried_state.py), which verifies bytes before they come here.
What call 1 folded for the compiled pass is left out of the bytes: call 2 folds it again from the same arrays, with the same bits.
"""

from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load, save

from schemas.users import BehaviourEvent
from serving.engine.call_one.folded_user import FoldedUser
from serving.engine.call_one.user_arrays import UserArrays, arrays_of

_ABOUT = "about"  # int64 [4]: version, behaviours, behaviours without a row, cold


@dataclass(frozen=True, slots=True)
class EngineUserState:
    """`UserState` of work.py. `folded`: what call 2 reads; None in a state that a client carried, for which call 2 makes it."""

    version: int
    arrays: UserArrays
    folded: FoldedUser | None
    behaviours: int
    behaviours_without_row: int
    cold: bool
    newest: BehaviourEvent | None = None  # the last behaviour in it
    extensions: int = 0  # how often it was extended since it was made from scratch

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.arrays.size_bytes + (self.folded.size_bytes if self.folded else 0)


def encode_state(state: EngineUserState) -> bytes:
    """The bytes of a state."""
    about = np.array([state.version, state.behaviours, state.behaviours_without_row, int(state.cold)], np.int64)
    return save({name: np.ascontiguousarray(array) for name, array in state.arrays.named().items()} | {_ABOUT: about})


def decode_state(raw: bytes) -> EngineUserState:
    """The inverse of `encode_state`, as a state in memory. REQUIRES: bytes of `encode_state`."""
    found = load(raw)
    version, behaviours, missing, cold = found.pop(_ABOUT).tolist()
    return EngineUserState(version, arrays_of(found), None, behaviours, missing, bool(cold))
