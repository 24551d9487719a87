"""Call 1 on the CPU: how a user half is made from a profile and a history.

Here: `UserHalf`. Not here: the state (user_state.py) and its arrays (user_arrays.py), the compiled passes (history_pass.py,
attention.py), the fold through the head (folded_user.py), extending an earlier state (extended_state.py). The specification is
`AifNetwork.user_states` (schemas/model/network.py); a test compares the two.

Arrays: L behaviours, D width, N bridges, P bridge width, K bits, S for SimTier, G categories, W signature bytes.
"""

import numpy as np

from schemas.errors import RejectedInput
from schemas.kernels.products import padded
from schemas.kernels.vector_blocks import aligned
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import NO_CATEGORY
from schemas.model.parameters import Parameters
from serving.engine.call_one.attention import attend, lay_out_attended
from serving.engine.call_one.history import History, join_history
from serving.engine.call_one.history_pass import HistorySums, open_history_scratch, open_sums, read_history, spread_nibbles
from serving.engine.call_one.user_arrays import UserArrays
from serving.engine.call_one.user_vectors import UserVectors
from serving.engine.call_one.user_weights import UserWeights
from serving.engine.tables.tables import Columns, Tables
from serving.engine.work import UserWork


class UserHalf:
    """The user half of one version on its tables. Several threads may use it at once."""

    def __init__(self, parameters: Parameters, tables: Tables, columns: Columns) -> None:
        self.spec, self.tables, self.weights = parameters.spec, tables, UserWeights(parameters)
        self._columns, self.vectors = columns, UserVectors(self.weights)

    def make(self, work: UserWork) -> tuple[UserArrays, int]:
        """(the user half of one user, how many behaviours have no row). Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
        length = len(work.behaviours)
        if length > BEHAVIOURS_PER_USER_MAX:
            raise RejectedInput("too_many_behaviours", f"{length} behaviours, expected at most {BEHAVIOURS_PER_USER_MAX}")
        history = join_history(self.weights, self.tables, work.behaviours)
        sums = self.read(history, self.spec.attended_behaviours, self.spec.simtier_behaviours, 0, self.spec.sim_behaviours)
        user_U, bridges_NP = self.make_vectors(work, sums.attended_AD)
        arrays = UserArrays(
            user_U, bridges_NP, *self.din_of(sums), sums.signatures_SW, sums.has_S.view(np.bool_), *self.sub_sequences_of(sums)
        )
        return arrays, history.missing

    def read(self, history: History, attended: int, signatures: int, first_signed: int, latest: int) -> HistorySums:
        """One pass over a history; see `read_history`."""
        length = len(history.slots_L)
        sums = open_sums(self.weights, length, min(length, attended), min(length, signatures))
        read_history(self._columns, self.weights.history, history, first_signed, latest, open_history_scratch(self.weights), sums)
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
