"""What vector code is built of: values at addresses and loops in registers. Used while a kernel is compiled.

Addresses are int64 (`address`), strides in bytes. Nothing here checks a bound: the callers own every size.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from schemas.kernels.compiled import inlined, int64

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
INT32, INT64 = ir.IntType(32), ir.IntType(64)
VECTOR_BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32  # of this machine's registers
_SUFFIX = {FLOAT: "f32", DOUBLE: "f64"}


def instruction(typing: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's `intrinsic` with types that mypy accepts: a function that kernels call, given as its signature and the LLVM code that it becomes."""
    return intrinsic(typing)


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros that start on a cache line. A user half needs 22 of them: by NumPy's `prod`, `ctypes` and views they took an eighth of its time."""
    raw = np.zeros(math.prod(shape) * np.dtype(dtype).itemsize + 64, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.__array_interface__["data"][0] % 64)


@inlined
def address(array: np.ndarray) -> int:
    """Where an array's first element lies, int64."""
    return int64(array.ctypes.data)


@instruction
def apart(_context):
    """Keeps the function that calls it apart from its callers' code: LLVM, which has to share registers between both, may make a hot loop slower."""

    def emit(context, builder, _signature, _arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), emit


@instruction
def load_word(_context, address):
    """The eight bytes at an address as uint64, aligned or not."""

    def emit(_context, builder, _signature, arguments):
        return load(builder, arguments[0], INT64)

    return types.uint64(types.int64), emit


@instruction
def load_byte(_context, address):
    """The byte at an address as uint64."""

    def emit(_context, builder, _signature, arguments):
        return builder.zext(load(builder, arguments[0], ir.IntType(8)), INT64)

    return types.uint64(types.int64), emit


def offset(builder: Any, address: Any, count: Any, stride: Any) -> Any:
    """address + count * stride; `count` and `stride` are ints or values."""
    count, stride = (ir.Constant(INT64, one) if isinstance(one, int) else one for one in (count, stride))
    return builder.add(address, builder.mul(count, stride))


def load(builder: Any, address: Any, kind: Any, at: int = 0) -> Any:
    """The value of a type at an address, `at` bytes on."""
    return builder.load(builder.inttoptr(offset(builder, address, at, 1), kind.as_pointer()), align=1)


def store(builder: Any, value: Any, address: Any, at: int = 0) -> None:
    """The inverse of `load`."""
    builder.store(value, builder.inttoptr(offset(builder, address, at, 1), value.type.as_pointer()), align=1)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """A vector of one value."""
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def constant(value: float, element: Any, lanes: int) -> Any:
    """A vector of one number that is known now."""
    return ir.Constant(ir.VectorType(element, lanes), [ir.Constant(element, value)] * lanes)


def external(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """An LLVM function by name, declared once per module."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of vectors, rounded once."""
    kind = a.type
    return builder.call(external(builder, f"llvm.fma.v{kind.count}{_SUFFIX[kind.element]}", kind, kind, kind, kind), [a, b, c])


def loop(builder: Any, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
    """`values = body(index, values)` for index = 0 .. count - 1 (at least once), in registers. Returns the last values."""
    before, inside, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(inside)
    builder.position_at_end(inside)
    index, values = builder.phi(INT64), [builder.phi(value.type) for value in start]
    index.add_incoming(ir.Constant(INT64, 0), before)
    for phi, value in zip(values, start, strict=True):
        phi.add_incoming(value, before)
    results = body(index, values)
    following = builder.add(index, ir.Constant(INT64, 1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(values, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return list(results)


def each_run(builder: Any, count: Any, widths: Sequence[int], run: Callable[[Any, int], None]) -> None:
    """`run(index of the first, lanes)` over `count` numbers: as many runs of the first width as fit, then of the next; the last width is 1."""
    done = ir.Constant(INT64, 0)
    for lanes in widths:
        steps = builder.udiv(builder.sub(count, done), ir.Constant(INT64, lanes))
        with builder.if_then(builder.icmp_signed(">", steps, ir.Constant(INT64, 0))):

            def step(index: Any, _: list[Any], done: Any = done, lanes: int = lanes) -> list[Any]:
                run(builder.add(done, builder.mul(index, ir.Constant(INT64, lanes))), lanes)
                return []

            loop(builder, steps, [], step)
        done = builder.add(done, builder.mul(steps, ir.Constant(INT64, lanes)))
