"""The one open-addressing hash table: uint64 keys to entries, in plain arrays, so that two processes can share it.

A table is uint64 [T, 2], T a power of two, load at most one half: (key, entry + 1); 0 in the second place = empty. A key is `mix` of a number, which is a
bijection, so equal keys are equal numbers; or a hash of bytes, which the caller then compares. Its search begins at place `key & (T - 1)`.

Arrays: T table entries, R rows.
"""

import numpy as np

from schemas.kernels.compiled import inlined, int64, kernel, subkernel
from schemas.kernels.compiled import uint64 as U
from schemas.kernels.vector_blocks import address, load_byte, load_word

_MIX_1, _MIX_2 = U(0x9E3779B97F4A7C15), U(0xBF58476D1CE4E5B9)


def open_table(entries: int) -> np.ndarray:
    """An empty table for as many entries."""
    return np.zeros((1 << (2 * entries).bit_length(), 2), np.uint64)


@inlined
def mix(x: int) -> int:
    """The key of a number: another number for each."""
    x ^= x >> U(32)
    x *= _MIX_1
    x ^= x >> U(29)
    x *= _MIX_2
    x ^= x >> U(32)
    return x


@inlined
def probe(table_T2: np.ndarray, key: int, place: int) -> int:
    """The next place, from `place` on, that has this key or is empty."""
    mask = U(table_T2.shape[0] - 1)
    while table_T2[place, 1] != U(0) and table_T2[place, 0] != key:
        place = (place + U(1)) & mask
    return place


@subkernel
def remove(table_T2: np.ndarray, place: int) -> None:
    """Empties a place. Later entries of its chain move up, so that searches still find them."""
    mask = U(table_T2.shape[0] - 1)
    at = (place + U(1)) & mask
    while table_T2[at, 1] != U(0):
        home = table_T2[at, 0] & mask
        if ((at - home) & mask) >= ((at - place) & mask):
            table_T2[place, 0], table_T2[place, 1] = table_T2[at, 0], table_T2[at, 1]
            place = at
        at = (at + U(1)) & mask
    table_T2[place, 1] = U(0)


@subkernel
def _tail(at: int, size: int) -> int:
    """Fewer than eight bytes as a word."""
    word = U(0)
    for k in range(size):
        word |= load_byte(at + k) << U(8 * k)
    return word


@subkernel
def hash_bytes(at: int, size: int) -> int:
    """The key of `size` bytes at an address."""
    h, end = U(size) * _MIX_1, at + size
    while at + 8 <= end:
        h = (h ^ load_word(at)) * _MIX_2
        h ^= h >> U(29)
        at += 8
    return mix(h ^ _tail(at, end - at))


@subkernel
def is_same(one: int, other: int, size: int) -> bool:
    """Whether `size` bytes at two addresses are equal."""
    end = one + size
    while one + 8 <= end:
        if load_word(one) != load_word(other):
            return False
        one += 8
        other += 8
    return _tail(one, end - one) == _tail(other, end - one)


@kernel
def first_of_each(numbers_R: np.ndarray, table_T2: np.ndarray, kept_R: np.ndarray) -> int:
    """Drops repeated int64 numbers: kept_R = places of the first of each; returns how many. `table_T2`: empty, for R entries."""
    mask, kept = U(table_T2.shape[0] - 1), 0
    for i in range(numbers_R.shape[0]):
        key = mix(U(numbers_R[i]))
        place = probe(table_T2, key, key & mask)
        if table_T2[place, 1] == U(0):
            table_T2[place, 0], table_T2[place, 1] = key, U(1)
            kept_R[kept] = i
            kept += 1
    return kept


@kernel
def group_rows(words_RQ: np.ndarray, table_T2: np.ndarray, first_R: np.ndarray, often_R: np.ndarray) -> int:
    """first_R, often_R (int64) = where each different row of words occurs first, and how often; returns how many there are. `table_T2`: empty, for R
    entries; often_R: zeros."""
    mask, different, size = U(table_T2.shape[0] - 1), 0, 8 * words_RQ.shape[1]
    for i in range(words_RQ.shape[0]):
        row = address(words_RQ) + size * i
        key = hash_bytes(row, size)
        place = probe(table_T2, key, key & mask)
        while table_T2[place, 1] != U(0) and not is_same(row, address(words_RQ) + size * first_R[int64(table_T2[place, 1]) - 1], size):
            place = probe(table_T2, key, (place + U(1)) & mask)
        entry = int64(table_T2[place, 1]) - 1
        if entry < 0:
            entry = different
            table_T2[place, 0], table_T2[place, 1], first_R[entry] = key, U(entry + 1), i
            different += 1
        often_R[entry] += 1
    return different
