"""Call 1's last step: everything of a user that call 2 would otherwise compute for each request, folded through the head's first layer.

Here: `FoldedUser` and `fold_user`. Not here: the split's equations (schemas/model/head_split.py), what is done with the tables (joint_pass.py).
The first layer of a candidate is then

    base_GH[category] + context  +  [ I | w ] user_panels  +  [ (w bea) o I | DIN | DIN_P o I | sim_GD[category] o I | tiers | realtime ] version

with [ DIN | DIN_P ] = s signs_KF + sign_start_F, and `version` the weights that no user changes (version_weights.py).

Arrays: G categories of the user and, first, none; D width, N bridges, H first hidden width (padded), K bits, F = 2 D columns of signs (padded).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.model.din import din_affine
from schemas.model.head import Head
from schemas.model.head_split import FirstLayerSplit, split_first_layer
from schemas.model.inputs import UserStates
from serving.engine.panels import pack_panels, pad_columns
from serving.engine.tier_counts import Arranged, arrange_behaviours
from serving.engine.vector_code import LANES, SIGN_CHUNK


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


@torch.inference_mode()
def fold_user(head: Head, states: UserStates) -> FoldedUser:
    """The tables of one user (B = 1). Cost: that of `split_first_layer` and a sort of the behaviours' signatures."""
    split = split_first_layer(head, states)
    categories_G, base_GH, sim_GD = _fold_categories(split, states)
    signs_KF, sign_start_F = _fold_signs(head, states)
    return FoldedUser(
        categories_G=categories_G,
        base_GH=pad_columns(base_GH.numpy(), LANES),
        user_panels=pack_panels(torch.cat([split.item_BHD[0].T, split.bea.through_w[0]]).numpy()),
        bea_panels=pack_panels(split.bea.through_p[0].numpy()),
        sim_GD=np.ascontiguousarray(sim_GD.numpy()),
        signs_KF=pad_columns(signs_KF.numpy(), SIGN_CHUNK),
        sign_start_F=pad_columns(sign_start_F[None].numpy(), SIGN_CHUNK)[0],
        behaviours=arrange_behaviours(states.simtier_BSW[0][states.simtier_mask_BS[0]].numpy()),
    )


def _fold_categories(split: FirstLayerSplit, states: UserStates) -> tuple[np.ndarray, Tensor, Tensor]:
    """(categories_G, base, sim): first the row of a category that the user has not met, then one for each that he has."""
    constant_1H = split.constant_BH
    if split.sim is None or split.sim_log_weight_H is None:
        return np.zeros(0, np.int64), constant_1H, constant_1H.new_zeros(1, 0)
    through_w = split.sim.through_w[0] + states.sim.log_counts_BG[0, :, None] * split.sim_log_weight_H
    none_1D = split.sim.through_p.new_zeros(1, split.sim.through_p.shape[2])
    base_GH, sim_GD = torch.cat([constant_1H, constant_1H + through_w]), torch.cat([none_1D, split.sim.through_p[0]])
    return states.sim.categories_BG[0].numpy().copy(), base_GH, sim_GD


def _fold_signs(head: Head, states: UserStates) -> tuple[Tensor, Tensor]:
    """DIN with its gain, and its projection, as sums of signs: rows [K, 2 D] and start [2 D]."""
    if not head.spec.schema.multimodal:
        return torch.zeros(0, 0), torch.zeros(0)
    rows_BKD, start_BD = (head.din_gain * t for t in din_affine(states.din, head.spec.din))
    projection = head.project_din.weight.T
    return torch.cat([rows_BKD[0], rows_BKD[0] @ projection], dim=1), torch.cat([start_BD[0], start_BD[0] @ projection])
