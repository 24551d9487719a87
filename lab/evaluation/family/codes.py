"""The codes that the family measures similarity on: one float vector per item, with its signature and its embedding.

A signature of K bits becomes the unit vector s / sqrt(K) with s = 2 bit - 1: s_i . s_j / K = 2 sim - 1. An embedding becomes a unit vector. So both
kinds of similarity are one dot product in -1..1, and both DINs factor. A share `sim` of equal bits stands for the cosine cos(pi (1 - sim)), so the tiers of
the two kinds have the same meaning.

Moments instead of SimTier's histogram: how many of a user's behaviours lie in each cluster of the catalogue, and their mean vector. The mean cosine of
a candidate c to the n_k behaviours of cluster k is c . m_k, m_k their mean vector, exactly. How they lie around it is not known, so they are taken to be
spread as a logistic step of width CLUSTER_SPREAD, and about

    sum_k n_k sigmoid((c . m_k - edge) / CLUSTER_SPREAD)

of them reach a tier's lower edge. Counts and sums of vectors are made once per user and change by one addition when a behaviour comes. Their cost for a
candidate does not depend on the history's length. Three moments of all cosines at once (mean, deviation, skewness) would cost more, because the third is a
sum over triples of directions, and would need layers of their own. See docs/EXPERIMENTS.md for the forms in trained models.

Arrays: R rows, B users, C candidates, L behaviours, K bits (of clusters: clusters), D width, N tiers.
Also: M multimodal width, P principal directions, X = K, M or P.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from schemas.model.simtier import decode_signs
from streams.training.impressions import TrainingSet

MOMENT_WIDTH = 16  # principal directions in which moments are taken
CLUSTERS = 32  # of a catalogue; 16 and 64 tell a small network about as much of the interest
CLUSTER_SPREAD = 0.083  # of a logistic step with deviation .15; the real variance of each cluster told a small network no more
_ROUNDS = 15
_EQUAL = 1e-4  # a unit vector's product with itself misses 1 by rounding


def with_codes(data: TrainingSet, moments: bool = False) -> TrainingSet:
    """The same set with float codes [R, K + M] instead of packed signatures.

    With `moments` each code is [R, K + M + P + 1]: it also has its part in the principal directions, as a unit vector, and the number of its cluster.
    The rest of an embedding is noise to a similarity."""
    items = data.items
    signs_RK = decode_signs(items.signatures_RW, items.has_signature_R)
    norm_R1 = np.linalg.norm(items.multimodal_RM.astype(np.float64), axis=1, keepdims=True)  # squares of float32 may overflow it
    unit_RM = (items.multimodal_RM / np.maximum(norm_R1, 1e-12)).astype(np.float32)
    parts = [signs_RK / math.sqrt(max(1, signs_RK.shape[1])), torch.from_numpy(unit_RM)]
    if moments:
        narrow_RP = torch.nn.functional.normalize(torch.from_numpy(unit_RM @ principal_directions(unit_RM, MOMENT_WIDTH)), dim=1)
        parts += [narrow_RP, torch.from_numpy(cluster_rows(narrow_RP.numpy())).float()[:, None]]
    return dataclasses.replace(data, items=dataclasses.replace(items, signatures_RW=torch.cat(parts, dim=1)))


def principal_directions(unit_RM: np.ndarray, count: int) -> np.ndarray:
    """The directions in which the catalogue's embeddings are greatest, float32 [M, min(count, M)]: dot products change least without the others."""
    unit_RM = unit_RM.astype(np.float64)
    _, vectors_MM = np.linalg.eigh(unit_RM.T @ unit_RM)
    return vectors_MM[:, ::-1][:, :count].astype(np.float32)


def cluster_rows(unit_RP: np.ndarray) -> np.ndarray:
    """The cluster of each unit vector, int64 [R] in 0..CLUSTERS - 1: k-means on the sphere, begun at rows that lie evenly in the catalogue."""
    centres_KP = unit_RP[np.linspace(0, len(unit_RP) - 1, min(CLUSTERS, len(unit_RP))).astype(np.int64)]
    for _ in range(_ROUNDS):
        member_RK = np.eye(len(centres_KP), dtype=unit_RP.dtype)[(unit_RP @ centres_KP.T).argmax(axis=1)]
        sums_KP = member_RK.T @ unit_RP
        centres_KP = sums_KP / np.maximum(np.linalg.norm(sums_KP, axis=1, keepdims=True), 1e-9)
    return np.asarray((unit_RP @ centres_KP.T).argmax(axis=1))


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
    return _counts_and_shares(upper_BCN, total_B)


def sum_clusters(codes_BLP: Tensor, cluster_BL: Tensor, has_code_BL: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of a user: how many known behaviours each cluster has [B, K], and their mean vectors [B, K, P], 0 for an empty cluster."""
    member_BLK = torch.nn.functional.one_hot(cluster_BL, CLUSTERS).to(codes_BLP.dtype) * has_code_BL[..., None]
    count_BK = member_BLK.sum(dim=1)
    return count_BK, member_BLK.transpose(1, 2) @ codes_BLP / count_BK.clamp(min=1)[..., None]


def expect_at_least(candidates_BCP: Tensor, count_BK: Tensor, mean_BKP: Tensor, edges: Sequence[float]) -> Tensor:
    """How many behaviours are expected to reach each edge, [B, C, len(edges)]."""
    mean_BCK = candidates_BCP @ mean_BKP.transpose(1, 2)
    steps = [torch.sigmoid((mean_BCK - edge) / CLUSTER_SPREAD) @ count_BK[..., None] for edge in edges]
    return torch.cat(steps, dim=2)


@torch.no_grad()
def moment_tier_features(candidates_BCX: Tensor, history_BLX: Tensor, has_code_BL: Tensor, edges: Sequence[float]) -> Tensor:
    """The same expected from counts and means of clusters, [B, C, 2 N]. Codes are a vector and the number of its cluster."""
    count_BK, mean_BKP = sum_clusters(history_BLX[..., :-1], history_BLX[..., -1].long(), has_code_BL)
    upper_BCN = expect_at_least(candidates_BCX[..., :-1], count_BK, mean_BKP, edges)
    return _counts_and_shares(upper_BCN, has_code_BL.sum(dim=1).float())


def _counts_and_shares(upper_BCN: Tensor, total_B: Tensor) -> Tensor:
    """From how many reach each of the upper tiers to what the head reads of all tiers."""
    at_least_BCN = torch.cat([total_B[:, None, None].expand(*upper_BCN.shape[:2], 1), upper_BCN], dim=2)
    counts_BCN = (at_least_BCN - torch.nn.functional.pad(at_least_BCN[..., 1:], (0, 1))).clamp(min=0)
    return torch.cat([counts_BCN.log1p(), counts_BCN / total_B.clamp(min=1)[:, None, None]], dim=2)
