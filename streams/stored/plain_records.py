"""Records of item-features that publishers wrote plainly, many of them in one compiled pass.

Here: `read_plain_updates`, and the kernel on its way into a process. Not here: one record (record_texts.py), the models that judge every other
record (streams/shard_decode.py).
A record with one update costs a quarter of what it does alone: arrays and the call are made once.

Arrays: T bytes, N records, U updates of all of them.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from schemas.ids import IdKind
from schemas.limits import FEATURES_PER_SCHEMA_MAX, UPDATES_PER_RECORD_MAX
from streams.stored.item_block import join_stored
from streams.stored.record_texts import COLUMNS, UPDATE_BYTES_MIN, read_record


@dataclass(frozen=True, slots=True)
class PlainUpdates:
    """fields: a list of nine whole numbers for each update (OP ... END); raw: canonical features, from RAW_BEGIN to RAW_END of it, of other records too."""

    fields: list[list[int]]
    raw: bytes


def read_plain_updates(values: Sequence[bytes], kind: IdKind, partition: int, partitions: int) -> list[PlainUpdates | None]:
    """The updates of each record, all from `partition` of `partitions`; None: ask schemas/events.py, as long as the kernel is not there too."""
    if not _loading.is_loaded:
        _loading.begin()
        return [None] * len(values)
    joined = join_stored(values)
    fields_U = np.empty((len(joined.bytes_T) // UPDATE_BYTES_MIN + 1, COLUMNS), np.int64)
    raw_T, counts_N = np.empty(len(joined.bytes_T), np.uint8), np.empty(len(values), np.int64)
    updates, size = _read_records(*joined, kind is IdKind.TEXT, partition, partitions, fields_U, raw_T, counts_N)
    fields, raw = fields_U[:updates].tolist(), raw_T[:size].tobytes()
    ends = np.cumsum(counts_N).tolist()
    return [PlainUpdates(fields[end - count : end], raw) if count else None for count, end in zip(counts_N.tolist(), ends, strict=True)]


@numba.njit(nogil=True, cache=True)
def _read_records(
    bytes_T: np.ndarray,
    starts_N: np.ndarray,
    ends_N: np.ndarray,
    is_text: bool,
    partition: int,
    partitions: int,
    fields_U: np.ndarray,
    raw_T: np.ndarray,
    counts_N: np.ndarray,
) -> tuple[int, int]:
    """(updates, bytes of their canonical features); counts_N: updates of each record, 0: it is not plain."""
    updates, size = 0, 0
    entries, places = np.empty((FEATURES_PER_SCHEMA_MAX, 4), np.int64), np.zeros(FEATURES_PER_SCHEMA_MAX + 1, np.int64)
    for n in range(starts_N.shape[0]):
        text = bytes_T[starts_N[n] : ends_N[n]]
        free = fields_U[updates : updates + UPDATES_PER_RECORD_MAX]
        counts_N[n], end = read_record(text, is_text, partition, partitions, free, raw_T, size, entries, places)
        if counts_N[n] > 0:
            updates, size = updates + counts_N[n], end
    return updates, size


def load_records() -> None:
    """Takes the kernel from numba's cache, or compiles it, and waits for it."""
    _loading.begin().join()


class _Loading:
    """The kernel comes in a thread of its own: a worker that starts does not wait for it, because the models judge the same."""

    def __init__(self) -> None:
        self.is_loaded = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name="load-kernels", daemon=True)
                self._thread.start()
            return self._thread

    def _load(self) -> None:
        joined = join_stored([b"{}"])
        _read_records(*joined, False, 0, 1, np.empty((1, COLUMNS), np.int64), np.empty(2, np.uint8), np.empty(1, np.int64))
        self.is_loaded = True


_loading = _Loading()
