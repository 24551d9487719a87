"""Signatures in compiled form: SimTier counts, and sums of signs through nibble tables.

Here: kernels on packed signatures. Not here: what the counts mean (schemas/model/simtier.py), DIN (schemas/model/din.py).
Both are exact re-arrangements: counts are whole numbers; a sum of signs s_i T is a sum of one precomputed row per nibble of the signature.

Arrays: C candidates, S behaviours, W signature bytes, Q = ceil(W / 8) words, K bits, N tiers, G nibbles, X width of the summed rows.
Source: AIF, eq. (9); the nibble tables: four bits have sixteen sums.
"""

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

U = np.uint64


@intrinsic
def _popcount(_context, _word):  # type: ignore[no-untyped-def]
    def emit(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), emit


def pack_words(signatures_RW: np.ndarray) -> np.ndarray:
    """uint64 [R, Q]: packed signatures as words, padded with zeros (equal on both sides, so they add no distance)."""
    rows, width = signatures_RW.shape
    words = -(-width // 8)
    padded = np.zeros((rows, words * 8), np.uint8)
    padded[:, :width] = signatures_RW
    return padded.view(np.uint64)


def tier_of_distances(equal_bits_min: tuple[int, ...], bits: int) -> np.ndarray:
    """uint8 [K + 1]: the tier of each Hamming distance, from the edges as whole numbers of equal bits."""
    equal = bits - np.arange(bits + 1)
    return np.searchsorted(np.asarray(equal_bits_min), equal, side="right").astype(np.uint8)


@numba.njit(nogil=True, cache=True)
def count_distances_2(items_CQ: np.ndarray, sequence_SQ: np.ndarray, weights_S: np.ndarray, histogram_CH: np.ndarray) -> None:
    """Adds to histogram_CH int32 [C, K + 1] the number of behaviours at each Hamming distance, for signatures of two words."""
    for i in range(items_CQ.shape[0]):
        a, b = items_CQ[i, 0], items_CQ[i, 1]
        row = histogram_CH[i]
        for j in range(sequence_SQ.shape[0]):
            row[_popcount(a ^ sequence_SQ[j, 0]) + _popcount(b ^ sequence_SQ[j, 1])] += weights_S[j]


@numba.njit(nogil=True, cache=True)
def count_distances(items_CQ: np.ndarray, sequence_SQ: np.ndarray, weights_S: np.ndarray, histogram_CH: np.ndarray) -> None:
    """The same for any number of words."""
    for i in range(items_CQ.shape[0]):
        row = histogram_CH[i]
        for j in range(sequence_SQ.shape[0]):
            distance = U(0)
            for q in range(items_CQ.shape[1]):
                distance += _popcount(items_CQ[i, q] ^ sequence_SQ[j, q])
            row[distance] += weights_S[j]


@numba.njit(nogil=True, cache=True)
def pool_distances(histogram_CH: np.ndarray, tier_H: np.ndarray, counts_CN: np.ndarray) -> None:
    """counts_CN float32 = the histogram pooled into tiers; clears the histogram for the next block."""
    for i in range(histogram_CH.shape[0]):
        counts_CN[i, :] = 0
        for d in range(tier_H.shape[0]):
            counts_CN[i, tier_H[d]] += histogram_CH[i, d]
            histogram_CH[i, d] = 0


@numba.njit(nogil=True, cache=True)
def build_sign_table(rows_KX: np.ndarray, table_GVX: np.ndarray) -> None:
    """table_GVX float32 [2 W, 16, X]: for each nibble of a signature and each of its values, the signed sum of its four rows of T [K, X]."""
    for g in range(table_GVX.shape[0]):
        for value in range(16):
            for x in range(rows_KX.shape[1]):
                total = np.float32(0)
                for k in range(4):
                    row = rows_KX[4 * g + k, x]
                    total += row if (value >> (3 - k)) & 1 else -row
                table_GVX[g, value, x] = total


@numba.njit(nogil=True, cache=True)
def add_signs(signatures_CW: np.ndarray, has_C: np.ndarray, table_GVX: np.ndarray, offset_X: np.ndarray, out_CX: np.ndarray) -> None:
    """out_CX = s_i T + offset, zeros without a signature. Most significant nibble first, as packed."""
    for i in range(signatures_CW.shape[0]):
        row = out_CX[i]
        if has_C[i] == 0:
            row[:] = 0
            continue
        row[:] = offset_X
        for w in range(signatures_CW.shape[1]):
            byte = signatures_CW[i, w]
            high, low = table_GVX[2 * w, byte >> 4], table_GVX[2 * w + 1, byte & 15]
            for x in range(row.shape[0]):
                row[x] += high[x] + low[x]
