"""Signatures: multimodal embeddings to K bits (Eq. 5), and the similarity of two signatures (Eq. 6).

A signature is K/8 bytes, most significant bit first: the bits 00110101 are the byte 53.

Invariant: a signature has the same bits on every CPU, with every BLAS, in every batch. W_hash lies on the grid 2^-10 and within +-8. An
embedding is scaled by a power of two to max |m| in [0.5, 1) and rounded to the grid 2^-20. So a product is a whole number within +-2^33 on the
grid 2^-30. A sum of at most 1,024 of them fits the 53 bits of fp64: every partial sum is exact, in any order.
W_hash travels as bytes in the checkpoint, never as a seed.

Arrays: R rows, M width of the multimodal embedding, K bits, W = K/8 bytes, C candidates, L behaviours.
Source: AIF, eq. (5), eq. (6), eq. (7). As printed, Relu(Sign(0)) = 0 is the bit 0. Differs: both factors are rounded to a grid.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from schemas.errors import RejectedInput
from schemas.limits import EMBEDDING_WIDTH_MAX

W_HASH_GRID_BITS = 10
W_HASH_ABS_MAX = 8.0
EMBEDDING_GRID_BITS = 20
# Blocks of this size fit into a cache, and OpenBLAS computes such a small product in one thread. On a busy machine several threads would wait for each
# other ten times longer than they compute.
_ONE_THREAD_PRODUCTS, _ROWS_AT_ONCE_MIN, _ROWS_AT_ONCE_MAX = 1 << 18, 16, 256

assert 3 + W_HASH_GRID_BITS + EMBEDDING_GRID_BITS + EMBEDDING_WIDTH_MAX.bit_length() <= 53

# How many bits of a byte are 1: the 1 x 256 table that replaces the population count (paper, 4.2).
POPCOUNT_256 = np.array([byte.bit_count() for byte in range(256)], np.uint8)


def make_w_hash(seed: int, bits: int, mm_width: int) -> np.ndarray:
    """W_hash ~ N(0, 1) on the grid: float32 [bits, mm_width]. Made once per catalogue; from then on only its bytes are used, never the seed."""
    drawn = np.random.default_rng(seed).standard_normal((bits, mm_width))
    grid = float(1 << W_HASH_GRID_BITS)
    return (np.rint(drawn.clip(-W_HASH_ABS_MAX, W_HASH_ABS_MAX) * grid) / grid).astype(np.float32)


def is_on_grid(w_hash_KM: np.ndarray) -> bool:
    """Whether a W_hash keeps the exactness of this module: finite, within +-8, multiples of 2^-10."""
    scaled = w_hash_KM.astype(np.float64) * (1 << W_HASH_GRID_BITS)
    return bool(np.isfinite(scaled).all() and (scaled == np.rint(scaled)).all() and (np.abs(w_hash_KM) <= W_HASH_ABS_MAX).all())


def encode_signatures(mm_RM: np.ndarray, w_hash_KM: np.ndarray) -> np.ndarray:
    """Eq. 5, packed: uint8 [R, K/8]. The scale of an embedding does not matter; an embedding of zeros has the signature of zeros.

    Raises RejectedInput (`bad_embedding`) if a value is not finite or the width is not W_hash's.
    """
    if mm_RM.ndim != 2 or mm_RM.shape[1] != w_hash_KM.shape[1]:
        raise RejectedInput("bad_embedding", f"embeddings of shape {mm_RM.shape}, expected [rows, {w_hash_KM.shape[1]}]")
    if not np.isfinite(mm_RM).all():
        raise RejectedInput("bad_embedding", "an embedding holds a value that is not finite; send finite numbers")
    w_MK = np.ascontiguousarray(w_hash_KM.T, np.float64)
    packed_RW = np.empty((len(mm_RM), -(-w_MK.shape[1] // 8)), np.uint8)
    step = min(max(_ONE_THREAD_PRODUCTS // max(w_MK.size, 1), _ROWS_AT_ONCE_MIN), _ROWS_AT_ONCE_MAX)
    for at in range(0, len(mm_RM), step):
        rows = slice(at, at + step)
        packed_RW[rows] = np.packbits(_whole_numbers(mm_RM[rows]) @ w_MK > 0, axis=1)
    return packed_RW


def _whole_numbers(mm_RM: np.ndarray) -> np.ndarray:
    """Each embedding as whole numbers within +-2^20."""
    m_RM = mm_RM.astype(np.float64)
    _, exponent_R = np.frexp(np.abs(m_RM).max(axis=1, initial=0.0))
    m_RM *= np.ldexp(1.0, EMBEDDING_GRID_BITS - exponent_R)[:, None]  # a power of two: exact
    return np.rint(m_RM, out=m_RM)


def lsh_similarity(items_CW: np.ndarray, sequence_LW: np.ndarray) -> np.ndarray:
    """Eq. 6 and 7, the reference: float64 [C, L], the share of equal bits by XNOR and the population count table."""
    xnor_CLW = ~(items_CW[:, None, :] ^ sequence_LW[None, :, :])
    return POPCOUNT_256[xnor_CLW].sum(axis=2, dtype=np.int64) / (8 * items_CW.shape[1])


def equal_bits_min(tier_edges: Sequence[float], bits: int) -> tuple[int, ...]:
    """For each edge the smallest number of equal bits e with e / bits >= edge: the edges as whole numbers, so no rounding decides a tier."""
    similarity = np.arange(bits + 1) / bits
    return tuple(int((similarity < edge).sum()) for edge in tier_edges)


def lsh_version(w_hash_KM: np.ndarray, multimodal: str) -> str:
    """16 hex digits that change with W_hash's bytes or shape, or the feature it hashes: only signatures of one LSH version compare."""
    rows, width = w_hash_KM.shape
    head = f"aif-lsh-1/{multimodal}/{rows}x{width}/".encode()
    return hashlib.sha256(head + np.ascontiguousarray(w_hash_KM, "<f4").tobytes()).hexdigest()[:16]
