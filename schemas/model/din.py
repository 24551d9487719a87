"""DIN over hash similarity (Eq. 8): a sum of projected behaviours weighted by their similarity to the candidate, over the whole history.

The similarity is linear in the signs s = 2 bit - 1, so:

    sim_ij = (1 + s_i . s_j / K) / 2
    sum_j sim_ij V_j = (sum_j V_j + s_i (S^T V) / K) / 2

The user half computes sum V [D] and S^T V [K, D] once. A candidate then costs K x D, whatever the length, and a new behaviour is a rank-1 update.
This requires that padding and behaviours without a signature are zero rows of S and of V, which then add nothing.
The sums belong to (user, model, LSH version): computed in the first call after a flip, dropped with the version.

Arrays: B users, C candidates, L behaviours, K bits, D width.
V_j is the behaviour as projected by W_seq of eq. (1): one projection for attention, DIN and SIM.
Source: AIF, eq. (8), with the comma as printed there read as a product; the factoring: EcoFormer (arXiv 2209.09004),
SDIM (arXiv 2205.10249). Differs: "centred" is sum (2 sim - 1) V / l, which learns better than the raw sum (`ModelSpec.din`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def din_reference(similarity_BCL: Tensor, projected_BLD: Tensor, has_signature_BL: Tensor, form: str) -> Tensor:
    """Eq. 8 directly: [B, C, D] from the similarity matrix of Eq. 7. `form` is "raw" (as printed) or "centred"."""
    values_BLD = projected_BLD * has_signature_BL[..., None]
    if form == "raw":
        return similarity_BCL @ values_BLD
    return (2 * similarity_BCL - 1) @ values_BLD / has_signature_BL.sum(dim=1).clamp(min=1)[:, None, None]


@dataclass(frozen=True, slots=True)
class DinSums:
    """What Eq. 8 needs of a user: sum_BD = sum V, cross_BKD = S^T V, count_B = l, the number of behaviours with a signature (float32)."""

    sum_BD: Tensor
    cross_BKD: Tensor
    count_B: Tensor


def build_din_sums(projected_BLD: Tensor, signs_BLK: Tensor, has_signature_BL: Tensor) -> DinSums:
    """The sums of a history. `signs_BLK` is zero where there is no signature (`decode_signs`)."""
    sum_BD = (projected_BLD * has_signature_BL[..., None]).sum(dim=1)
    return DinSums(sum_BD, signs_BLK.transpose(1, 2) @ projected_BLD, has_signature_BL.sum(dim=1).to(projected_BLD.dtype))


def din_from_sums(candidates_BCK: Tensor, sums: DinSums, form: str) -> Tensor:
    """Eq. 8 from the sums: [B, C, D]. Equal to `din_reference` up to rounding.

    A candidate without a signature (zero signs) must be blanked if form is "raw".
    """
    weighted_BKD, offset_BD = din_affine(sums, form)
    return candidates_BCK @ weighted_BKD + offset_BD[:, None, :]


def din_affine(sums: DinSums, form: str) -> tuple[Tensor, Tensor]:
    """DIN is affine in the candidate's signs: (T [B, K, D], offset [B, D]) with DIN_i = s_i T + offset."""
    bits = sums.cross_BKD.shape[1]
    if form == "raw":
        return sums.cross_BKD / (2 * bits), sums.sum_BD / 2
    return sums.cross_BKD / (bits * sums.count_B.clamp(min=1)[:, None, None]), torch.zeros_like(sums.sum_BD)
