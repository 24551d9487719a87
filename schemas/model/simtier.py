"""SimTier: how many of the latest behaviours fall into each tier of similarity to a candidate (Eq. 9), and the head's features from that.

Tier 0 is below the first edge; tier t is [edge t-1, edge t). The last of the default edges is 1.0: their top tier counts equal signatures only.

Arrays: B users, C candidates, S behaviours, K bits, W bytes, N tiers.
Source: AIF, eq. (9). Differs: the head reads log1p(count) and count / l instead of the bare counts. Here l counts the latest
`simtier_behaviours` that have a signature, and not the whole history, which DIN reads.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.model.lsh import equal_bits_min, lsh_similarity

# Of the pair matrix at a time: 1 MiB of float32, which a cache holds while the thresholds are counted; on a GPU, where each chunk costs launches, 256 MiB.
PAIRS_PER_CHUNK, PAIRS_PER_LAUNCH = 1 << 18, 1 << 26


@functools.cache
def _signs_of_bytes(device: torch.device) -> Tensor:
    """float32 [256, 8]: byte -> its bits as -1/+1, most significant first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1).to(device)


def decode_signs(signatures_W: Tensor, has_signature: Tensor) -> Tensor:
    """Packed uint8 [..., W] to -1/+1 float32 [..., K]; all zeros where `has_signature` [...] is false, so that pads drop out of every sum."""
    signs = F.embedding(signatures_W.int(), _signs_of_bytes(signatures_W.device)).flatten(-2)
    return signs * has_signature.unsqueeze(-1)


def equal_bits(candidates_BCK: Tensor, sequence_BSK: Tensor) -> Tensor:
    """float32 [B, C, S]: the number of equal bits, (K + s_i . s_j) / 2; exact, because every sum is a whole number of at most K."""
    return (candidates_BCK @ sequence_BSK.transpose(1, 2) + candidates_BCK.shape[-1]) / 2


def simtier_reference(items_CW: np.ndarray, sequence_SW: np.ndarray, tier_edges: Sequence[float]) -> np.ndarray:
    """Eq. 9 as printed: int64 [C, N] counts of similarities per tier."""
    similarity_CS = lsh_similarity(items_CW, sequence_SW)
    tier_CS = np.searchsorted(np.asarray(tier_edges), similarity_CS, side="right")
    return np.stack([(tier_CS == tier).sum(axis=1) for tier in range(len(tier_edges) + 1)], axis=1)


@torch.no_grad()
def simtier_counts(candidates_BCK: Tensor, sequence_BSK: Tensor, has_signature_BS: Tensor, tier_edges: Sequence[float]) -> Tensor:
    """Eq. 9 for a batch: float32 [B, C, N]. Signs are -1/+1 (`decode_signs`); behaviours without a signature are not counted.

    The counts of a candidate without a signature are meaningless; `simtier_features` sets them to zero.
    """
    users, candidates, _ = candidates_BCK.shape
    pairs = PAIRS_PER_CHUNK if candidates_BCK.device.type == "cpu" else PAIRS_PER_LAUNCH
    rows = max(1, pairs // max(1, users * sequence_BSK.shape[1]))
    total_B1 = has_signature_BS.sum(dim=1, keepdim=True).float()
    starts = range(0, max(1, candidates), rows)
    chunks = [_at_least(candidates_BCK[:, at : at + rows], sequence_BSK, has_signature_BS, tier_edges) for at in starts]
    cumulative_BCN = torch.cat([total_B1[:, :, None].expand(users, candidates, 1), torch.cat(chunks, dim=1)], dim=2)
    counts_BCN = cumulative_BCN.clone()
    counts_BCN[..., :-1] -= cumulative_BCN[..., 1:]
    return counts_BCN


def count_plainly(items_CW: Tensor, sequence_SW: Tensor, tier_edges: Sequence[float]) -> Tensor:
    """The same for one user, from packed signatures uint8: float32 [C, N]. Every behaviour is counted."""
    items_CK, sequence_SK = (decode_signs(one, one.new_ones(len(one))) for one in (items_CW, sequence_SW))
    return simtier_counts(items_CK[None], sequence_SK[None], sequence_SW.new_ones(1, len(sequence_SW), dtype=torch.bool), tier_edges)[0]


def _at_least(candidates_BCK: Tensor, sequence_BSK: Tensor, has_signature_BS: Tensor, tier_edges: Sequence[float]) -> Tensor:
    """[B, C, N - 1]: behaviours with at least edge t of similarity, for each edge."""
    equal_BCS = equal_bits(candidates_BCK, sequence_BSK).masked_fill_(~has_signature_BS[:, None, :], -1.0)
    minima = equal_bits_min(tier_edges, candidates_BCK.shape[-1])
    return torch.stack([(equal_BCS >= minimum).sum(dim=2, dtype=torch.float32) for minimum in minima], dim=2)


def simtier_features(counts_BCN: Tensor, behaviours_B: Tensor, has_signature_BC: Tensor) -> Tensor:
    """The head's input [B, C, 2N] = log1p(count), count / l; zeros for a candidate without a signature or a user without behaviours."""
    share_BCN = counts_BCN / behaviours_B.clamp(min=1)[:, None, None]
    return torch.cat([counts_BCN.log1p(), share_BCN], dim=2) * has_signature_BC[..., None]
