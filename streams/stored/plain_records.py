"""Records of item-features that publishers wrote plainly, many of them read in one compiled pass.

Here: `read_plain_records`. Not here: one record, and what plain means (record_texts.py); the models that judge every
other record (streams/shard/decode.py).
Together, a record with one update costs a quarter of what it costs alone, because the arrays and the call are made once.
Invariant: until the kernel is loaded (kernels.py) nothing is read here, so a worker that starts does not wait for a compiler.

Arrays: T bytes, N records, U updates of all of them, with 9 numbers each, N1 = N + 1 counts.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.joined import Joined, join_rows, join_stored, read_only
from schemas.ids import IdKind
from schemas.limits import FEATURES_PER_SCHEMA_MAX, UPDATES_PER_RECORD_MAX
from schemas.model.compiled import kernel
from streams.stored.record_texts import COLUMNS, ID_BEGIN, ID_END, ITEM, RAW_BEGIN, RAW_END, UPDATE_BYTES_MIN, VERSION, read_record
from streams.stored.upserts import UpsertColumns

_SIGN_BIT = np.uint64(1 << 63)
_loaded = threading.Event()


@dataclass(frozen=True, slots=True)
class PlainRecords:
    """N records side by side, and what was read of them.

    values      the records
    fields_U9   int64: what is known of each update, by the columns OP to END of record_texts.py; places count from the beginning of its record
    raw_T       uint8: canonical features; those of an update stand from its RAW_BEGIN to its RAW_END
    ends_N1     number of updates before each record, and of all; a record without updates is not plain
    """

    values: Joined
    fields_U9: np.ndarray
    raw_T: np.ndarray
    ends_N1: list[int]

    def updates_of(self, record: int) -> slice:
        """Which rows of `fields_U9` are the updates of a record; none if it is not plain."""
        return slice(self.ends_N1[record], self.ends_N1[record + 1])

    def raw_of(self, begin: int, end: int) -> bytes:
        """The canonical features of one update."""
        return self.raw_T[begin:end].tobytes()

    def upserts(self, kind: IdKind, offsets: Sequence[int]) -> UpsertColumns:
        """All U updates as columns; `offsets` are those of the N records. Updates that are no plain upserts are among them, and the caller leaves them out."""
        counts_N = np.diff(self.ends_N1)
        first_U = np.repeat(np.array(self.ends_N1[:-1], np.int64), counts_N)
        orders_U3 = np.empty((len(self.fields_U9), 3), np.int64)
        orders_U3[:, 0] = self.fields_U9[:, VERSION]
        orders_U3[:, 1] = np.repeat(np.array(offsets, np.int64), counts_N)
        orders_U3[:, 2] = np.arange(len(first_U)) - first_U
        keys = self._int64_keys() if kind is IdKind.INT64 else self._text_keys(np.repeat(self.values.starts_R, counts_N))
        return UpsertColumns(keys, orders_U3, Joined(self.raw_T, self.fields_U9[:, RAW_BEGIN].copy(), self.fields_U9[:, RAW_END].copy()))

    def _int64_keys(self) -> Joined:
        """`encode_index_key` of each."""
        whole_U = (self.fields_U9[:, ITEM].copy().view(np.uint64) ^ _SIGN_BIT).astype(">u8")
        return join_rows(whole_U.view(np.uint8).reshape(-1, 8))

    def _text_keys(self, begins_U: np.ndarray) -> Joined:
        return Joined(self.values.bytes_T, begins_U + self.fields_U9[:, ID_BEGIN], begins_U + self.fields_U9[:, ID_END])


def read_plain_records(values: Sequence[bytes], kind: IdKind, partition: int, partitions: int) -> PlainRecords | None:
    """What is plain of these records, all of which came in `partition` of `partitions`. The models of schemas/events.py judge the others, and all records as
    long as the kernel is not loaded (None)."""
    if not _loaded.is_set():
        return None
    joined = join_stored(values)
    fields_U9 = np.empty((len(joined.bytes_T) // UPDATE_BYTES_MIN + 1, COLUMNS), np.int64)
    raw_T, counts_N = np.empty(len(joined.bytes_T), np.uint8), np.empty(len(values), np.int64)
    updates, size = _read_records(*joined, kind is IdKind.TEXT, partition, partitions, fields_U9, raw_T, counts_N, *_new_entries())
    return PlainRecords(joined, fields_U9[:updates], read_only(raw_T[:size]), [0, *np.cumsum(counts_N).tolist()])


def _new_entries() -> tuple[np.ndarray, np.ndarray]:
    """What a kernel keeps of the entries of one update, and their order by name."""
    return np.empty((FEATURES_PER_SCHEMA_MAX, 4), np.int64), np.zeros(FEATURES_PER_SCHEMA_MAX + 1, np.int64)


@kernel
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
    entries: np.ndarray,
    places: np.ndarray,
) -> tuple[int, int]:
    """(updates, bytes of their canonical features); counts_N: updates of each record, 0: it is not plain."""
    updates, size = 0, 0
    for n in range(starts_N.shape[0]):
        text = bytes_T[starts_N[n] : ends_N[n]]
        free = fields_U[updates : updates + UPDATES_PER_RECORD_MAX]
        counts_N[n], end = read_record(text, is_text, partition, partitions, free, raw_T, size, entries, places)
        if counts_N[n] > 0:
            updates, size = updates + counts_N[n], end
    return updates, size


def load_records() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    fields_U9, raw_T, counts_N = np.empty((1, COLUMNS), np.int64), np.empty(2, np.uint8), np.empty(1, np.int64)
    _read_records(*join_stored([b"{}"]), False, 0, 1, fields_U9, raw_T, counts_N, *_new_entries())
    _loaded.set()
