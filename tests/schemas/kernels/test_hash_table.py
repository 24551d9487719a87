"""The one hash table: every key is found after any insertions and removals, and equal hashes of different bytes stay apart."""

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.kernels.compiled import uint64 as U
from schemas.kernels.hash_table import first_of_each, group_rows, hash_bytes, open_table, probe, remove
from schemas.kernels.vector_blocks import address

MASK, MIX_1, MIX_2 = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


@numba.njit
def hash_of(words_Q: np.ndarray) -> int:
    return hash_bytes(address(words_Q), 8 * words_Q.shape[0])


@numba.njit
def put(table_T2: np.ndarray, key: int, entry: int) -> None:
    place = probe(table_T2, key, key & U(table_T2.shape[0] - 1))
    table_T2[place, 0], table_T2[place, 1] = key, U(entry + 1)


@numba.njit
def find(table_T2: np.ndarray, key: int) -> int:
    return np.int64(table_T2[probe(table_T2, key, key & U(table_T2.shape[0] - 1)), 1]) - 1


@numba.njit
def take_out(table_T2: np.ndarray, key: int) -> None:
    place = probe(table_T2, key, key & U(table_T2.shape[0] - 1))
    if table_T2[place, 1] != U(0):
        remove(table_T2, place)


def group(words_RQ: np.ndarray) -> dict[bytes, int]:
    first_R, often_R = np.zeros((2, len(words_RQ)), np.int64)
    count = group_rows(words_RQ, open_table(len(words_RQ)), first_R, often_R)
    return {words_RQ[i].tobytes(): often for i, often in zip(first_R[:count].tolist(), often_R[:count].tolist(), strict=True)}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60))
def test_keys_are_found_after_any_insertions_and_removals(steps: list[tuple[bool, int]]) -> None:
    table, known = open_table(41), dict[int, int]()
    for entry, (puts, number) in enumerate(steps):
        if puts:
            put(table, np.uint64(number % 7 * 1024 + number), entry)  # few homes, long chains
            known[number] = entry
        else:
            take_out(table, np.uint64(number % 7 * 1024 + number))
            known.pop(number, None)
    assert [find(table, np.uint64(n % 7 * 1024 + n)) for n in range(41)] == [known.get(n, -1) for n in range(41)]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=80))
def test_the_first_of_each_number_is_kept_in_order(numbers: list[int]) -> None:
    kept = np.empty(len(numbers), np.int64)
    count = first_of_each(np.array(numbers, np.int64), open_table(len(numbers)), kept)
    assert [numbers[i] for i in kept[:count]] == list(dict.fromkeys(numbers))


@given(st.integers(1, 3), st.lists(st.integers(0, 6), max_size=60), st.integers(0, 9))
def test_rows_are_grouped_by_their_bytes(width: int, drawn: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2**63, (7, width)).astype(np.uint64)[drawn]
    wanted: dict[bytes, int] = {}
    for row in rows:
        wanted[row.tobytes()] = wanted.get(row.tobytes(), 0) + 1
    assert group(rows) == wanted


def test_rows_of_one_hash_are_grouped_by_their_bytes() -> None:
    def after_first_word(word: int) -> int:
        h = ((16 * MIX_1 & MASK) ^ word) * MIX_2 & MASK
        return h ^ (h >> 29)

    second = [after_first_word(7) ^ after_first_word(number) for number in range(50)]  # what makes the states after both words equal
    rows = np.array([[number, rest] for number, rest in enumerate(second)] * 3, np.uint64)
    assert len({hash_of(row) for row in rows}) == 1
    assert group(rows) == {row.tobytes(): 3 for row in rows}
