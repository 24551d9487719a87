"""A user state as bytes and back: for a client that carries it between the two calls itself.

Here: the arrays of a state, by name, as safetensors. Not here: signatures and Base64 (serving/calls/carried_state.py); bytes come here only after their
signature was verified.
What call 1 folded for the compiled pass is left out: call 2 folds it again from the same arrays, with the same bits.
"""

import numpy as np
from safetensors.numpy import load, save

from serving.engine.user_arrays import arrays_of
from serving.engine.user_state import EngineUserState

_ABOUT = "about"  # int64 [4]: version, behaviours, behaviours without a row, cold


def encode_state(state: EngineUserState) -> bytes:
    """The bytes of a state."""
    about = np.array([state.version, state.behaviours, state.behaviours_without_row, int(state.cold)], np.int64)
    return save({name: np.ascontiguousarray(array) for name, array in state.arrays.named().items()} | {_ABOUT: about})


def decode_state(raw: bytes) -> EngineUserState:
    """The inverse of `encode_state`, as a state in memory. REQUIRES: bytes of `encode_state`."""
    found = load(raw)
    version, behaviours, missing, cold = found.pop(_ABOUT).tolist()
    return EngineUserState(version, arrays_of(found), None, behaviours, missing, bool(cold))
