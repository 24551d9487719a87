"""Call 1's last step: the user's part of call 2 is folded through the head's first layer, so that requests need not compute it again.

Here: `FoldedUser`, and `UserFold` that makes it. Not here: the compiled pass (fold_pass.py), the plain form (schemas/model/head.py, the specification), the
use of the tables (joint_pass.py, cuda.py). With M_x the weights of a product segment, its sum column included (`product_weights`), the exact split of the
first layer, segment by segment, is

    user, context    constant:  u W_u + c W_c + b
    item, user_x     I (W_i + M_u o (u P_u))                  the user's product costs nothing per candidate
    bea, bea_x       w (V W_b)  +  ((w (V P_b)) o I) M_b
    din, din_x       DIN W_d  +  ((DIN P_d) o I) M_d          DIN = s T + offset of Eq. 8 by its sums (schemas/model/din.py), times the gain
    sim, sim_x       look-ups of [mean; log count] W_s  +  ((look-up of mean P_s) o I) M_s
    tiers, realtime  as they are

and that of a candidate then

    base_GH[category] + context  +  [ I | w ] user_panels  +  [ (w bea) o I | DIN | DIN_P o I | sim_GD[category] o I | tiers | realtime ] version

with [ DIN | DIN_P ] = s signs_KF + sign_start_F, and `version` the weights that no user changes (version_weights.py).

Arrays: G categories of the user and, first, none; D width, P bridge width, N bridges, H first hidden width (padded), K bits, F = 2 D columns of signs
(padded).
"""

import math
from dataclasses import dataclass

import numpy as np

from schemas.model.parameters import Parameters
from schemas.model.vector_blocks import aligned
from serving.engine.behaviour_blocks import Arranged, arrange_behaviours
from serving.engine.fold_pass import FoldedTables, FoldWeights, fold_input, fold_user
from serving.engine.panels import pad_columns, padded
from serving.engine.user_arrays import UserArrays
from serving.engine.vector_code import LANES, SIGN_CHUNK
from serving.engine.version_weights import product_weights, slice_first_layer


@dataclass(frozen=True, slots=True)
class FoldedUser:
    """What call 2 reads of a user. `tables`: float32, see the legend above; categories_G int64 are those of rows 1, 2, ... of their base_GH and sim_GD."""

    categories_G: np.ndarray
    tables: FoldedTables
    behaviours: Arranged

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return sum(array.nbytes for array in (self.categories_G, *self.tables)) + self.behaviours.size_bytes


class UserFold:
    """Folds the users of one version."""

    def __init__(self, parameters: Parameters) -> None:
        self.spec, weights = parameters.spec, slice_first_layer(parameters)
        self._has_sim, self._has_signs = bool(self.spec.schema.sim_category), bool(self.spec.schema.multimodal)
        none = np.zeros((0, 0), np.float32)

        def transposed(name: str, is_there: bool = True) -> np.ndarray:
            return np.ascontiguousarray(parameters[name].T) if is_there else none

        self._weights = FoldWeights(
            user_UH=_widened(weights["user"]),
            bias_H=pad_columns(parameters["head.first.bias"][None], LANES)[0],
            item_DH=_widened(weights["item"]),
            user_x_DH=_widened(product_weights(weights["user_x"])),
            project_user_UD=transposed("head.project_user.weight"),
            bea_PH=_widened(weights["bea"]),
            project_bea_PD=transposed("head.project_bea.weight"),
            sim_DH=_widened(weights["sim"]) if self._has_sim else none,
            project_sim_DD=transposed("head.project_sim.weight", self._has_sim),
            gain=parameters["head.din_gain"][0] if self._has_signs else np.float32(0),
            project_din_DD=transposed("head.project_din.weight", self._has_signs),
            centred=self.spec.din == "centred",
        )
        self._context_FH = _widened(weights["context"])

    def fold(self, arrays: UserArrays) -> FoldedUser:
        """The tables of one user, and a sort of the behaviours' signatures if that saves a block."""
        user = fold_input(arrays, self._has_sim)
        tables = self._open_tables(len(user.log_counts_G))
        fold_user(user, self._weights, np.zeros(self.spec.width, np.float32), tables)
        return FoldedUser(arrays.categories_G, tables, arrange_behaviours(arrays.simtier_SW[arrays.simtier_mask_S]))

    def fold_context(self, context_F: np.ndarray) -> np.ndarray:
        """[H]: the part of the request's context."""
        return np.asarray(context_F @ self._context_FH)

    def _open_tables(self, groups: int) -> FoldedTables:
        """Memory for a user with so many categories, in one piece, of which each array begins on a cache line."""
        spec, hidden = self.spec, len(self._weights.bias_H)
        signs = padded(2 * spec.width, SIGN_CHUNK) if self._has_signs else 0
        shapes: dict[str, tuple[int, ...]] = {
            "base_GH": (groups + 1, hidden),
            "user_panels": ((spec.width + spec.bridges) * hidden,),
            "bea_panels": (spec.bridges * padded(spec.width),),
            "sim_GD": (groups + 1, spec.width if self._has_sim else 0),
            "signs_KF": (spec.hash_bits if signs else 0, signs),
            "sign_start_F": (signs,),
        }
        memory, at, arrays = aligned((sum(padded(math.prod(shape)) for shape in shapes.values()),)), 0, dict[str, np.ndarray]()
        for name, shape in shapes.items():
            arrays[name] = memory[at : at + math.prod(shape)].reshape(shape)
            at += padded(math.prod(shape))
        return FoldedTables(**arrays)


def _widened(segment_HE: np.ndarray) -> np.ndarray:
    """[E, H padded]: a segment's weights as they are multiplied from the left."""
    return pad_columns(np.ascontiguousarray(segment_HE.T), LANES)
