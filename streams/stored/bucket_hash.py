"""Hash buckets of text in a buffer, compiled: the numbers of `schemas.ids.hash_bucket`, for many values at once.

Here: BLAKE2b with a digest of 8 bytes, and a small memory of the values of a call, because categories repeat. Not here: which bytes are a value
(feature_texts.py).
Invariant: the memory holds whole values of at most 32 bytes and compares them, so it never answers for another value; a longer value is always hashed.
Source: RFC 7693.

Arrays: S places of the memory.
"""

from typing import NamedTuple

import numpy as np

from schemas.model.compiled import int64, part
from schemas.model.compiled import uint64 as U
from schemas.model.vector_blocks import address, load_word

_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)  # fmt: skip
_ROUNDS, _BLOCK_BYTES = 12, 128
WORK_WORDS = 40  # 16 of the message, 16 of the state, 8 of the chain
_KEPT_WORDS, _KEPT_BYTES = 6, 32  # of one remembered value: its bytes, its length + 1, its bucket
_DIGEST_HEAD = U(0x01010008)  # 8 bytes of digest, no key, one leaf


def start_words(salt: bytes) -> np.ndarray:
    """The chain before the first block for a digest of 8 bytes with this salt (16 bytes): uint64 [8]."""
    start_8 = _IV.copy()
    start_8[0] ^= _DIGEST_HEAD
    start_8[4:6] ^= np.frombuffer(salt.ljust(16, b"\0"), np.uint64)
    return start_8


class Memory(NamedTuple):
    """The values of one feature in one call: kept_S6 uint64, S a power of 2, and `work`, uint64 [WORK_WORDS] for the hash to work in."""

    kept_S6: np.ndarray
    work: np.ndarray


def new_memory(values: int) -> Memory:
    """An empty memory for about `values` values."""
    size = 16
    while size < min(values, 4_096):
        size *= 2
    return Memory(np.zeros((size, _KEPT_WORDS), np.uint64), np.zeros(WORK_WORDS, np.uint64))


@part
def _rotate(word: int, bits: int) -> int:
    return (word >> U(bits)) | (word << U(64 - bits))


@part
def _mix(w: np.ndarray, a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    va, vb, vc, vd = w[a], w[b], w[c], w[d]
    va += vb + x
    vd = _rotate(vd ^ va, 32)
    vc += vd
    vb = _rotate(vb ^ vc, 24)
    va += vb + y
    vd = _rotate(vd ^ va, 16)
    vc += vd
    vb = _rotate(vb ^ vc, 63)
    w[a], w[b], w[c], w[d] = va, vb, vc, vd


@part
def _compress(w: np.ndarray, total: int, last: bool) -> None:
    """One block: w[0:16] = message, w[32:40] = chain."""
    for i in range(8):
        w[16 + i], w[24 + i] = w[32 + i], _IV[i]
    w[28] ^= U(total)
    if last:
        w[30] = ~w[30]
    for r in range(_ROUNDS):
        s = _SIGMA[r % 10]
        _mix(w, 16, 20, 24, 28, w[s[0]], w[s[1]])
        _mix(w, 17, 21, 25, 29, w[s[2]], w[s[3]])
        _mix(w, 18, 22, 26, 30, w[s[4]], w[s[5]])
        _mix(w, 19, 23, 27, 31, w[s[6]], w[s[7]])
        _mix(w, 16, 21, 26, 31, w[s[8]], w[s[9]])
        _mix(w, 17, 22, 27, 28, w[s[10]], w[s[11]])
        _mix(w, 18, 23, 24, 29, w[s[12]], w[s[13]])
        _mix(w, 19, 20, 25, 30, w[s[14]], w[s[15]])
    for i in range(8):
        w[32 + i] ^= w[16 + i] ^ w[24 + i]


@part
def digest_64(text: np.ndarray, begin: int, length: int, start_8: np.ndarray, w: np.ndarray) -> int:
    """BLAKE2b-64 of text[begin : begin + length] as uint64. `start_8` is what `start_words` gave; `w` is uint64 [WORK_WORDS] to work in."""
    for i in range(8):
        w[32 + i] = start_8[i]
    done = 0
    while True:
        take = min(_BLOCK_BYTES, length - done)
        words = take >> 3
        for i in range(words):
            w[i] = load_word(address(text) + begin + done + 8 * i)
        for i in range(words, 16):
            w[i] = U(0)
        for i in range(8 * words, take):
            w[words] |= U(text[begin + done + i]) << U(8 * (i & 7))
        done += take
        _compress(w, done, done == length)
        if done == length:
            return w[32]


@part
def find_bucket(text: np.ndarray, begin: int, length: int, buckets: int, start_8: np.ndarray, memory: Memory) -> int:
    """`hash_bucket` of text[begin : begin + length]: 1 to `buckets` - 1. `memory` (`new_memory`) belongs to one feature and one call."""
    w, kept = memory.work, memory.kept_S6
    if length > _KEPT_BYTES:
        return 1 + int64(digest_64(text, begin, length, start_8, w) % U(buckets - 1))
    one, two, three, four = U(0), U(0), U(0), U(0)
    for i in range(length):
        shifted = U(text[begin + i]) << U(8 * (i & 7))
        if i < 8:
            one |= shifted
        elif i < 16:
            two |= shifted
        elif i < 24:
            three |= shifted
        else:
            four |= shifted
    mixed = (one ^ _rotate(two, 23) ^ _rotate(three, 41) ^ _rotate(four, 7)) * U(0x9E3779B97F4A7C15)
    at = int64((mixed >> U(40)) & U(kept.shape[0] - 1))
    if kept[at, 4] == U(length + 1) and kept[at, 0] == one and kept[at, 1] == two and kept[at, 2] == three and kept[at, 3] == four:
        return int64(kept[at, 5])
    bucket = 1 + int64(digest_64(text, begin, length, start_8, w) % U(buckets - 1))
    kept[at, 0], kept[at, 1], kept[at, 2], kept[at, 3], kept[at, 4], kept[at, 5] = one, two, three, four, U(length + 1), U(bucket)
    return bucket
