"""The two arenas: shared memory that holds one version each, and the layout of a version in it.

An arena is anonymous memory (memfd), mapped by the serving process and by the loader process, which is sent the file descriptor. It has no name, so it is
freed with the last of the two, however they end. A new version is written into the same memory, so that no request pays for page faults. Only a version
that would fill more than GROW_AT of it gets a larger one, which the loader process touches first (serving/versions/loader.py).
Invariant: the arrays of the same layout, arena size, rows and id bytes lie at the same places in both processes.

Arrays: R rows (capacity), T look-up entries, M bytes of text ids.
"""

import bisect
import contextlib
import errno
import math
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.errors import Incompatible
from schemas.ids import IdKind
from schemas.index.layout import RowLayout

GROWTH = 1.5  # size of an arena: this many times the version for which it is made ...
NEW_ROWS_MIN = 4096  # ... and at least this many new ids
GROW_AT = 0.9  # share of an arena's room in use beyond which its version is loaded again into a larger one
TEXT_ID_BYTES_ASSUMED = 16  # room per new text id when a version has none to measure
HEADER_FIELDS = 16
_ALIGN = 64
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
_POPULATE_CHUNK = 16 << 20
ArraySpec = tuple[str, str, tuple[int, ...]]  # name, dtype code, shape


@dataclass(frozen=True)
class ArenaPlan:
    """Where the arrays of a version lie: name -> (byte offset, dtype, shape). Columns are under `column.<name>`."""

    capacity: int
    id_bytes: int
    size_bytes: int
    arrays: Mapping[str, tuple[int, str, tuple[int, ...]]] = field(repr=False)


def _array_specs(layout: RowLayout, capacity: int, id_bytes: int) -> list[ArraySpec]:
    table = 1 << (2 * capacity - 1).bit_length()
    ids: list[ArraySpec] = [("ids", "<i8", (capacity,))]
    if layout.id_kind is IdKind.TEXT:
        ids = [("id_spans", "<i8", (capacity, 2)), ("id_bytes", "u1", (id_bytes,))]
    columns: list[ArraySpec] = [(f"column.{c.name}", c.dtype, (capacity,) if c.width == 1 else (capacity, c.width)) for c in layout.columns]
    return [
        ("header", "<i8", (HEADER_FIELDS,)),
        *ids,
        ("stamps", "<i8", (capacity, 3)),
        ("dead", "u1", (capacity,)),
        ("table", "<u8", (table, 2)),
        *columns,
    ]


def plan_arrays(layout: RowLayout, capacity: int, id_bytes: int) -> ArenaPlan:
    """The arrays for `capacity` rows and `id_bytes` bytes of text ids, in this order, each on a cache line of its own."""
    at, arrays = 0, {}
    for name, dtype, shape in _array_specs(layout, capacity, id_bytes):
        arrays[name] = (at, dtype, shape)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        at += -(-size // _ALIGN) * _ALIGN
    return ArenaPlan(capacity, id_bytes, at, arrays)


def _room_for(rows: int, id_bytes: int, capacity: int) -> int:
    """Bytes of text ids for `capacity` rows when `rows` rows have `id_bytes`."""
    return max(id_bytes, -(-id_bytes * capacity // rows) if rows else TEXT_ID_BYTES_ASSUMED * capacity)


def plan_arena_bytes(layout: RowLayout, rows: int, id_bytes: int) -> int:
    """Size in bytes of an arena for this version and those that follow it: 1.5 times the version, and room for new ids."""
    capacity = max(int(rows * GROWTH), rows + NEW_ROWS_MIN)
    return plan_arrays(layout, capacity, _room_for(rows, id_bytes, capacity)).size_bytes


def plan_arena(layout: RowLayout, arena_bytes: int, rows: int, id_bytes: int) -> ArenaPlan:
    """The plan with the most room for new ids that fits into the arena.

    Raises Incompatible (`arena_too_small`) if the version fills more than GROW_AT of it.
    """

    def plan(capacity: int) -> ArenaPlan:
        return plan_arrays(layout, capacity, _room_for(rows, id_bytes, capacity))

    least = max(math.ceil(rows / GROW_AT), 1)
    if plan(least).size_bytes > arena_bytes:
        raise Incompatible(
            "arena_too_small",
            f"the version has {rows} rows and needs {plan(least).size_bytes} bytes, the arena has {arena_bytes}; load it into a larger arena",
        )
    capacities = range(least, arena_bytes)  # a row has more than one byte
    return plan(capacities[bisect.bisect_right(capacities, arena_bytes, key=lambda capacity: plan(capacity).size_bytes) - 1])


def open_arrays(plan: ArenaPlan, memory: Any) -> dict[str, np.ndarray]:
    """The arrays as views of `memory` (any writable buffer of at least plan.size_bytes)."""
    return {
        name: np.frombuffer(memory, dtype, int(np.prod(shape)), offset).reshape(shape)
        for name, (offset, dtype, shape) in plan.arrays.items()
    }


def reset_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Makes the arrays an empty version. Clears only the arrays that are read before they are written."""
    for name in ("header", "table"):
        arrays[name][...] = 0
    if "id_spans" in arrays:
        arrays["id_spans"][:1] = 0  # a look-up asks early for the bytes of row 0


class ArenaMemory:
    """`size_bytes` of shared memory under the file descriptor `fd`; created here if `fd` is None, else mapped from another process.

    Raises OSError if there is not so much address space; then the descriptor is closed.
    """

    def __init__(self, size_bytes: int, fd: int | None = None) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("aif-arena") if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, size_bytes)
            self.buffer = mmap.mmap(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise

    def populate(self, between: Callable[[], None] = lambda: None) -> None:
        """Touches every page once, so that no request pays for a page fault. Raises OSError if there is not so much memory. `between`: called after each piece.

        A page that another process has touched takes 50 ns here instead of 250, so the serving process lets the loader go first.
        """
        for at in range(0, self.size_bytes, _POPULATE_CHUNK):
            size = min(_POPULATE_CHUNK, self.size_bytes - at)
            try:
                self.buffer.madvise(_POPULATE_WRITE, at, size)
            except OSError as error:
                if error.errno in (errno.ENOMEM, errno.EFAULT):
                    raise  # any other error is that of a kernel that does not know the call
                np.frombuffer(self.buffer, np.uint8, size, at)[:: mmap.PAGESIZE] = 0
            between()

    def close(self) -> None:
        """Closes the descriptor, and the mapping unless arrays still refer to it; then it ends with them."""
        with contextlib.suppress(BufferError):
            self.buffer.close()
        os.close(self.fd)
