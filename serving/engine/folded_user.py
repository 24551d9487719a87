"""Call 1's last step: the user's part of call 2 is folded through the head's first layer, so that requests need not compute it again.

Here: `FoldedUser`, and `UserFold` that makes it. Not here: the equations of the split (schemas/model/head_split.py, the specification), the use of the
tables (joint_pass.py). The first layer of a candidate is then

    base_GH[category] + context  +  [ I | w ] user_panels  +  [ (w bea) o I | DIN | DIN_P o I | sim_GD[category] o I | tiers | realtime ] version

with [ DIN | DIN_P ] = s signs_KF + sign_start_F, and `version` the weights that no user changes (version_weights.py).

Arrays: G categories of the user and, first, none; D width, P bridge width, N bridges, H first hidden width (padded), K bits, F = 2 D columns of signs
(padded).
"""

from dataclasses import dataclass

import numpy as np

from schemas.model.parameters import Parameters
from schemas.model.vector_blocks import aligned
from serving.engine.panels import pack_panels, pad_columns
from serving.engine.tier_counts import Arranged, arrange_behaviours
from serving.engine.user_arrays import UserArrays
from serving.engine.vector_code import LANES, SIGN_CHUNK
from serving.engine.version_weights import product_weights, slice_first_layer


@dataclass(frozen=True, slots=True)
class FoldedUser:
    """float32 arrays, see the legend above. categories_G int64 are those of rows 1, 2, ... of base_GH and sim_GD."""

    categories_G: np.ndarray
    base_GH: np.ndarray
    user_panels: np.ndarray
    bea_panels: np.ndarray
    sim_GD: np.ndarray
    signs_KF: np.ndarray
    sign_start_F: np.ndarray
    behaviours: Arranged

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        arrays = (self.categories_G, self.base_GH, self.user_panels, self.bea_panels, self.sim_GD, self.signs_KF, self.sign_start_F)
        return sum(array.nbytes for array in arrays) + self.behaviours.size_bytes


class UserFold:
    """The head's weights that multiply a user's values, of one version: of a segment [width, H], of a projection [width, D]."""

    def __init__(self, parameters: Parameters) -> None:
        self.spec, weights = parameters.spec, slice_first_layer(parameters)
        spec = self.spec

        def transposed(name: str) -> np.ndarray:
            return np.ascontiguousarray(parameters[name].T)

        self._user_UH, self._bias_H = _widened(weights["user"]), pad_columns(parameters["head.first.bias"][None], LANES)
        self._item_DH, self._user_x_DH = _widened(weights["item"]), _widened(product_weights(weights["user_x"]))
        self._project_user_UD = transposed("head.project_user.weight")
        self._bea_PH, self._project_bea_PD = _widened(weights["bea"]), transposed("head.project_bea.weight")
        if spec.schema.multimodal:
            self._gain, self._project_din_DD = parameters["head.din_gain"], transposed("head.project_din.weight")
        if spec.schema.sim_category:
            self._sim_DH, self._project_sim_DD = _widened(weights["sim"]), transposed("head.project_sim.weight")
        self._context_FH = _widened(weights["context"])

    def fold(self, arrays: UserArrays) -> FoldedUser:
        """The tables of one user. Cost: (N P + K D + G D) H, and a sort of the behaviours' signatures if that saves a block."""
        user_x_D = arrays.user_U @ self._project_user_UD
        width, bridges = self.spec.width, self.spec.bridges
        both = np.empty((width + bridges, self._item_DH.shape[1]), np.float32)
        np.multiply(self._user_x_DH, user_x_D[:, None], out=both[:width])
        both[:width] += self._item_DH
        np.matmul(arrays.bridges_NP, self._bea_PH, out=both[width:])
        base_GH, sim_GD = self._fold_categories(arrays)
        signs_KF, sign_start_F = self._fold_signs(arrays)
        return FoldedUser(
            categories_G=arrays.categories_G,
            base_GH=base_GH,
            user_panels=pack_panels(both),
            bea_panels=pack_panels(arrays.bridges_NP @ self._project_bea_PD),
            sim_GD=sim_GD,
            signs_KF=signs_KF,
            sign_start_F=sign_start_F,
            behaviours=arrange_behaviours(arrays.simtier_SW[arrays.simtier_mask_S]),
        )

    def fold_context(self, context_F: np.ndarray) -> np.ndarray:
        """[H]: the part of the request's context."""
        return np.asarray(context_F @ self._context_FH)

    def _fold_categories(self, arrays: UserArrays) -> tuple[np.ndarray, np.ndarray]:
        """(base, sim): first the row for categories that are not in the history, then one row per category of the history."""
        constant_1H = arrays.user_U @ self._user_UH + self._bias_H
        if not self.spec.schema.sim_category:
            return constant_1H, np.zeros((1, 0), np.float32)
        groups, width = arrays.means_GD.shape
        base_GH, sim_GD = aligned((groups + 1, constant_1H.shape[1])), np.zeros((groups + 1, width), np.float32)
        sub_GD = np.concatenate([arrays.means_GD, arrays.log_counts_G[:, None]], axis=1)
        base_GH[0] = constant_1H[0]
        np.add(sub_GD @ self._sim_DH, constant_1H, out=base_GH[1:])
        np.matmul(arrays.means_GD, self._project_sim_DD, out=sim_GD[1:])
        return base_GH, sim_GD

    def _fold_signs(self, arrays: UserArrays) -> tuple[np.ndarray, np.ndarray]:
        """DIN with its gain, and its projection, as sums of signs: rows [K, F] and start [F] (schemas/model/din.py, `din_affine`)."""
        if not self.spec.schema.multimodal:
            return np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
        (bits, width), centred = arrays.din_cross_KD.shape, self.spec.din == "centred"
        signs_KF, start_F = aligned((bits, -(-2 * width // SIGN_CHUNK) * SIGN_CHUNK)), aligned((-(-2 * width // SIGN_CHUNK) * SIGN_CHUNK,))
        rows = bits * np.maximum(arrays.din_count, np.float32(1)) if centred else np.float32(2 * bits)
        np.multiply(arrays.din_cross_KD, self._gain / rows, out=signs_KF[:, :width])
        np.matmul(signs_KF[:, :width], self._project_din_DD, out=signs_KF[:, width : 2 * width])
        if not centred:
            start_F[:width] = arrays.din_sum_D * (self._gain / np.float32(2))
            start_F[width : 2 * width] = start_F[:width] @ self._project_din_DD
        return signs_KF, start_F


def _widened(segment_HE: np.ndarray) -> np.ndarray:
    """[E, H padded]: a segment's weights as they are multiplied from the left."""
    return pad_columns(np.ascontiguousarray(segment_HE.T), LANES)
