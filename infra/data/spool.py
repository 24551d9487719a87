"""Any number of rows in bounded memory: Arrow batches, in memory up to a bound and in a temporary file beyond it.

Here: appending, reading by block, by range of a column, by row; and sorting by columns of numbers, ascending and stable. The sort writes sorted runs and
merges them (external merge sort; Knuth, The Art of Computer Programming 3, 5.4). Not here: decoding cells (columns.py).
Invariants: rows are read as they were appended, from memory or disk. The files have no names, so a kill leaves nothing behind; they are in the folder that
TMPDIR names.
"""

import contextlib
import io
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from infra.files import is_disk_full
from schemas.errors import Unavailable
from schemas.limits import MIB

_SLICE_ROWS, _CHUNK_ROWS = 65_536, 4_096


@dataclass(frozen=True, slots=True)
class SpoolBounds:
    """Bounds of memory. One table in memory, and the rows that are sorted at once, have at most `memory_bytes`. Blocks on disk have `block_rows` rows.
    At most `merged_runs_max` sorted runs are merged at once."""

    memory_bytes: int = 64 * MIB
    block_rows: int = 8_192
    merged_runs_max: int = 32


def slices(last: int, first: int = 0, rows: int = _SLICE_ROWS) -> Iterator[slice]:
    """The places from `first` to before `last` of columns that are walked through, some at a time."""
    return (slice(start, min(last, start + rows)) for start in range(first, last, rows))


def chunks(places: np.ndarray) -> Iterator[np.ndarray]:
    """The places of rows that become objects, some at a time."""
    return (places[part] for part in slices(len(places), rows=_CHUNK_ROWS))


