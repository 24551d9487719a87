"""The user half of call 1 as plain arrays, before anything is folded: what call 2 needs of a user, and what a client can carry.

Here: the arrays and their names. Not here: how they are made (user_half.py), how they are folded through the head (folded_user.py).

Arrays: D width, U = 3 D, N bridges, P bridge width, K bits, S behaviours for SimTier, W signature bytes, G categories.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class UserArrays:
    """`UserStates` of schemas/model/inputs.py for one user: user_U [3 D]; V of Algorithm 1; DIN's sums (count float32 []); SimTier's signatures with a bool
    mask; the sub-sequences, G >= 1."""

    user_U: np.ndarray
    bridges_NP: np.ndarray
    din_sum_D: np.ndarray
    din_cross_KD: np.ndarray
    din_count: np.ndarray
    simtier_SW: np.ndarray
    simtier_mask_S: np.ndarray
    categories_G: np.ndarray
    means_GD: np.ndarray
    log_counts_G: np.ndarray

    @property
    def size_bytes(self) -> int:
        """Memory they hold."""
        return sum(getattr(self, field.name).nbytes for field in dataclasses.fields(self))

    def named(self) -> dict[str, np.ndarray]:
        """As a batch of one, by the names of `UserStates`."""
        return {name: getattr(self, field)[None] for field, name in _NAMES.items()}


_NAMES = {
    "user_U": "user_BU",
    "bridges_NP": "bridges_BNP",
    "din_sum_D": "din.sum_BD",
    "din_cross_KD": "din.cross_BKD",
    "din_count": "din.count_B",
    "simtier_SW": "simtier_BSW",
    "simtier_mask_S": "simtier_mask_BS",
    "categories_G": "sim.categories_BG",
    "means_GD": "sim.means_BGD",
    "log_counts_G": "sim.log_counts_BG",
}


def arrays_of(named: Mapping[str, np.ndarray]) -> UserArrays:
    """The inverse of `UserArrays.named`; copies."""
    return UserArrays(**{field: named[name][0].copy() for field, name in _NAMES.items()})
