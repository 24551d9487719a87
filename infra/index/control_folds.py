"""Folds of the control log in the index store: `folds/<9 digits>`, the state of all entries before that number (FORMAT.md section 7).

A log grows by some entries with each checkpoint, and a reader that began at entry 0 would need hours after a year. Whoever appends puts a fold every
`FOLD_EVERY` entries; a reader begins at the newest one that holds.
Invariants:
- A fold only saves reading. One that is damaged, forged or of another index is logged and passed over.
- A reader trusts a fold if its own checksum holds and it names the identity in entry 0. The store must also have the last folded entry, with its checksum.
- Entry 0 is never removed. Another entry is removed only if `FOLDS_KEPT` later folds hold, and in ascending order. So a writer that was stopped for longer
  than the grace period sees by the entry before its own that its number was taken (control_log.py).
"""

import itertools
import logging
import re
from collections.abc import Iterator

from infra.index.store import IndexStore, read_if_there
from schemas.errors import AifError, Corrupted, Incompatible
from schemas.index.control import ControlState
from schemas.index.control_fold import decode_fold, encode_fold
from schemas.index.digest import checksum
from schemas.index.retention import StoreFile
from schemas.limits import CONTROL_ENTRY_BYTES_MAX, MIB

FOLD_EVERY = 100  # entries: what a reader has to read at most, give or take a crash
FOLDS_KEPT = 3
_FOLD_BYTES_MAX = 64 * MIB
_REMOVED_MAX = 1_000  # files in one call, so that the caller's other work goes on
_ENTRY = re.compile(r"control/(\d{9})")
_FOLD = re.compile(r"folds/(\d{9})")
_log = logging.getLogger("aif.index.folds")


def control_path(number: int) -> str:
    """Place of entry `number` in the store."""
    return f"control/{number:09d}"


def fold_path(number: int) -> str:
    """Place of the fold of all entries before `number`."""
    return f"folds/{number:09d}"


def entry_number(path: str) -> int | None:
    """The number of an entry by its path; None for another file."""
    return int(found[1]) if (found := _ENTRY.fullmatch(path)) else None


def put_fold(store: IndexStore, state: ControlState, last: bytes) -> bool:
    """Put the fold of `state`, whose last entry has the bytes `last`; another writer may be first. Returns False, and logs why, if it could not be put."""
    raw = encode_fold(state, last)
    try:
        if len(raw) > _FOLD_BYTES_MAX:
            raise Incompatible("fold_too_large", f"it has {len(raw)} bytes, expected at most {_FOLD_BYTES_MAX}; drop frozen versions")
        store.put_exclusive(fold_path(state.next_number), raw)
    except AifError as error:
        _log.warning("control_fold_not_put path=%s, retrying with the next entry: %s", fold_path(state.next_number), error)
        return False
    return True


def find_fold(store: IndexStore, beyond: int, index_id: str = "") -> tuple[ControlState, bytes] | None:
    """The newest fold that holds and has more than `beyond` entries, and the last entry in it. None if absent. `index_id`: of this index only.

    Raises what the store raises.
    """
    return next(_holding_folds(store, beyond, index_id), None)


def _holding_folds(store: IndexStore, beyond: int, index_id: str = "") -> Iterator[tuple[ControlState, bytes]]:
    """Newest first."""
    numbers = sorted((int(found[1]) for path in store.list("folds/") if (found := _FOLD.fullmatch(path))), reverse=True)
    for number in numbers:
        if number <= beyond:
            return
        try:
            fold = _read_fold(store, number, index_id)
        except Corrupted as error:
            _log.warning("control_fold_ignored path=%s, reading an older fold or the entries: %s", fold_path(number), error)
            continue
        if fold is not None:
            yield fold


def _read_fold(store: IndexStore, number: int, index_id: str) -> tuple[ControlState, bytes] | None:
    """None if another process has removed it. Raises Corrupted if it does not hold."""
    raw = read_if_there(store, fold_path(number), _FOLD_BYTES_MAX)
    if raw is None:
        return None
    state, last_check = decode_fold(raw)
    first, last = (read_if_there(store, control_path(n), CONTROL_ENTRY_BYTES_MAX) for n in (0, number - 1))
    if state.next_number != number:
        raise Corrupted("bad_control_fold", f"it folds {state.next_number} entries, expected {number}")
    if first is None or checksum(first) != state.index_id or index_id not in ("", state.index_id):
        raise Corrupted("bad_control_fold", f"it is of index {state.index_id}, not of the one that the store holds")
    if last is None or checksum(last) != last_check:
        raise Corrupted("bad_control_fold", f"{control_path(number - 1)} is not the last entry that it folds")
    return state, last


def remove_folded(store: IndexStore, now_ms: int, grace_ms: int) -> int:
    """Remove entries and folds that no reader needs any more, and return how many. `now_ms` is the store's time.

    Kept are the newest `FOLDS_KEPT` folds that hold, the last entry in each, everything that was put within `grace_ms`, and entry 0.
    Raises what the store raises.
    """
    kept = []
    for state, _ in _holding_folds(store, 0):
        kept.append(state.next_number)
        if len(kept) == FOLDS_KEPT:
            break
    else:
        return 0
    old_entries, old_folds = _before(store, "control/", _ENTRY, kept[-1] - 1), _before(store, "folds/", _FOLD, kept[-1])
    # An entry stays while one before it does, so the first that is younger than the grace period ends the removal.
    due = itertools.takewhile(lambda file: file.put_ms + grace_ms <= now_ms, old_entries)
    due_folds = (file for file in old_folds if file.put_ms + grace_ms <= now_ms)
    removed = 0
    for file in itertools.islice(itertools.chain(due, due_folds), _REMOVED_MAX):
        store.remove(file.path)
        removed += 1
    return removed


def _before(store: IndexStore, folder: str, names: re.Pattern[str], number: int) -> list[StoreFile]:
    """Files with numbers from 1 up to before `number`, ascending."""
    return [file for file in store.list_files(folder) if (found := names.fullmatch(file.path)) and 0 < int(found[1]) < number]
