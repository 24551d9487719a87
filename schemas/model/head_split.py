"""The exact split of the head's first layer: the user's part is folded once per request, and little is left to compute per candidate.

Here: `split_first_layer` (once per request) and `apply_split` (per candidate). It equals the plain form of head.py up to rounding, which a test checks. Not
here: fused or compiled kernels (serving/engine), which use the same tables.

With M_x the weights of a product segment [H, D], its sum column included (M_x[h, d] = W[h, d] + w_sum[h] / sqrt(D)):

    user, context    constant:  W_u u + W_c c + b
    item, user_x     I (W_i + M_u o (P_u u))^T                   the user's product costs nothing per candidate
    bea, bea_x       w (V W_b^T)  +  ((w (V P_b^T)) o I) M_b^T
    din, din_x       s (T W_d^T) + offset  +  ((s (T P_d^T) + offset') o I) M_d^T      T = S^T V / K l (din.py), times the gain
    sim, sim_x       table look-up of W_s [mean; log count]  +  ((look-up of P_s mean) o I) M_s^T
    tiers, realtime  as they are

Arrays: B users, C candidates, D width, P bridge width, N bridges, K bits, G categories, H first hidden width.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.model.din import din_affine
from schemas.model.hamming import decode_signs
from schemas.model.head import Head
from schemas.model.inputs import CandidateRows, FeatureTensors, UserStates
from schemas.model.sim_hard import SimTable, look_up_sim


@dataclass(frozen=True, slots=True)
class FoldedFactor:
    """A user table folded twice: through its own segment (`through_w` [B, rows, H]) and through its projection (`through_p` [B, rows, D])."""

    through_w: Tensor
    through_p: Tensor


@dataclass(frozen=True, slots=True)
class FirstLayerSplit:
    """The first layer for B users. `din_offset` is its row for s = 0 (zeros if centred). `din` / `sim` are None where the model has none."""

    constant_BH: Tensor
    item_BHD: Tensor
    bea: FoldedFactor
    din: FoldedFactor | None
    din_offset: FoldedFactor | None
    sim: FoldedFactor | None
    sim_log_weight_H: Tensor | None


def slice_weights(head: Head) -> dict[str, Tensor]:
    """The first layer's weights by segment: name -> [H, width of the segment]."""
    segments = head.user_segments | head.item_segments
    ends = itertools.accumulate(segments.values())
    return {name: head.first.weight[:, end - width : end] for (name, width), end in zip(segments.items(), ends, strict=True)}


def product_weights(segment_HE: Tensor) -> Tensor:
    """M_x [H, D] of a product segment's weights [H, D + 1]: its sum column spread over the products."""
    width = segment_HE.shape[1] - 1
    return segment_HE[:, :width] + segment_HE[:, width:] / width**0.5


def split_first_layer(head: Head, states: UserStates, context: FeatureTensors) -> FirstLayerSplit:
    """Folds everything of the user and the request through the first layer. Cost: (N P + K D + G D) H, once."""
    weights = slice_weights(head)
    constant_BH = F.linear(states.user_BU, weights["user"], head.first.bias) + head.context(context) @ weights["context"].T
    user_x_BD = head.project_user(states.user_BU)
    item_BHD = weights["item"] + product_weights(weights["user_x"]) * user_x_BD[:, None, :]
    din = din_offset = sim = sim_log = None
    if "din" in weights:
        scaled_BKD, offset_BD = (head.din_gain * t for t in din_affine(states.din, head.spec.din))
        din = _fold(scaled_BKD, weights["din"], head.project_din.weight)
        din_offset = _fold(offset_BD[:, None, :], weights["din"], head.project_din.weight)
    if "sim" in weights:
        width = states.sim.means_BGD.shape[-1]
        sim = _fold(states.sim.means_BGD, weights["sim"][:, :width], head.project_sim.weight)
        sim_log = weights["sim"][:, width]
    return FirstLayerSplit(
        constant_BH=constant_BH,
        item_BHD=item_BHD,
        bea=_fold(states.bridges_BNP, weights["bea"], head.project_bea.weight),
        din=din,
        din_offset=din_offset,
        sim=sim,
        sim_log_weight_H=sim_log,
    )


def _fold(table: Tensor, segment: Tensor, projection: Tensor) -> FoldedFactor:
    return FoldedFactor(table @ segment.T, table @ projection.T)


def apply_split(head: Head, split: FirstLayerSplit, states: UserStates, rows: CandidateRows, counts_BCN: Tensor | None = None) -> Tensor:
    """The first layer's output before ReLU: [B, C, H]. `counts_BCN` as for `Head.tiers`."""
    weights, items_BCD, bridge_BCN = slice_weights(head), rows.vectors_BCD.float(), rows.bridge_BCN.float()
    out = items_BCD @ split.item_BHD.transpose(1, 2) + split.constant_BH[:, None, :] + bridge_BCN @ split.bea.through_w
    out = out + ((bridge_BCN @ split.bea.through_p) * items_BCD) @ product_weights(weights["bea_x"]).T
    if split.din is not None and split.din_offset is not None:
        signs_BCK, has_BC1 = decode_signs(rows.signatures_BCW, rows.has_signature_BC), rows.has_signature_BC[..., None]
        out = out + signs_BCK @ split.din.through_w + split.din_offset.through_w * has_BC1
        projected_BCD = signs_BCK @ split.din.through_p + split.din_offset.through_p * has_BC1
        out = out + (projected_BCD * items_BCD) @ product_weights(weights["din_x"]).T
        out = out + head.tiers(states, signs_BCK, rows.has_signature_BC, counts_BCN) @ weights["tiers"].T
    if split.sim is not None and split.sim_log_weight_H is not None:
        out = out + _sim_part(split.sim, split.sim_log_weight_H, product_weights(weights["sim_x"]), states.sim, rows)
    return out + head.realtime(rows.realtime_BCQ) @ weights["realtime"].T


def _sim_part(folded: FoldedFactor, log_weight_H: Tensor, product_HD: Tensor, table: SimTable, rows: CandidateRows) -> Tensor:
    """Look-ups in the folded tables, then the product with the item."""
    through_w, log_counts = look_up_sim(SimTable(table.categories_BG, folded.through_w, table.log_counts_BG), rows.category_BC)
    through_p, _ = look_up_sim(SimTable(table.categories_BG, folded.through_p, table.log_counts_BG), rows.category_BC)
    return through_w + log_counts * log_weight_H + (through_p * rows.vectors_BCD.float()) @ product_HD.T


def joint_logits_split(head: Head, states: UserStates, rows: CandidateRows, counts_BCN: Tensor | None = None) -> Tensor:
    """`Head.forward` by the split: [B, C, T]. `counts_BCN` as for `Head.tiers`."""
    split = split_first_layer(head, states, rows.context)
    return torch.as_tensor(head.rest(apply_split(head, split, states, rows, counts_BCN)))
