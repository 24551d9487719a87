"""Any number of rows sorted by some of their columns: sorted runs, then merged.

Here: one sort by columns of whole numbers or fractions, ascending; rows that are equal in all of them keep their order. Not here: where
rows are kept (spool.py). Memory: `SpoolBounds.memory_bytes` of rows while a run is made, one block of each merged run afterwards.
Source: external merge sort (Knuth, The Art of Computer Programming 3, 5.4).
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from infra.data.spool import Spool, SpoolBounds


def sort_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], bounds: SpoolBounds) -> Iterator[pa.Table]:
    """The rows of all batches by `keys`, the first counts most, as tables of some rows each."""
    waiting: list[pa.RecordBatch] = []
    runs: list[Spool] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes > bounds.memory_bytes:
            runs.append(_run([_sorted(pa.Table.from_batches(waiting, schema), keys)], schema, bounds))
            waiting, waiting_bytes = [], 0
    rest = _sorted(pa.Table.from_batches(waiting, schema), keys)
    if not runs:
        yield rest
        return
    runs.append(_run([rest], schema, bounds))
    most = bounds.merged_runs_max
    while len(runs) > most:
        runs = [_run(_merged(runs[first : first + most], keys), schema, bounds) for first in range(0, len(runs), most)]
    yield from _merged(runs, keys)


def sort_into_spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], bounds: SpoolBounds) -> Spool:
    """The same, kept to be read any number of times."""
    return _filled(Spool(schema, bounds), sort_rows(batches, schema, keys, bounds))


def _run(tables: Iterable[pa.Table], schema: pa.Schema, bounds: SpoolBounds) -> Spool:
    return _filled(Spool(schema, bounds, on_disk=True), tables)


def _filled(spool: Spool, tables: Iterable[pa.Table]) -> Spool:
    for table in tables:
        for batch in table.to_batches():
            spool.append(batch)
    return spool.finish()


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
