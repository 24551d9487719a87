"""Many byte strings side by side in one buffer: what compiled passes take and give in place of a Python object for each.

Here: `Joined`, how it is made of values that lie apart or of several others, and the copies and comparisons of bytes that kernels share. Not here: what
the bytes are.
Invariant: a buffer is read-only as soon as it is in a `Joined`, and a kernel is compiled for that kind alone.

Arrays: T bytes, R values.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba import types

from schemas.model.compiled import kernel, part
from schemas.model.vector_blocks import INT64, address, external, instruction

NONE = -1  # where a value would begin that is not there


class Joined(NamedTuple):
    """R values side by side: bytes_T uint8, from starts_R (-1 = none) to ends_R."""

    bytes_T: np.ndarray
    starts_R: np.ndarray
    ends_R: np.ndarray

    @property
    def rows(self) -> int:
        """R."""
        return len(self.starts_R)

    def take(self, places: np.ndarray) -> "Joined":
        """Some of them."""
        return Joined(self.bytes_T, self.starts_R[places], self.ends_R[places])

    def cut(self, begin: int, end: int) -> "Joined":
        """Those from `begin` to before `end`."""
        return Joined(self.bytes_T, self.starts_R[begin:end], self.ends_R[begin:end])

    def sizes(self) -> np.ndarray:
        """Bytes of each, 0 of none: int64 [R]."""
        return np.where(self.starts_R < 0, 0, self.ends_R - self.starts_R)

    def to_list(self) -> list[bytes | None]:
        """Each as a Python object."""
        whole = self.bytes_T.data
        spans = zip(self.starts_R.tolist(), self.ends_R.tolist(), strict=True)
        return [None if start < 0 else bytes(whole[start:end]) for start, end in spans]

    def present(self) -> list[bytes]:
        """The same where none is missing."""
        sizes_R = self.ends_R - self.starts_R
        if self.rows and (size := int(sizes_R[0])) and (sizes_R == size).all():  # keys: a tenth of the time
            packed_T = np.empty(size * self.rows, np.uint8)
            pack_into(self, packed_T, 0)
            return cast("list[bytes]", packed_T.view(f"V{size}").tolist())
        return cast("list[bytes]", self.to_list())


def join_stored(values: Sequence[bytes]) -> Joined:
    """Values that lie apart, all of them there."""
    sizes_R = np.fromiter(map(len, values), np.int64, len(values))
    ends_R = np.cumsum(sizes_R)
    return Joined(np.frombuffer(b"".join(values), np.uint8), ends_R - sizes_R, ends_R)


def join_some(values: Sequence[bytes | None]) -> Joined:
    """Values that lie apart, some of them missing."""
    joined = join_stored([value for value in values if value is not None])
    if joined.rows == len(values):
        return joined
    at_R = np.fromiter((value is not None for value in values), np.bool_, len(values))
    starts_R, ends_R = np.full(len(values), NONE, np.int64), np.full(len(values), NONE, np.int64)
    starts_R[at_R], ends_R[at_R] = joined.starts_R, joined.ends_R
    return Joined(joined.bytes_T, starts_R, ends_R)


def join_rows(rows_RB: np.ndarray) -> Joined:
    """Values of one size: uint8 [R, B]."""
    count, size = rows_RB.shape
    starts_R = np.arange(count, dtype=np.int64) * size
    return Joined(read_only(np.ascontiguousarray(rows_RB).reshape(-1)), starts_R, starts_R + size)


def join_runs(runs: Sequence[Joined]) -> Joined:
    """Several, at least one, one after the other; a buffer that some of them share is copied once."""
    if len(runs) == 1:
        return runs[0]
    buffers = {id(run.bytes_T): run.bytes_T for run in runs}
    begins = dict(zip(buffers, accumulate(map(len, buffers.values()), initial=0), strict=False))
    shifts = [np.where(run.starts_R < 0, 0, begins[id(run.bytes_T)]) for run in runs]
    starts_R = np.concatenate([run.starts_R + shift for run, shift in zip(runs, shifts, strict=True)])
    ends_R = np.concatenate([run.ends_R + shift for run, shift in zip(runs, shifts, strict=True)])
    return Joined(read_only(np.concatenate(list(buffers.values()))), starts_R, ends_R)


def prefix_each(prefix: bytes, values: Joined) -> Joined:
    """Each value, all of them there, with `prefix` before it."""
    sizes_R = values.ends_R - values.starts_R + len(prefix)
    ends_R = np.cumsum(sizes_R)
    starts_R = ends_R - sizes_R
    bytes_T = np.empty(int(ends_R[-1]) if values.rows else 0, np.uint8)
    _prefix_each(np.frombuffer(prefix, np.uint8), *values, starts_R, bytes_T)
    return Joined(read_only(bytes_T), starts_R, ends_R)


def pack_into(values: Joined, out_T: np.ndarray, at: int) -> int:
    """Writes the values without gaps into `out_T` from `at` on; where they end."""
    return int(_pack_into(*values, out_T, at))


def read_only(array: np.ndarray) -> np.ndarray:
    """The array, from now on not to be written through this view."""
    view = array.view()
    view.flags.writeable = False
    return view


@instruction
def copy_bytes(_context, out, source, size):
    """Copies `size` bytes from one address to another; they do not overlap."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        copy = external(builder, "memcpy", pointer, pointer, pointer, INT64)
        to, source = (builder.inttoptr(one, pointer) for one in arguments[:2])
        builder.call(copy, [to, source, arguments[2]])
        return ir.Constant(INT64, 0)

    return types.int64(types.int64, types.int64, types.int64), emit


@instruction
def compare_bytes(_context, one, other, size):
    """0 if `size` bytes at two addresses are the same, as C's memcmp."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        compare = external(builder, "memcmp", ir.IntType(32), pointer, pointer, INT64)
        one, other = (builder.inttoptr(each, pointer) for each in arguments[:2])
        return builder.sext(builder.call(compare, [one, other, arguments[2]]), INT64)

    return types.int64(types.int64, types.int64, types.int64), emit


@part
def copy_into(source: np.ndarray, begin: int, end: int, out: np.ndarray, at: int) -> int:
    """Copies source[begin:end] to `out` from `at` on; where it ends."""
    copy_bytes(address(out) + at, address(source) + begin, end - begin)
    return at + end - begin


@part
def is_same(a: np.ndarray, begin_a: int, end_a: int, b: np.ndarray, begin_b: int, end_b: int) -> bool:
    """Whether a[begin_a:end_a] is b[begin_b:end_b]."""
    if end_a - begin_a != end_b - begin_b:
        return False
    return compare_bytes(address(a) + begin_a, address(b) + begin_b, end_a - begin_a) == 0


@kernel
def _prefix_each(
    prefix: np.ndarray, bytes_T: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray, at_R: np.ndarray, out_T: np.ndarray
) -> None:
    for r in range(starts_R.shape[0]):
        at = copy_into(prefix, 0, prefix.shape[0], out_T, at_R[r])
        copy_into(bytes_T, starts_R[r], ends_R[r], out_T, at)


@kernel
def _pack_into(bytes_T: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray, out_T: np.ndarray, at: int) -> int:
    for r in range(starts_R.shape[0]):
        if starts_R[r] >= 0:
            at = copy_into(bytes_T, starts_R[r], ends_R[r], out_T, at)
    return at


def compile_joined() -> None:
    """Takes the kernels of this file from numba's cache, or compiles them."""
    values = prefix_each(b"a", join_stored([b"b"]))
    pack_into(values, np.empty(2, np.uint8), 0)
