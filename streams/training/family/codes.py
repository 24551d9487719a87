"""What similarity is measured on in the family: one float vector per item in which signatures and embeddings stand side by side.

Here: the vectors, and Eq. 7-9 in forms that have a gradient where the paper's have one. Not here: the packed forms that serving runs
(schemas/model/{lsh,din,simtier}.py), against which the tests hold these.

A signature of K bits becomes the unit vector s / sqrt(K) with s = 2 bit - 1, so s_i . s_j / K = 2 sim - 1; an embedding is made a unit
vector. So both kinds of similarity are one dot product in -1..1, and both DINs factor. By similar angles: cos(pi (1 - sim)) is the cosine
that a share `sim` of equal bits stands for, so the tiers of the two kinds have the same meaning.

Arrays: R rows, B users, C candidates, L behaviours, K bits, M multimodal width, X = K or M, D width, N tiers.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from schemas.model.hamming import decode_signs
from streams.training.impressions import TrainingSet

MOMENTS = 3
_MOMENT_SCALES = (3.0, 5.0, 5.0)  # brings mean, second moment and variance to the size of the other segments
_EQUAL = 1e-4  # a unit vector's product with itself misses 1 by rounding


def with_codes(data: TrainingSet) -> TrainingSet:
    """The same set with float codes [R, K + M] in the place of packed signatures."""
    items = data.items
    signs_RK = decode_signs(items.signatures_RW, items.has_signature_R)
    norm_R1 = np.linalg.norm(items.multimodal_RM, axis=1, keepdims=True)
    unit_RM = torch.from_numpy((items.multimodal_RM / np.maximum(norm_R1, 1e-12)).astype(np.float32))
    codes_RX = torch.cat([signs_RK / math.sqrt(max(1, signs_RK.shape[1])), unit_RM], dim=1)
    return dataclasses.replace(data, items=dataclasses.replace(items, signatures_RW=codes_RX))


def similarity_edges(tier_edges: Sequence[float], kind: str) -> tuple[float, ...]:
    """The lower edges of the upper tiers as values of the dot product of codes; the last, "equal", allows for rounding."""
    if kind == "lsh":
        return tuple(2 * edge - 1 - 1e-6 for edge in tier_edges)
    return tuple(math.cos(math.pi * (1 - edge)) - (_EQUAL if edge >= 1 else 0.0) for edge in tier_edges)


def factored_din(candidates_BCX: Tensor, history_BLX: Tensor, projected_BLD: Tensor, has_code_BL: Tensor) -> Tensor:
    """Eq. 8, centred, over any code: sum_j (c . h_j) V_j / l, made from C^T V once per user: [B, C, D]."""
    cross_BXD = history_BLX.transpose(1, 2) @ (projected_BLD * has_code_BL[..., None])
    return candidates_BCX @ cross_BXD / has_code_BL.sum(dim=1).clamp(min=1)[:, None, None]


@torch.no_grad()
def tier_features(similarity_BCL: Tensor, has_code_BL: Tensor, edges: Sequence[float]) -> Tensor:
    """Eq. 9 as the head reads it: log1p(count) and count / l of each tier, [B, C, 2 N]."""
    masked_BCL = similarity_BCL.masked_fill(~has_code_BL[:, None, :], -9.0)
    total_B = has_code_BL.sum(dim=1).float()
    upper_BCN = torch.stack([(masked_BCL >= edge).sum(dim=2) for edge in edges], dim=2).float()
    at_least_BCN = torch.cat([total_B[:, None, None].expand(*masked_BCL.shape[:2], 1), upper_BCN], dim=2)
    counts_BCN = at_least_BCN - torch.nn.functional.pad(at_least_BCN[..., 1:], (0, 1))
    return torch.cat([counts_BCN.log1p(), counts_BCN / total_B.clamp(min=1)[:, None, None]], dim=2)


def moment_features(candidates_BCX: Tensor, history_BLX: Tensor, has_code_BL: Tensor) -> Tensor:
    """Mean, second moment and variance of the similarity to all behaviours, exact and without a pass over them: [B, C, MOMENTS].

    mean = c . sum(h) / l and second moment = c^T (H^T H) c / l: the user half makes both sums once.
    """
    known_BLX = history_BLX * has_code_BL[..., None]
    length_B1 = has_code_BL.sum(dim=1).clamp(min=1)[:, None]
    mean_BC = torch.einsum("bcx,bx->bc", candidates_BCX, known_BLX.sum(dim=1)) / length_B1
    gram_BXX = known_BLX.transpose(1, 2) @ known_BLX
    second_BC = ((candidates_BCX @ gram_BXX) * candidates_BCX).sum(dim=2) / length_B1
    moments = (mean_BC, second_BC, second_BC - mean_BC**2)
    return torch.stack([m * scale for m, scale in zip(moments, _MOMENT_SCALES, strict=True)], dim=2)
