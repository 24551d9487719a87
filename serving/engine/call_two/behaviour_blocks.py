"""A user's behaviours as bits side by side, as SimTier counts them: 512 in a block, bit b of all their signatures in one plane.

Here: the arrangement, made in call 1, because every share of the candidates builds its tables from it. Not here: the counts (tier_counts.py).

    block       512 behaviours as 8 lanes of 64. Equal signatures are counted once, in the lanes of the binary digits of how often they occur
    planes      bit b of 512 behaviours as 512 bits

Arrays: S behaviours, Q words of a signature, Z blocks, B bits of a word, L lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.kernels.bit_planes import LANES
from schemas.kernels.compiled import kernel, part

U = np.uint64
BLOCK = 64 * LANES
ALL = U(2**64 - 1)
_HASH = U(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Arranged:
    """A user's behaviours in blocks: planes_ZQBL uint64 [Z, Q, 64, 8], their signatures bit by bit; valid_ZL, shift_ZL uint64 [Z, 8]: which
    behaviours of a lane exist, and the binary digit for which it counts; length = behaviours in all."""

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
    table_T = np.zeros(1 << (2 * len(words_SQ)).bit_length(), np.int64)
    first_S, often_S = np.zeros((2, len(words_SQ)), np.int64)
    different = _count_equal(words_SQ, table_T, first_S, often_S)
    return words_SQ[first_S[:different]], often_S[:different]


@kernel
def _count_equal(words_SQ: np.ndarray, table_T: np.ndarray, first_S: np.ndarray, often_S: np.ndarray) -> int:
    """first_S, often_S = where each different row of words occurs first, and how often; returns how many there are. table_T: zeros, a power of two."""
    mask, different, width = U(table_T.shape[0] - 1), 0, words_SQ.shape[1]
    for s in range(words_SQ.shape[0]):
        key = U(0)
        for q in range(width):
            key = (key ^ (key >> U(29)) ^ words_SQ[s, q]) * _HASH
        place = (key ^ (key >> U(32))) & mask
        entry = table_T[place] - 1
        while entry >= 0:
            q = 0
            while q < width and words_SQ[first_S[entry], q] == words_SQ[s, q]:
                q += 1
            if q == width:
                break
            place = (place + U(1)) & mask
            entry = table_T[place] - 1
        if entry < 0:
            entry = different
            table_T[place], first_S[entry] = entry + 1, s
            different += 1
        often_S[entry] += 1
    return different


@kernel
def write_planes(words_XQ: np.ndarray, planes_ZQBL: np.ndarray) -> None:
    """Bit b of each block of 512 words as plane b."""
    for z in range(planes_ZQBL.shape[0]):
        for q in range(planes_ZQBL.shape[1]):
            for k in range(64):
                for lane in range(LANES):
                    planes_ZQBL[z, q, k, lane] = words_XQ[BLOCK * z + 64 * lane + k, q]
            _transpose(planes_ZQBL[z, q])


@part
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
