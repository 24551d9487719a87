"""Rows in memory, found by key without a Python object for each: an arena of bytes, and a hash table over it.

Here: `HeldRows`, of one column family. Not here: which rows are held and for how long (infra/journaled_rocks.py).
A row's bytes lie behind its key; a value that changes is written over its former one where it fits, so that rows that change again and again leave no gaps.
What is read is therefore good until the next `put`.
Invariant: keys are compared whole, so the table never answers for another key.

Arrays: T bytes of the arena, E entries with 7 numbers each, S slots (a power of 2, at most half of them taken), R rows of a call.
"""

import numpy as np

from infra.joined import NONE, Joined, copy_into, is_same, join_stored, read_only
from schemas.model.compiled import int64, kernel, part, uint64
from schemas.model.vector_blocks import address, load_word

UNKNOWN = -2  # where a value would begin whose key is not held; NONE: it is held that there is no value
ROW_COST_BYTES = 96  # what a row costs beside its bytes: its entry and its slots
_HASH, _KEY, _KEY_END, _VALUE, _VALUE_END, _ROOM_END, _UNSETTLED = range(7)
_COLUMNS = 7
_SLACK_BYTES = 8  # a value may grow by so much in its place
_ENTRIES_MIN, _BYTES_MIN = 16, 1 << 12
_WORD_BYTES = 8
_NOWHERE = np.empty(0, np.int64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class HeldRows:
    """Rows by key. A row is settled (it can be read elsewhere, and let go of) or not. `is_complete`: it holds every row that there is, so that a key which is
    not held has no value."""

    def __init__(self, is_complete: bool = False) -> None:
        self.is_complete = is_complete
        self._make(_ENTRIES_MIN, _BYTES_MIN)

    def _make(self, entries_max: int, bytes_max: int) -> None:
        slots = 1 << (2 * entries_max - 1).bit_length()
        self._arena_T = np.empty(bytes_max, np.uint8)
        self._readable_T = read_only(self._arena_T)
        self._entries_E = np.empty((entries_max, _COLUMNS), np.int64)
        self._slots_S = np.full(slots, NONE, np.int32)
        self._entries = self._used = 0

    def __len__(self) -> int:
        """Rows held, those of which it is known that there is no value included."""
        return self._entries

    @property
    def bytes(self) -> int:
        """What they take in memory, about."""
        return self._used + ROW_COST_BYTES * self._entries

    def get(self, keys: Joined) -> Joined:
        """The value of each key; its start is NONE where there is none, UNKNOWN where the key is not held. Good until the next `put`."""
        starts_R, ends_R = np.empty(keys.rows, np.int64), np.empty(keys.rows, np.int64)
        _get(self._arena_T, self._entries_E, self._slots_S, *keys, NONE if self.is_complete else UNKNOWN, starts_R, ends_R)
        return Joined(self._readable_T, starts_R, ends_R)

    def unknown(self, found: Joined) -> np.ndarray:
        """Places in what `get` gave whose keys are not held: int64, ascending."""
        return _NOWHERE if self.is_complete else np.flatnonzero(found.starts_R == UNKNOWN)

    def put(self, keys: Joined, values: Joined, settled: bool) -> None:
        """Holds the value, or that there is none, of each key. A row that was not settled does not become so."""
        self._reserve(keys.rows, int((keys.ends_R - keys.starts_R).sum()) + int(values.sizes().sum()) + _SLACK_BYTES * keys.rows)
        self._entries, self._used = _put(
            self._arena_T, self._entries_E, self._slots_S, self._entries, self._used, *keys, *values, not settled
        )

    def _reserve(self, rows: int, size: int) -> None:
        """Room for so many new rows and bytes. Twice the room that is needed, so that each byte is moved once on average."""
        if self._entries + rows > len(self._entries_E) or self._used + size > len(self._arena_T):
            self._remake(False, rows, size)

    def let_go(self) -> None:
        """Forgets every row that is settled."""
        self.is_complete = False
        self._remake(True, 0, 0)

    def _remake(self, only_unsettled: bool, rows: int, size: int) -> None:
        arena_T, entries_E = self._arena_T, self._entries_E[: self._entries]
        kept_E = entries_E[entries_E[:, _UNSETTLED] != 0] if only_unsettled else entries_E
        live = int((kept_E[:, _KEY_END] - kept_E[:, _KEY]).sum() + (kept_E[:, _ROOM_END] - kept_E[:, _VALUE])[kept_E[:, _VALUE] >= 0].sum())
        self._make(max(len(self._entries_E), 2 * (len(kept_E) + rows)), max(len(arena_T), 2 * (live + size)))
        self._entries, self._used = _move(arena_T, np.ascontiguousarray(kept_E), self._arena_T, self._entries_E, self._slots_S)

    def settle(self) -> None:
        """Every row is settled now."""
        self._entries_E[: self._entries, _UNSETTLED] = 0

    def unsettled(self) -> tuple[Joined, Joined]:
        """Keys and values of the rows that are not settled, in no order."""
        entries_E = self._entries_E[: self._entries]
        kept_E = entries_E[entries_E[:, _UNSETTLED] != 0]
        keys = Joined(self._readable_T, kept_E[:, _KEY].copy(), kept_E[:, _KEY_END].copy())
        return keys, Joined(self._readable_T, kept_E[:, _VALUE].copy(), kept_E[:, _VALUE_END].copy())


@part
def hash_key(text: np.ndarray, begin: int, end: int) -> int:
    """The hash of the key text[begin:end], int64."""
    mixed, at = uint64(end - begin) * _FACTOR, begin
    while at + _WORD_BYTES <= end:
        mixed = (mixed ^ load_word(address(text) + at)) * _FACTOR
        mixed ^= mixed >> uint64(29)
        at += _WORD_BYTES
    last = uint64(0)
    for i in range(end - at):
        last |= uint64(text[at + i]) << uint64(8 * i)
    mixed = (mixed ^ last) * _FACTOR
    return int64(mixed ^ (mixed >> uint64(32)))


@part
def _find(
    arena_T: np.ndarray, entries_E: np.ndarray, slots_S: np.ndarray, hashed: int, text: np.ndarray, begin: int, end: int
) -> tuple[int, int]:
    """(entry of a key, or -1; its slot, or the free one where it would go)."""
    mask = slots_S.shape[0] - 1
    slot = hashed & mask
    while slots_S[slot] >= 0:
        e = int64(slots_S[slot])
        if entries_E[e, _HASH] == hashed and is_same(arena_T, entries_E[e, _KEY], entries_E[e, _KEY_END], text, begin, end):
            return e, slot
        slot = (slot + 1) & mask
    return NONE, slot


@kernel
def _get(
    arena_T: np.ndarray,
    entries_E: np.ndarray,
    slots_S: np.ndarray,
    keys_T: np.ndarray,
    key_starts_R: np.ndarray,
    key_ends_R: np.ndarray,
    not_held: int,
    starts_R: np.ndarray,
    ends_R: np.ndarray,
) -> None:
    for r in range(key_starts_R.shape[0]):
        begin, end = key_starts_R[r], key_ends_R[r]
        e, _ = _find(arena_T, entries_E, slots_S, hash_key(keys_T, begin, end), keys_T, begin, end)
        if e >= 0:
            starts_R[r], ends_R[r] = entries_E[e, _VALUE], entries_E[e, _VALUE_END]
        else:
            starts_R[r] = ends_R[r] = not_held


@kernel
def _put(
    arena_T: np.ndarray,
    entries_E: np.ndarray,
    slots_S: np.ndarray,
    entries: int,
    used: int,
    keys_T: np.ndarray,
    key_starts_R: np.ndarray,
    key_ends_R: np.ndarray,
    values_T: np.ndarray,
    starts_R: np.ndarray,
    ends_R: np.ndarray,
    unsettled: bool,
) -> tuple[int, int]:
    """(entries, used bytes of the arena) afterwards."""
    for r in range(key_starts_R.shape[0]):
        begin, end = key_starts_R[r], key_ends_R[r]
        hashed = hash_key(keys_T, begin, end)
        e, slot = _find(arena_T, entries_E, slots_S, hashed, keys_T, begin, end)
        if e < 0:
            e, slots_S[slot] = entries, entries
            entries += 1
            entries_E[e, _HASH], entries_E[e, _KEY], entries_E[e, _UNSETTLED] = hashed, used, 0
            used = copy_into(keys_T, begin, end, arena_T, used)
            entries_E[e, _KEY_END], entries_E[e, _VALUE], entries_E[e, _VALUE_END], entries_E[e, _ROOM_END] = used, NONE, NONE, NONE
        if unsettled:
            entries_E[e, _UNSETTLED] = 1
        size = ends_R[r] - starts_R[r]
        if starts_R[r] < 0:
            entries_E[e, _VALUE] = entries_E[e, _VALUE_END] = entries_E[e, _ROOM_END] = NONE
            continue
        if entries_E[e, _VALUE] < 0 or entries_E[e, _VALUE] + size > entries_E[e, _ROOM_END]:
            entries_E[e, _VALUE] = used
            used += size + _SLACK_BYTES
            entries_E[e, _ROOM_END] = used
        entries_E[e, _VALUE_END] = copy_into(values_T, starts_R[r], ends_R[r], arena_T, entries_E[e, _VALUE])
    return entries, used


@kernel
def _move(from_T: np.ndarray, from_E: np.ndarray, arena_T: np.ndarray, entries_E: np.ndarray, slots_S: np.ndarray) -> tuple[int, int]:
    """Entries and their bytes into an empty table; (entries, used bytes of its arena)."""
    used, mask = 0, slots_S.shape[0] - 1
    for e in range(from_E.shape[0]):
        slot = from_E[e, _HASH] & mask
        while slots_S[slot] >= 0:
            slot = (slot + 1) & mask
        slots_S[slot] = e
        for column in range(_COLUMNS):
            entries_E[e, column] = from_E[e, column]
        entries_E[e, _KEY] = used
        used = entries_E[e, _KEY_END] = copy_into(from_T, from_E[e, _KEY], from_E[e, _KEY_END], arena_T, used)
        if from_E[e, _VALUE] >= 0:
            entries_E[e, _VALUE], entries_E[e, _ROOM_END] = used, used + from_E[e, _ROOM_END] - from_E[e, _VALUE]
            entries_E[e, _VALUE_END] = copy_into(from_T, from_E[e, _VALUE], from_E[e, _VALUE_END], arena_T, used)
            used = entries_E[e, _ROOM_END]
    return from_E.shape[0], used


def compile_held_rows() -> None:
    """Takes the kernels of this file from numba's cache, or compiles them."""
    held, one = HeldRows(), join_stored([b"a"])
    held.put(one, one, settled=False)
    held.get(one)
    held.let_go()
