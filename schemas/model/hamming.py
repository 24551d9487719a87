"""Counting equal bits: the Hamming histogram from which every tier histogram is pooled, and equal bits as a matrix product.

Here: the NumPy reference (`hamming_histogram`, `pool_histogram`) and the torch form (`decode_signs`, `equal_bits`). Not here: the tiers'
features (simtier.py). A threshold is not linear, so SimTier does not factor as DIN does. But whatever the edges are, the N tiers of Eq. 9
are sums over bins of one histogram, that of Hamming distances.

Arrays: B users, C candidates, S behaviours with signatures, K bits, W bytes, H = K + 1 bins, N tiers.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.model.lsh import POPCOUNT_256


def hamming_histogram(items_CW: np.ndarray, sequence_SW: np.ndarray) -> np.ndarray:
    """int64 [C, K + 1]: how many behaviours lie at each Hamming distance of each candidate."""
    distance_CS = POPCOUNT_256[items_CW[:, None, :] ^ sequence_SW[None, :, :]].sum(axis=2, dtype=np.int64)
    bins = 8 * items_CW.shape[1] + 1
    return np.stack([np.bincount(row, minlength=bins) for row in distance_CS]) if len(items_CW) else np.zeros((0, bins), np.int64)


def pool_histogram(histogram_CH: np.ndarray, tier_edges: Sequence[float]) -> np.ndarray:
    """int64 [C, N]: the tiers of Eq. 9 from the (K + 1)-bin histogram."""
    bits = histogram_CH.shape[1] - 1
    tier_of_distance = np.searchsorted(np.asarray(tier_edges), (bits - np.arange(bits + 1)) / bits, side="right")
    tiers = np.zeros((len(histogram_CH), len(tier_edges) + 1), np.int64)
    np.add.at(tiers.T, tier_of_distance, histogram_CH.T)
    return tiers


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
