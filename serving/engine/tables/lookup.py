"""Ids to rows: the hash table of one version, whose entries are numbers of rows.

The key is that of the int64 id, or a hash of a text id, whose bytes are then compared. The row of a forgotten id joins the list of free ones: the header
has the first, `stamps_R3[row, 0]` the next (row + 1, 0 = none).
Invariants: every kernel has one signature, so a flip never compiles; an unknown id is -1, never an index.

Arrays: C ids asked for, T table entries, R rows of the version.
Source: the idea of (key, row) pairs at low load, whose first entries are asked for before they are compared: measured, 0.14 ms for 10^4 cold ids.
"""

import numpy as np

from schemas.kernels.compiled import int64, kernel, subkernel
from schemas.kernels.compiled import uint64 as U
from schemas.kernels.float32_code import prefetch
from schemas.kernels.hash_table import hash_bytes, is_same, mix, probe, remove
from schemas.kernels.vector_blocks import address

_AHEAD = 64  # entries of the table that are asked for before the first of them is read
BLOCK = 64  # texts
UNKNOWN = -1
FULL = -2
# Places in an arena's header: rows that were ever used, bytes of text ids, dead rows (free ones too), first free row + 1, count of free rows.
HEADER_ROWS, HEADER_ID_BYTES, HEADER_DEAD, HEADER_FREE, HEADER_FREE_COUNT = 0, 1, 2, 3, 4
NO_STAMP = np.iinfo(np.int64).min  # below every stamp


@kernel
def find_int64(ids_C: np.ndarray, table_T2: np.ndarray, row_C: np.ndarray) -> None:
    """row_C (int64) = row of each id, or -1. Rows of deleted ids are found too."""
    mask, count = U(table_T2.shape[0] - 1), ids_C.shape[0]
    for i in range(count + _AHEAD):
        if i < count:
            row_C[i] = int64(mix(U(ids_C[i])) & mask)
            prefetch(address(table_T2) + 16 * row_C[i])
        if i >= _AHEAD:
            place = probe(table_T2, mix(U(ids_C[i - _AHEAD])), U(row_C[i - _AHEAD]))
            row_C[i - _AHEAD] = int64(table_T2[place, 1]) - 1


@subkernel
def _take_row(stamps_R3: np.ndarray, dead_R: np.ndarray, header: np.ndarray) -> int:
    """A free row, or the next unused one; it counts as deleted until a change gives it values. -2 if no row is left."""
    row = header[HEADER_FREE] - 1
    if row >= 0:
        header[HEADER_FREE] = stamps_R3[row, 0]
        header[HEADER_FREE_COUNT] -= 1
    elif header[HEADER_ROWS] < dead_R.shape[0]:
        row = header[HEADER_ROWS]
        header[HEADER_ROWS] = row + 1
        header[HEADER_DEAD] += 1
        dead_R[row] = 1
    else:
        return FULL
    for part_of_stamp in range(3):
        stamps_R3[row, part_of_stamp] = NO_STAMP
    return row


@kernel
def place_int64(
    ids_C: np.ndarray,
    stamps_C3: np.ndarray,
    covered: int,
    ids_R: np.ndarray,
    stamps_R3: np.ndarray,
    dead_R: np.ndarray,
    table_T2: np.ndarray,
    header: np.ndarray,
    row_C: np.ndarray,
) -> None:
    """As `find_int64`, but an unknown id gets a row: -1 if its features' stamp is below `covered`, -2 if no row is free."""
    mask = U(table_T2.shape[0] - 1)
    for i in range(ids_C.shape[0]):
        key = mix(U(ids_C[i]))
        place = probe(table_T2, key, key & mask)
        row = int64(table_T2[place, 1]) - 1
        if row < 0 and stamps_C3[i, 1] >= covered:
            row = _take_row(stamps_R3, dead_R, header)
            if row >= 0:
                ids_R[row] = ids_C[i]
                table_T2[place, 0], table_T2[place, 1] = key, U(row + 1)
        row_C[i] = row


@subkernel
def _forget(place: int, stamps_R3: np.ndarray, table_T2: np.ndarray, header: np.ndarray) -> None:
    """Removes an entry of the table and frees its row."""
    row = int64(table_T2[place, 1]) - 1
    stamps_R3[row, 0] = header[HEADER_FREE]
    header[HEADER_FREE] = row + 1
    header[HEADER_FREE_COUNT] += 1
    remove(table_T2, place)


@kernel
def forget_int64(
    ids_C: np.ndarray, covered: int, stamps_R3: np.ndarray, dead_R: np.ndarray, table_T2: np.ndarray, header: np.ndarray
) -> None:
    """Frees the rows of those ids whose delete has a features' stamp below `covered`."""
    mask = U(table_T2.shape[0] - 1)
    for i in range(ids_C.shape[0]):
        key = mix(U(ids_C[i]))
        place = probe(table_T2, key, key & mask)
        row = int64(table_T2[place, 1]) - 1
        if row >= 0 and dead_R[row] != 0 and stamps_R3[row, 1] < covered:
            _forget(place, stamps_R3, table_T2, header)


