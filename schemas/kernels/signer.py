"""Signatures of many embeddings, compiled (Eq. 5): the bits of `lsh.encode_signatures`, which is the specification, at a fraction of its time.

BLOCK rows at a time are scaled by a power of two, rounded to whole numbers, and multiplied by W_hash in tiles. The signs of eight sums are a byte.

Arrays: R rows, B of a block, M width of the embedding, K bits, W = K/8 bytes.
"""

import math

import numpy as np

from schemas.kernels.compiled import kernel, subkernel
from schemas.kernels.float64_code import LANES, store_signs
from schemas.kernels.products import BLOCK, TILE_ROWS, multiply, pack_panels
from schemas.kernels.vector_blocks import address, aligned

_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to a whole number
_MAGNITUDE, _FRACTION_BITS, _BIAS = np.uint32(0x7FFFFFFF), 23, 126  # of a float32


class Signer:
    """Keeps no state between calls, so threads share it. `w_hash_KM` is on its grid (`lsh.is_on_grid`); an embedding is rounded to `grid_bits` bits."""

    def __init__(self, w_hash_KM: np.ndarray, grid_bits: int) -> None:
        self._grid_bits = grid_bits
        bits = len(w_hash_KM)
        # the first of eight sums is the highest bit of its byte, and the last lane of the vector
        order_K = np.arange(bits).reshape(-1, LANES)[:, ::-1].ravel()
        self._panels, self._starts = pack_panels(w_hash_KM[order_K].T, np.float64), np.zeros(bits)
        self._width = w_hash_KM.shape[1]

    def sign_into(self, mm_RM: np.ndarray, places: np.ndarray, signatures_RW: np.ndarray) -> None:
        """Signatures of the rows `places` of finite float32 embeddings, into those rows of a uint8 column whose rows may lie at any distance."""
        if not len(places):
            return
        taken = -(-min(len(places), BLOCK) // TILE_ROWS) * TILE_ROWS
        inputs_BM, sums_BK = aligned((taken, self._width), np.float64), aligned((taken, len(self._starts)), np.float64)
        column, stride = signatures_RW.__array_interface__["data"][0], signatures_RW.strides[0]
        mm_RM = np.ascontiguousarray(mm_RM, np.float32)
        _sign(
            mm_RM,
            mm_RM.view(np.uint32),
            places.astype(np.int64),
            self._grid_bits,
            self._panels,
            self._starts,
            inputs_BM,
            sums_BK,
            column,
            stride,
        )


@subkernel
def _exponent(bits_M: np.ndarray) -> int:
    """e of the greatest |m| = f * 2^e with f in [0.5, 1); 0 of zeros. Greater numbers have greater bits."""
    greatest = np.uint32(0)
    for bits in bits_M:
        greatest = max(greatest, bits & _MAGNITUDE)
    if greatest == 0:
        return 0
    biased = np.int64(greatest) >> _FRACTION_BITS
    return int(biased) - _BIAS if biased > 0 else math.frexp(np.float64(greatest))[1] - _BIAS - _FRACTION_BITS


@kernel
def _sign(
    mm_RM: np.ndarray,
    bits_RM: np.ndarray,
    places: np.ndarray,
    grid_bits: int,
    panels: np.ndarray,
    starts: np.ndarray,
    inputs_BM: np.ndarray,
    sums_BK: np.ndarray,
    column: int,
    stride: int,
) -> None:
    width, wide = mm_RM.shape[1], sums_BK.shape[1]
    for start in range(0, places.shape[0], BLOCK):
        rows = min(BLOCK, places.shape[0] - start)
        for i in range(rows):
            place = places[start + i]
            scale = math.ldexp(1.0, grid_bits - _exponent(bits_RM[place]))
            for m in range(width):
                inputs_BM[i, m] = (np.float64(mm_RM[place, m]) * scale + _ROUND) - _ROUND
        multiply(rows, address(inputs_BM), 8 * width, address(panels), width, wide, address(starts), 0, address(sums_BK), 8 * wide, -np.inf)
        for i in range(rows):
            store_signs(address(sums_BK) + 8 * i * wide, wide // LANES, column + places[start + i] * stride)


def compile_signer() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    Signer(np.ones((LANES, 1), np.float32), 1).sign_into(np.ones((1, 1), np.float32), np.zeros(1, np.int64), np.zeros((1, 1), np.uint8))
