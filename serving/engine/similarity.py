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


def distances_max(equal_bits_min: tuple[int, ...], bits: int) -> np.ndarray:
    """int32 [N - 1]: for each edge the largest Hamming distance that still reaches it; -1 = none does."""
    return (bits - np.asarray(equal_bits_min)).clip(min=-1).astype(np.int32)


@numba.njit(nogil=True, cache=True)
def write_tiers(
    items_CQ: np.ndarray,
    has_C: np.ndarray,
    sequence_QS: np.ndarray,
    weights_S: np.ndarray,
    distance_max_E: np.ndarray,
    log1p_L: np.ndarray,
    out_CF: np.ndarray,
) -> None:
    """SimTier's features: log1p(count), then count / l, for N tiers; zeros without a signature.

    weights_S int32 = how often each signature occurs, l = their sum, log1p_L[count] its logarithm. Distances of one candidate to all behaviours
    first, then one count per edge: both loops are plain, so the compiler uses the vector instructions that the CPU has (population count too).
    """
    behaviours, tiers = sequence_QS.shape[1], distance_max_E.shape[0] + 1
    distance_S = np.empty(behaviours, np.int32)
    length = np.float32(max(1, weights_S.sum()))
    for i in range(items_CQ.shape[0]):
        if has_C[i] == 0:
            out_CF[i] = 0
            continue
        word = items_CQ[i, 0]
        for j in range(behaviours):
            distance_S[j] = np.int32(_popcount(word ^ sequence_QS[0, j]))
        for q in range(1, items_CQ.shape[1]):
            word = items_CQ[i, q]
            for j in range(behaviours):
                distance_S[j] = np.int32(distance_S[j] + np.int32(_popcount(word ^ sequence_QS[q, j])))
        above = np.int32(log1p_L.shape[0] - 1)  # behaviours that reach the edge below: all of them reach the lowest tier
        for t in range(tiers):
            reached = np.int32(0)
            if t + 1 < tiers:
                limit = distance_max_E[t]
                for j in range(behaviours):
                    reached = np.int32(reached + (weights_S[j] if distance_S[j] <= limit else np.int32(0)))
            count = above - reached
            out_CF[i, t], out_CF[i, tiers + t] = log1p_L[count], np.float32(count) / length
            above = reached


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
