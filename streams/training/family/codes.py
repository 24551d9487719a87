"""What similarity is measured on in the family: one float vector per item in which signatures and embeddings stand side by side.

Here: the vectors, and Eq. 7-9 in forms that have a gradient where the paper's have one. Not here: the packed forms that serving runs
(schemas/model/{lsh,din,simtier}.py), against which the tests hold these.

A signature of K bits becomes the unit vector s / sqrt(K) with s = 2 bit - 1, so s_i . s_j / K = 2 sim - 1; an embedding is made a unit
vector. So both kinds of similarity are one dot product in -1..1, and both DINs factor. By similar angles: cos(pi (1 - sim)) is the cosine
that a share `sim` of equal bits stands for, so the tiers of the two kinds have the same meaning.

Arrays: R rows, B users, C candidates, L behaviours, K bits, M multimodal width, P principal directions, X = K, M or P, D width, N tiers.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from schemas.model.hamming import decode_signs
from streams.training.impressions import TrainingSet

MOMENTS = 4  # numbers that stand for the histogram: three moments and how many there are
SHAPE_HIDDEN = 32  # units of the layer that makes non-linear functions of them
MOMENT_WIDTH = 16  # principal directions in which moments are taken: the sums of the third are of as many numbers to the third power / 6
_MOMENT_CENTRES, _MOMENT_SPREADS = (0.06, 0.27, 0.0, 3.8), (0.16, 0.06, 0.5, 0.5)  # of mean, deviation, skewness and log1p(l)
_SKEWNESS_MAX = 5.0
_DEVIATION_MIN = 1e-3
_EQUAL = 1e-4  # a unit vector's product with itself misses 1 by rounding


def with_codes(data: TrainingSet, moments: bool = False) -> TrainingSet:
    """The same set with float codes [R, K + M] in the place of packed signatures; with `moments` also, as a unit vector again, its part in the
    principal directions [R, K + M + P]: what lies outside them is noise to a similarity."""
    items = data.items
    signs_RK = decode_signs(items.signatures_RW, items.has_signature_R)
    norm_R1 = np.linalg.norm(items.multimodal_RM, axis=1, keepdims=True)
    unit_RM = (items.multimodal_RM / np.maximum(norm_R1, 1e-12)).astype(np.float32)
    parts = [signs_RK / math.sqrt(max(1, signs_RK.shape[1])), torch.from_numpy(unit_RM)]
    if moments:
        parts.append(torch.nn.functional.normalize(torch.from_numpy(unit_RM @ principal_directions(unit_RM, MOMENT_WIDTH)), dim=1))
    return dataclasses.replace(data, items=dataclasses.replace(items, signatures_RW=torch.cat(parts, dim=1)))


def principal_directions(unit_RM: np.ndarray, count: int) -> np.ndarray:
    """The directions in which the catalogue's embeddings are greatest, float32 [M, min(count, M)]: dot products change least without the others."""
    unit_RM = unit_RM.astype(np.float64)
    _, vectors_MM = np.linalg.eigh(unit_RM.T @ unit_RM)
    return vectors_MM[:, ::-1][:, :count].astype(np.float32)


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


@torch.no_grad()
def moment_features(similarity_BCL: Tensor, has_code_BL: Tensor) -> Tensor:
    """In the place of Eq. 9, [B, C, MOMENTS] with x = c . h_j over the l behaviours of a user:

        m = sum_j x / l,  s = sqrt(sum_j (x - m)^2 / l),  g = sum_j (x - m)^3 / (l s^3),  log1p(l)

    each less what it is of most users and over its spread. Mean, deviation and skewness do not depend on l; a histogram of counts knows it, and
    l says how sure the others are. Here by a pass over the behaviours. They factor: x^k is the dot product of the monomials of degree k of c and
    of h_j, and m, s and g follow from sums of x, x^2 and x^3, so three sums of monomials over the behaviours, made once per user, give them for
    every candidate (evaluation/similarity_cost.py times that form).
    """
    has_B1L, length_B1 = has_code_BL[:, None, :], has_code_BL.sum(dim=1).clamp(min=1)[:, None]
    mean_BC = (similarity_BCL * has_B1L).sum(dim=2) / length_B1
    centred_BCL = (similarity_BCL - mean_BC[..., None]) * has_B1L
    deviation_BC = ((centred_BCL**2).sum(dim=2) / length_B1).sqrt().clamp(min=_DEVIATION_MIN)
    skewness_BC = ((centred_BCL**3).sum(dim=2) / length_B1 / deviation_BC**3).clamp(-_SKEWNESS_MAX, _SKEWNESS_MAX)
    count_BC = has_code_BL.sum(dim=1).float().log1p()[:, None].expand_as(mean_BC)
    moments = (mean_BC, deviation_BC, skewness_BC, count_BC)
    return torch.stack([(m - c) / s for m, c, s in zip(moments, _MOMENT_CENTRES, _MOMENT_SPREADS, strict=True)], dim=2)