@subkernel
def _probe_text(text: int, size: int, key: int, spans_R2: np.ndarray, stored_M: np.ndarray, table_T2: np.ndarray) -> int:
    """Place in the table of the id of `size` bytes at address `text`, or of the empty entry where it belongs."""
    mask = U(table_T2.shape[0] - 1)
    place = probe(table_T2, key, key & mask)
    while table_T2[place, 1] != U(0):
        row = int64(table_T2[place, 1]) - 1
        at = spans_R2[row, 0]
        if spans_R2[row, 1] - at == size and is_same(text, address(stored_M) + at, size):
            return place
        place = probe(table_T2, key, (place + U(1)) & mask)
    return place


@kernel
def find_text(
    bytes_N: np.ndarray,
    starts_C: np.ndarray,
    spans_R2: np.ndarray,
    stored_M: np.ndarray,
    table_T2: np.ndarray,
    keys_B: np.ndarray,
    row_C: np.ndarray,
) -> None:
    """Text ids: id i is bytes_N[starts_C[i] : starts_C[i + 1]]. Row R's id is stored_M[spans_R2[R, 0] : spans_R2[R, 1]]. keys_B: scratch, uint64 [BLOCK].

    Each step of a block prefetches the memory of the next step: entry of the table, place of the id, its bytes.
    """
    mask = U(table_T2.shape[0] - 1)
    for first in range(0, starts_C.shape[0] - 1, BLOCK):
        end = min(starts_C.shape[0] - 1, first + BLOCK)
        for i in range(first, end):
            keys_B[i - first] = hash_bytes(address(bytes_N) + starts_C[i], starts_C[i + 1] - starts_C[i])
            prefetch(address(table_T2) + int64((keys_B[i - first] & mask) * U(16)))
        for i in range(first, end):
            row_C[i] = max(0, int64(table_T2[keys_B[i - first] & mask, 1]) - 1)
            prefetch(address(spans_R2) + 16 * row_C[i])
        for i in range(first, end):
            prefetch(address(stored_M) + spans_R2[row_C[i], 0])
        for i in range(first, end):
            size = starts_C[i + 1] - starts_C[i]
            place = _probe_text(address(bytes_N) + starts_C[i], size, keys_B[i - first], spans_R2, stored_M, table_T2)
            row_C[i] = int64(table_T2[place, 1]) - 1


@subkernel
def _room_for_text(size: int, spans_R2: np.ndarray, stored_M: np.ndarray, header: np.ndarray) -> int:
    """Where an id of `size` bytes goes, -1 = no room. If it fits, to the bytes of the first free row's former id; else behind all others."""
    free, end = header[HEADER_FREE] - 1, header[HEADER_ID_BYTES]
    if free >= 0 and spans_R2[free, 1] - spans_R2[free, 0] >= size:
        return spans_R2[free, 0]
    if end + size > stored_M.shape[0]:
        return -1
    header[HEADER_ID_BYTES] = end + size
    return end


@kernel
def place_text(
    bytes_N: np.ndarray,
    starts_C: np.ndarray,
    stamps_C3: np.ndarray,
    covered: int,
    spans_R2: np.ndarray,
    stored_M: np.ndarray,
    stamps_R3: np.ndarray,
    dead_R: np.ndarray,
    table_T2: np.ndarray,
    header: np.ndarray,
    row_C: np.ndarray,
) -> None:
    """As `find_text`, but an unknown id gets a row: -1 if its features' stamp is below `covered`, -2 without a free row or room for its bytes."""
    for i in range(starts_C.shape[0] - 1):
        start, end = starts_C[i], starts_C[i + 1]
        key = hash_bytes(address(bytes_N) + start, end - start)
        place = _probe_text(address(bytes_N) + start, end - start, key, spans_R2, stored_M, table_T2)
        row = int64(table_T2[place, 1]) - 1
        if row < 0 and stamps_C3[i, 1] >= covered:
            row = FULL
            has_row = header[HEADER_FREE] > 0 or header[HEADER_ROWS] < dead_R.shape[0]
            at = _room_for_text(end - start, spans_R2, stored_M, header) if has_row else -1
            if at >= 0:
                row = _take_row(stamps_R3, dead_R, header)
                for k in range(end - start):  # a slice would bring in numba's message about shapes, 2 s of compilation
                    stored_M[at + k] = bytes_N[start + k]
                spans_R2[row, 0], spans_R2[row, 1] = at, at + end - start
                table_T2[place, 0], table_T2[place, 1] = key, U(row + 1)
        row_C[i] = row


@kernel
def forget_text(
    bytes_N: np.ndarray,
    starts_C: np.ndarray,
    covered: int,
    spans_R2: np.ndarray,
    stored_M: np.ndarray,
    stamps_R3: np.ndarray,
    dead_R: np.ndarray,
    table_T2: np.ndarray,
    header: np.ndarray,
) -> None:
    """Frees the rows of those ids whose delete has a features' stamp below `covered`."""
    for i in range(starts_C.shape[0] - 1):
        text, size = address(bytes_N) + starts_C[i], starts_C[i + 1] - starts_C[i]
        place = _probe_text(text, size, hash_bytes(text, size), spans_R2, stored_M, table_T2)
        row = int64(table_T2[place, 1]) - 1
        if row >= 0 and dead_R[row] != 0 and stamps_R3[row, 1] < covered:
            _forget(place, stamps_R3, table_T2, header)
