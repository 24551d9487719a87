"""SimTier counted bit-sliced: 512 behaviours side by side, one bit of each in a vector, so that one instruction serves hundreds of pairs.

Exact: whole numbers all the way.

    block       512 behaviours as 8 lanes of 64. Equal signatures are counted once, in the lanes of the binary digits of how often they occur
    planes      bit b of 512 behaviours as 512 bits
    table       per word of 64 bits: twenty-one groups of 3 bits and the last bit; for each value of a group its number of differing bits from
                each behaviour, as 2 planes of 512 bits: 22 KB, which the first cache holds
    counter     planes of the Hamming distance: the groups' planes through full adders (carry-save), word by word
    beyond      distance > limit, for each limit of the edges, and how many behaviours are

Distances of BATCH candidates are made before any is compared: the two steps of one candidate wait for each other. For 512 pairs and nine limits that takes
39 ns instead of 42.

Measured on one thread, ns per pair, without the tables' making (a plain loop over popcounts takes 0.7):

                                    Zen 4 (AVX-512)     Zen 3 (AVX2)
    64 bits, eight equal tiers      0.072               0.156
    64 bits, nine edges             0.084               0.173
    128 bits, nine edges            0.135               0.298

Counting equal signatures once: 10,000 behaviours of 3,000 items take 7 blocks instead of 20, and 100,000 of 20,000 items 51 instead of 196 (drawn by Zipf's
law, exponent 0.8).
Tables of groups of 7 bits have 221 KB, in the second cache. They were up to 10% faster on Zen 4, no faster on Zen 3, and slower on Zen 5 with its larger
first cache. They take nine times as long to build. Counting is the only cost of call 2 that grows with the length of a history.

Arrays: C candidates, S behaviours, Q words of a signature, Z blocks, B bits of a word, L lanes, E edges, N = E + 1 tiers, P planes.
Source: AIF, eq. (9); carry-save population counts: Harley and Seal.
"""

from collections.abc import Sequence
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
from schemas.kernels.compiled import kernel, subkernel
from schemas.kernels.hash_table import group_rows, open_table
from schemas.kernels.vector_blocks import address, apart

U = np.uint64
BLOCK = 64 * LANES
ALL = U(2**64 - 1)


@dataclass(frozen=True, slots=True)
class Arranged:
    """A user's behaviours in blocks.

    - planes_ZQBL: uint64 [Z, Q, 64, 8], their signatures, bit by bit
    - valid_ZL: uint64 [Z, 8], which behaviours of a lane exist
    - shift_ZL: uint64 [Z, 8], the binary digit for which a lane counts
    - length: behaviours in all
    """

    planes_ZQBL: np.ndarray
    valid_ZL: np.ndarray
    shift_ZL: np.ndarray
    length: int

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.planes_ZQBL.nbytes + self.valid_ZL.nbytes + self.shift_ZL.nbytes


def pack_words(signatures_RW: np.ndarray) -> np.ndarray:
    """uint64 [R, Q]: packed signatures as words, padded with zeros (equal on both sides, so they add no distance)."""
    rows, width = signatures_RW.shape
    padded = np.zeros((rows, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = signatures_RW
    return padded.view(np.uint64)


def arrange_behaviours(signatures_SW: np.ndarray) -> Arranged:
    """Behaviours with a signature, in blocks. Equal ones are joined where that saves a block."""
    words_SQ = pack_words(signatures_SW)
    different_SQ, often_S = _find_different(words_SQ)
    if -(-len(different_SQ) // BLOCK) >= _blocks_of([words_SQ]):  # each different one takes a place at least once
        return _lay_out([(words_SQ, 0)], words_SQ)
    digits = [np.flatnonzero(often_S >> digit & 1) for digit in range(int(often_S.max(initial=0)).bit_length())]
    if _blocks_of(digits) < _blocks_of([words_SQ]):
        return _lay_out([(different_SQ[places], digit) for digit, places in enumerate(digits)], words_SQ)
    return _lay_out([(words_SQ, 0)], words_SQ)


def _blocks_of(parts: Sequence[np.ndarray]) -> int:
    """Blocks for parts that begin a lane each."""
    return -(-sum(-(-len(part) // 64) for part in parts) // LANES)


def _lay_out(parts: Sequence[tuple[np.ndarray, int]], words_SQ: np.ndarray) -> Arranged:
    """Words, and the binary digit for which they count, from one lane to the next."""
    blocks, width = _blocks_of([words for words, _ in parts]), words_SQ.shape[1]
    words_XQ, lane = np.zeros((blocks * BLOCK, width), np.uint64), 0
    valid_X, shift_X = np.zeros((2, blocks * LANES), np.uint64)
    for words, shift in parts:
        lanes, left = divmod(len(words), 64)
        words_XQ[64 * lane : 64 * lane + len(words)] = words
        valid_X[lane : lane + lanes], shift_X[lane : lane + lanes + (left > 0)] = ALL, shift
        if left:
            valid_X[lane + lanes] = (1 << left) - 1
        lane += lanes + (left > 0)
    planes_ZQBL = np.empty((blocks, width, 64, LANES), np.uint64)
    write_planes(words_XQ, planes_ZQBL)
    return Arranged(planes_ZQBL, valid_X.reshape(blocks, LANES), shift_X.reshape(blocks, LANES), len(words_SQ))


def _find_different(words_SQ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(different words, how often each occurs)."""
    first_S, often_S = np.zeros((2, len(words_SQ)), np.int64)
    different = group_rows(words_SQ, open_table(len(words_SQ)), first_S, often_S)
    return words_SQ[first_S[:different]], often_S[:different]


@kernel
def write_planes(words_XQ: np.ndarray, planes_ZQBL: np.ndarray) -> None:
    """Bit b of each block of 512 words as plane b."""
    for z in range(planes_ZQBL.shape[0]):
        for q in range(planes_ZQBL.shape[1]):
            for k in range(64):
                for lane in range(LANES):
                    planes_ZQBL[z, q, k, lane] = words_XQ[BLOCK * z + 64 * lane + k, q]
            _transpose(planes_ZQBL[z, q])


@subkernel
def _transpose(planes_BL: np.ndarray) -> None:
    """64 x 64 bits in each lane, all lanes side by side."""
    mask, step = U(0x00000000FFFFFFFF), 32
    while step != 0:
        k = 0
        while k < 64:
            for lane in range(LANES):
                swapped = ((planes_BL[k, lane] >> U(step)) ^ planes_BL[k + step, lane]) & mask
                planes_BL[k + step, lane] ^= swapped
                planes_BL[k, lane] ^= swapped << U(step)
            k = (k + step + 1) & ~step
        step >>= 1
        mask ^= mask << U(step)


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


@subkernel
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


@subkernel
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
