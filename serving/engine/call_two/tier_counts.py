"""SimTier counted bit-sliced: 512 behaviours side by side, one bit of each in a vector, so that one instruction serves hundreds of pairs.

Here: the tables (`build_word_table`) and the counts (`take_beyond`). Not here: their vector code (tier_planes.py), the blocks of behaviours
(behaviour_blocks.py, call 1), what a tier is (schemas/model/simtier.py), the features made of counts (joint_pass.py). Exact: whole numbers all the way.

    table       per word of 64 bits: twenty-one groups of 3 bits and the last bit; for each value of a group its number of differing bits from
                each behaviour, as 2 planes of 512 bits: 22 KB, which the first cache holds
    counter     planes of the Hamming distance: the groups' planes through full adders (carry-save), words one after another
    beyond      distance > limit, for each limit of the edges, and how many behaviours are

Distances of BATCH candidates are made before any is compared: the two steps of one candidate wait for each other (42 ns in place of 39 for 512 pairs
and nine limits).

Measured on one thread, ns per pair, without the tables' making (a plain loop over popcounts takes 0.7):

                                    Zen 4 (AVX-512)     Zen 3 (AVX2)
    64 bits, eight equal tiers      0.072               0.156
    64 bits, nine edges             0.084               0.173
    128 bits, nine edges            0.135               0.298

Groups of 7 bits (221 KB, in the second cache) were up to 10% faster on Zen 4, no faster on Zen 3, slower on Zen 5, whose first cache is larger, and take
nine times as long to build. It is the only cost of call 2 that grows with the length of a history.

Arrays: C candidates, S behaviours, Q words of a signature, Z blocks, B bits of a word, E edges, N = E + 1 tiers, P planes.
Source: AIF, eq. (9); carry-save population counts: Harley and Seal.
"""

from dataclasses import dataclass

import numpy as np

from schemas.kernels.bit_planes import (
    BATCH,
    COUNTERS,
    DIGITS_BEYOND,
    LANES,
    PLACES,
    PLANE_BYTES,
    SHIFTS,
    TABLE_ROWS,
    WORD_PLANES,
    add_distance,
    build_planes,
    set_distance,
    take_planes,
)
from schemas.kernels.compiled import kernel, part
from schemas.kernels.vector_blocks import address, apart
from serving.engine.call_two.behaviour_blocks import ALL, U


@dataclass(frozen=True, slots=True)
class Limits:
    """The edges as the planes compare them: largest distance per edge int64 [E] (-1: none reaches it); masks_EP = ~limit bit by bit, all or nothing."""

    distance_max_E: np.ndarray
    masks_EP: np.ndarray


def plan_limits(equal_bits_min: tuple[int, ...], bits: int) -> Limits:
    """The limits of a model's edges: for each the largest Hamming distance that still reaches it."""
    planes = (64 * -(-bits // 64)).bit_length()
    distance_max = [max(bits - minimum, -1) for minimum in equal_bits_min]
    masks = [[0 if limit >> p & 1 else int(ALL) for p in range(planes)] for limit in distance_max]
    return Limits(np.array(distance_max, np.int64), np.array(masks, np.uint64).reshape(len(masks), planes))


@kernel
def build_word_table(planes_BL: np.ndarray, valid_L: np.ndarray, table_XL: np.ndarray) -> None:
    """Fills the table uint64 [TABLE_ROWS, 8] of one word of a block. Behaviours that do not exist differ from no candidate, so they are beyond no limit."""
    build_planes(address(planes_BL), address(valid_L), address(table_XL))


@part
def _list_digits(shift_L: np.ndarray, digits_X: np.ndarray) -> int:
    """The binary digits for which lanes count, as pairs of (mask: the bytes of their lanes, digit). Returns their number."""
    known = 0
    for lane in range(LANES):
        pair = 0
        while pair < known and digits_X[2 * pair + 1] != shift_L[lane]:
            pair += 1
        if pair == known:
            digits_X[2 * pair], digits_X[2 * pair + 1] = U(0), shift_L[lane]
            known += 1
        digits_X[2 * pair] |= U(0xFF) << U(8 * lane)
    return known


@part
def _place_limits(masks_EP: np.ndarray, places_X: np.ndarray) -> None:
    """The low and the high digit of each limit, the latter counted from where the high ones begin."""
    planes = masks_EP.shape[1]
    low_planes = planes // 2
    for e in range(masks_EP.shape[0]):
        limit = 0
        for p in range(planes):
            limit |= (1 if masks_EP[e, p] == U(0) else 0) << p
        places_X[2 * e], places_X[2 * e + 1] = limit & ((1 << low_planes) - 1), limit >> low_planes


@kernel
def take_beyond(
    words_CQ: np.ndarray, tables_QXL: np.ndarray, masks_EP: np.ndarray, shift_L: np.ndarray, scratch_XL: np.ndarray, near_CE: np.ndarray
) -> None:
    """near_CE (int32) -= behaviours of one block beyond each limit, for each candidate.

    near_CE has EDGES_TOGETHER columns, or a multiple of it, of which the first E count. scratch_XL is uint64 [SCRATCH_ROWS, 8], 64-byte aligned.
    """
    apart()
    edges, planes = masks_EP.shape
    scratch, tables = address(scratch_XL), address(tables_QXL)
    digit_count, near_stride = _list_digits(shift_L, scratch_XL[:SHIFTS].reshape(-1)), 4 * near_CE.shape[1]
    for lane in range(LANES):
        scratch_XL[SHIFTS, lane] = shift_L[lane]
    _place_limits(masks_EP, scratch_XL[PLACES:DIGITS_BEYOND].reshape(-1))
    for start in range(0, words_CQ.shape[0], BATCH):
        count = min(BATCH, words_CQ.shape[0] - start)
        for i in range(count):
            for plane in range(WORD_PLANES, planes):
                for lane in range(LANES):
                    scratch_XL[COUNTERS + i * planes + plane, lane] = U(0)
            counter = scratch + (COUNTERS + i * planes) * PLANE_BYTES
            set_distance(tables, words_CQ[start + i, 0], counter)
            for q in range(1, words_CQ.shape[1]):
                add_distance(tables + q * TABLE_ROWS * PLANE_BYTES, words_CQ[start + i, q], counter, planes)
        if edges > 0:
            at, near = address(masks_EP), address(near_CE) + start * near_stride
            take_planes(scratch, count, at, edges, digit_count, near, near_stride, planes)
