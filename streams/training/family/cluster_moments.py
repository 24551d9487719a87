"""Moments in the place of SimTier's histogram: how many of a user's behaviours lie in each cluster of the catalogue, and their mean vector.

Here: the clusters of a catalogue, and the tiers of Eq. 9 as they follow from counts and means. Not here: the vectors (codes.py), the time of the
form (evaluation/costs.py).

The mean cosine of a candidate c to the n_k behaviours of cluster k is c . m_k, m_k their mean vector, exactly. How they lie around it is not known,
so they are taken to be spread as a logistic step of width CLUSTER_SPREAD, and about

    sum_k n_k sigmoid((c . m_k - edge) / CLUSTER_SPREAD)

of them reach a tier's lower edge. Counts and sums of vectors are made once per user, change by one addition when a behaviour comes, and cost a
candidate the same however long the history is.

It costs less than three moments of all cosines at once (mean, deviation, skewness), whose third is a sum over triples of directions, and needs no
layers of its own. What each form knows, and what it loses in a trained model, is in docs/EXPERIMENTS.md.

Arrays: R rows, B users, C candidates, L behaviours, P principal directions, K clusters, N tiers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

CLUSTERS = 32  # of a catalogue; 16 and 64 tell a small network about as much of the interest
CLUSTER_SPREAD = 0.083  # of a logistic step with deviation .15; the real variance of each cluster told a small network no more
_ROUNDS = 15


def cluster_rows(unit_RP: np.ndarray) -> np.ndarray:
    """The cluster of each unit vector, int64 [R] in 0..CLUSTERS - 1: k-means on the sphere, begun at rows that lie evenly in the catalogue."""
    centres_KP = unit_RP[np.linspace(0, len(unit_RP) - 1, min(CLUSTERS, len(unit_RP))).astype(np.int64)]
    for _ in range(_ROUNDS):
        member_RK = np.eye(len(centres_KP), dtype=unit_RP.dtype)[(unit_RP @ centres_KP.T).argmax(axis=1)]
        sums_KP = member_RK.T @ unit_RP
        centres_KP = sums_KP / np.maximum(np.linalg.norm(sums_KP, axis=1, keepdims=True), 1e-9)
    return np.asarray((unit_RP @ centres_KP.T).argmax(axis=1))


def sum_clusters(codes_BLP: Tensor, cluster_BL: Tensor, has_code_BL: Tensor) -> tuple[Tensor, Tensor]:
    """What is kept of a user: how many known behaviours each cluster has [B, K], and their mean vectors [B, K, P], 0 where it has none."""
    member_BLK = torch.nn.functional.one_hot(cluster_BL, CLUSTERS).to(codes_BLP.dtype) * has_code_BL[..., None]
    count_BK = member_BLK.sum(dim=1)
    return count_BK, member_BLK.transpose(1, 2) @ codes_BLP / count_BK.clamp(min=1)[..., None]


def expect_at_least(candidates_BCP: Tensor, count_BK: Tensor, mean_BKP: Tensor, edges: Sequence[float]) -> Tensor:
    """How many behaviours are expected to reach each edge, [B, C, len(edges)]."""
    mean_BCK = candidates_BCP @ mean_BKP.transpose(1, 2)
    steps = [torch.sigmoid((mean_BCK - edge) / CLUSTER_SPREAD) @ count_BK[..., None] for edge in edges]
    return torch.cat(steps, dim=2)
