"""Spools and sorts: whatever the bounds, rows come back as from a plain list."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.data.spool import Spool, SpoolBounds, sort_rows

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("number", pa.int64())])
rows_of_keys = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-1.5, 0.0, 2.0, np.inf])), max_size=120)
bounds_of_any_size = st.builds(
    SpoolBounds, memory_bytes=st.sampled_from([1, 200, 10_000]), block_rows=st.integers(1, 50), merged_runs_max=st.integers(2, 4)
)


def _batches(rows: list[tuple[int, float]], size: int) -> list[pa.RecordBatch]:
    numbered = [(*row, number) for number, row in enumerate(rows)]
    parts = [numbered[first : first + size] for first in range(0, len(rows), size)]
    return [
        pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*p, strict=True), SCHEMA, strict=True)], schema=SCHEMA)
        for p in parts
    ]


@given(rows_of_keys, st.integers(1, 30), bounds_of_any_size)
@settings(max_examples=60, deadline=None)
def test_a_sort_in_runs_is_the_stable_sort(rows: list[tuple[int, float]], size: int, bounds: SpoolBounds) -> None:
    tables = list(sort_rows(_batches(rows, size), SCHEMA, ["a", "b"], bounds))
    got = [number for table in tables for number in table.column("number").to_pylist()]
    assert got == sorted(range(len(rows)), key=lambda n: rows[n])


@given(rows_of_keys, st.integers(1, 30), bounds_of_any_size, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_spool_reads_what_was_appended(rows: list[tuple[int, float]], size: int, bounds: SpoolBounds, seed: int) -> None:
    spool, chance = Spool(SCHEMA, bounds), np.random.default_rng(seed)
    for batch in _batches(rows, size):
        spool.append(batch)
    assert len(spool.finish()) == len(rows)
    numbers, column = np.arange(len(rows)), spool.column("number")
    chosen = chance.integers(0, len(rows), 20) if rows else numbers
    assert spool.take(chosen).column("number").to_pylist() == chosen.tolist()
    for _ in range(5):
        first, last = sorted(chance.integers(0, len(rows) + 1, 2).tolist())
        assert column[first:last].tolist() == numbers[first:last].tolist()
        blocks = list(spool.blocks(first, last))
        assert [n for start, b in blocks for n in b.column("number").to_pylist()] == numbers[first:last].tolist()
        assert all(b.column("number")[0].as_py() == start for start, b in blocks)
    if rows:
        assert column[-1] == len(rows) - 1 and column[0] == 0
