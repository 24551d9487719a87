"""Signatures as signs, and the number of equal bits as a matrix product (Eq. 6).

Here: the torch form. Not here: the reference (lsh.py), the tiers (simtier.py).

Arrays: B users, C candidates, S behaviours with signatures, K bits, W bytes.
"""

import functools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


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