class Spool:
    """A table of rows: appended to until `finish`, then read any number of times."""

    def __init__(self, schema: pa.Schema, bounds: SpoolBounds, on_disk: bool = False) -> None:
        self.schema, self._bounds = schema, bounds
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self.bytes = 0
        self._starts = [0]
        self._mapped: dict[str, np.ndarray] = {}
        self._file: io.BufferedRandom | None = None
        if on_disk:
            self._open_file()

    def __len__(self) -> int:
        return self._starts[-1] + self._pending_rows

    @property
    def on_disk(self) -> bool:
        """Whether the rows are on disk."""
        return self._file is not None

    def append(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        if not batch.num_rows:
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.bytes += batch.nbytes
        if not self.on_disk and self.bytes > self._bounds.memory_bytes:
            self._open_file()
        if self.on_disk and self._pending_rows >= self._bounds.block_rows:
            self._write_pending()

    def finish(self) -> Self:
        """Ends appending. Called once."""
        if self.on_disk:
            self._write_pending()
            with _disk_errors():
                self._writer.close()
                assert self._file is not None
                self._file.flush()
        return self

    def _open_file(self) -> None:
        with _disk_errors():
            self._file = tempfile.TemporaryFile(prefix="aif-rows-")  # noqa: SIM115 (closed with the spool)
        weakref.finalize(self, _close, self._file)
        self._sink = pa.PythonFile(self._file, mode="w")
        self._writer = pa.ipc.new_file(self._sink, self.schema)

    def _write_pending(self) -> None:
        if not self._pending_rows:
            return
        table = pa.Table.from_batches(self._pending, self.schema)
        self._pending, self._pending_rows = [], 0
        for first in range(0, len(table), self._bounds.block_rows):
            block = table.slice(first, self._bounds.block_rows).combine_chunks()
            with _disk_errors():
                self._writer.write_table(block, max_chunksize=self._bounds.block_rows)
            self._starts.append(self._starts[-1] + len(block))

    @classmethod
    def of(cls, tables: Iterable[pa.Table], schema: pa.Schema, bounds: SpoolBounds, on_disk: bool = False) -> Self:
        """A finished spool with the rows of all tables."""
        spool = cls(schema, bounds, on_disk)
        for table in tables:
            for batch in table.to_batches():
                spool.append(batch)
        return spool.finish()

    # --- reading ---

    @cached_property
    def _table(self) -> pa.Table:
        """All rows, of a spool in memory."""
        table = pa.Table.from_batches(self._pending, self.schema).combine_chunks()
        self._pending = table.to_batches()
        return table

    def _reader(self, columns: tuple[int, ...] | None) -> pa.ipc.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(included_fields=None if columns is None else list(columns), use_threads=False)
        return pa.ipc.open_file(pa.PythonFile(self._file, mode="r"), options=options)

    @cached_property
    def _all_columns(self) -> pa.ipc.RecordBatchFileReader:
        return self._reader(None)

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        """(number of its first row, block) of the rows from `first` to before `last`, in order."""
        last = len(self) if last is None else last
        if not self.on_disk:
            step = self._bounds.block_rows
            yield from ((start, self._table.slice(start, min(step, last - start))) for start in range(first, last, step))
            return
        number = int(np.searchsorted(self._starts, first, "right")) - 1
        while number < len(self._starts) - 1 and self._starts[number] < last:
            start, end = max(first, self._starts[number]), min(last, self._starts[number + 1])
            block = pa.Table.from_batches([self._all_columns.get_batch(number)])
            yield start, block.slice(start - self._starts[number], end - start)
            number += 1

    def take(self, rows: np.ndarray) -> pa.Table:
        """Some rows, in the given order. Rows that lie near each other cost least."""
        if not self.on_disk:
            return self._table.take(pa.array(rows, pa.int64()))
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        cuts = np.searchsorted(ascending, self._starts)
        parts = [
            pa.Table.from_batches([self._all_columns.get_batch(number)]).take(pa.array(ascending[a:b] - self._starts[number]))
            for number, (a, b) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
            if a < b
        ]
        if not parts:
            return self.schema.empty_table()
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_tables(parts).combine_chunks().take(pa.array(back))

    def column(self, name: str) -> np.ndarray:
        """One numeric column without missing cells. That of a spool on disk is mapped from a file of its own: its pages are in memory only while in use."""
        if not self.on_disk:
            return _array(self._table.column(name))
        if name not in self._mapped:
            self._mapped[name] = self._map(name)
        return self._mapped[name]

    def _map(self, name: str) -> np.ndarray:
        reader = self._reader((self.schema.get_field_index(name),))
        with _disk_errors(), tempfile.TemporaryFile(prefix="aif-column-") as file:
            for number in range(reader.num_record_batches):
                file.write(_array(reader.get_batch(number).column(0)).tobytes())
            dtype = self.schema.field(name).type.to_pandas_dtype()
            return np.asarray(np.memmap(file, dtype, "r")) if file.tell() else np.zeros(0, dtype)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Raises Unavailable (`disk_full`) for a full disk, and where no folder for temporary files takes one."""
    try:
        yield
    except OSError as error:
        if not (is_disk_full(error) or isinstance(error, FileNotFoundError)):
            raise
        place = tempfile.tempdir or "the folder for temporary files"
        raise Unavailable(
            "disk_full", f"no room in {place} for rows: {error}; free disk space, or name another folder with TMPDIR"
        ) from error


def _close(file: io.BufferedRandom) -> None:
    """Bytes that a full disk did not take are of no use any more."""
    with contextlib.suppress(OSError):
        file.close()


def _array(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)


# --- sorting ---


def sort_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], bounds: SpoolBounds) -> Iterator[pa.Table]:
    """The rows of all batches by `keys`, the first counts most, as tables of some rows each."""
    waiting: list[pa.RecordBatch] = []
    runs: list[Spool] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes > bounds.memory_bytes:
            runs.append(Spool.of([_sorted(pa.Table.from_batches(waiting, schema), keys)], schema, bounds, on_disk=True))
            waiting, waiting_bytes = [], 0
    rest = _sorted(pa.Table.from_batches(waiting, schema), keys)
    if not runs:
        yield rest
        return
    runs.append(Spool.of([rest], schema, bounds, on_disk=True))
    most = bounds.merged_runs_max
    while len(runs) > most:
        parts = (runs[first : first + most] for first in range(0, len(runs), most))
        runs = [Spool.of(_merged(part, keys), schema, bounds, on_disk=True) for part in parts]
    yield from _merged(runs, keys)


def sort_into_spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], bounds: SpoolBounds) -> Spool:
    """The same, kept to be read any number of times."""
    return Spool.of(sort_rows(batches, schema, keys, bounds), schema, bounds)


def _sorted(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    order = np.lexsort([table.column(key).to_numpy() for key in reversed(keys)])
    if (np.diff(order) == 1).all():
        return table
    return table.combine_chunks().take(pa.array(order))


class _Head:
    """The next block of a run, and where in it the merge is."""

    def __init__(self, run: Spool, keys: Sequence[str]) -> None:
        self._blocks, self._names = run.blocks(), keys
        self.next_block()

    def next_block(self) -> None:
        found = next(self._blocks, None)
        self.block = None if found is None else found[1]
        if self.block is not None:
            self._keys = [self.block.column(name).to_numpy() for name in self._names]
            self._first = 0

    def last_key(self) -> tuple[float, ...]:
        return tuple(column[-1] for column in self._keys)

    def taken(self, bound: tuple[float, ...], with_equal: bool) -> pa.Table:
        """The rows before the bound, those equal to it only where asked; they are no longer here."""
        low, high = self._first, len(self._keys[0])
        for column, value in zip(self._keys, bound, strict=True):  # the range in which all columns so far are equal to the bound's
            part = column[low:high]
            low, high = low + int(np.searchsorted(part, value, "left")), low + int(np.searchsorted(part, value, "right"))
        end = high if with_equal else low
        rows = self.block.slice(self._first, end - self._first)  # type: ignore[union-attr] # only a head with a block is asked
        self._first = end
        if end == len(self._keys[0]):
            self.next_block()
        return rows


def _merged(runs: Sequence[Spool], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Up to the smallest last row of the runs' blocks everything is known; of equal rows those of an earlier run come first."""
    heads = [_Head(run, keys) for run in runs]
    while any(head.block is not None for head in heads):
        bound, of = min((head.last_key(), number) for number, head in enumerate(heads) if head.block is not None)
        parts = [head.taken(bound, number <= of) for number, head in enumerate(heads) if head.block is not None]
        yield _sorted(pa.concat_tables(parts), keys)
