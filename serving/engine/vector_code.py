"""The few instructions that plain compiled loops do not get: written once, as vector code, for whatever vectors this machine has.

Here: numba intrinsics on addresses. Each is some lines of LLVM's vector form, which the compiler turns into AVX-512, AVX2 or plain code. Not here:
what they are used for (joint_pass.py, tier_counts.py). Everything else in the engine is plain
loops, but for the bit planes of tier_counts.py, which are made of the same building blocks.

Why each is here (10^4 candidates, one thread of a Zen 5 core, default sizes; the plain loop is what numba makes of the obvious code):

    multiply_tile   first layer of the head     2.5 ms    plain loops 8.2 to 11.3 ms; the library under torch 5.4 ms
    add_sign_rows   DIN through sign tables     0.5 ms    plain loops 2.7 ms
    prefetch        rows of the next block      5.2 ms for the pass without SimTier; 9.6 ms without it, waiting for memory
    soften_row      attention of call 1         256 rows of 256: 0.03 ms; a loop over `exp` 0.4 ms
    widen, widen_row  half-precision columns    fp16 is no type of numba's on a CPU

Addresses are int64 (`address`), strides in bytes. Nothing here checks a bound: the callers own every size.

Arrays: B rows of a block, K depth of a product, P columns of a panel.
"""

from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8  # floats in a vector
TILE_ROWS = 6  # with two vectors a row: 12 sums, which fit the 16 registers of AVX2 too; wider tiles gain nothing here
PANEL = 2 * LANES
SIGN_CHUNK = 4 * LANES  # columns that `add_sign_rows` sums at once

FLOAT, INT16, INT32, INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(FLOAT, LANES)
_VECTOR_BYTES = 4 * LANES


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros that start on a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@numba.njit(inline="always")
def address(array: np.ndarray) -> int:
    """Where an array's first element lies, int64."""
    return np.int64(array.ctypes.data)


# --- building blocks of vector code: used while a kernel is compiled ----------------------------------------------------


def offset(builder: Any, address: Any, count: Any, stride: Any) -> Any:
    """address + count * stride; `count` and `stride` are ints or values."""
    count, stride = (ir.Constant(INT64, one) if isinstance(one, int) else one for one in (count, stride))
    return builder.add(address, builder.mul(count, stride))


def load(builder: Any, address: Any, kind: Any, at: int = 0) -> Any:
    """The value of a type at an address, `at` bytes on."""
    return builder.load(builder.inttoptr(offset(builder, address, at, 1), kind.as_pointer()), align=1)


def store(builder: Any, value: Any, address: Any, at: int = 0) -> None:
    """The reverse of `load`."""
    builder.store(value, builder.inttoptr(offset(builder, address, at, 1), value.type.as_pointer()), align=1)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """A vector of one value."""
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def external(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """An LLVM function by name, declared once per module."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def loop(builder: Any, count: Any, start: list[Any], body: Any) -> list[Any]:
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
    return results


# --- products -----------------------------------------------------------------------------------------------------------


def _emit_tile(builder: Any, vectors: int, arguments: Any) -> None:
    rows, row_stride, panel, depth, start, start_stride, out, out_stride, least = arguments
    fused = external(builder, f"llvm.fma.v{LANES}f32", _FLOATS, _FLOATS, _FLOATS, _FLOATS)
    cells = [(row, vector) for row in range(TILE_ROWS) for vector in range(vectors)]
    starts = [load(builder, offset(builder, start, row, start_stride), _FLOATS, _VECTOR_BYTES * vector) for row, vector in cells]
    row_at = [offset(builder, rows, row, row_stride) for row in range(TILE_ROWS)]

    def add_products(k: Any, sums: list[Any]) -> list[Any]:
        at = offset(builder, panel, k, vectors * _VECTOR_BYTES)
        weights = [load(builder, at, _FLOATS, _VECTOR_BYTES * vector) for vector in range(vectors)]
        inputs = [splat(builder, load(builder, offset(builder, one, k, 4), FLOAT), LANES) for one in row_at]
        return [builder.call(fused, [inputs[row], weights[vector], one]) for (row, vector), one in zip(cells, sums, strict=True)]

    lowest = splat(builder, least, LANES)
    for (row, vector), total in zip(cells, loop(builder, depth, starts, add_products), strict=True):
        kept = builder.select(builder.fcmp_unordered(">", total, lowest), total, lowest)  # not a number stays one
        store(builder, kept, offset(builder, out, row, out_stride), _VECTOR_BYTES * vector)


def _make_tile(vectors: int) -> Any:
    def multiply(_context, rows, row_stride, panel, depth, start, start_stride, out, out_stride, least):  # type: ignore[no-untyped-def]
        def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            _emit_tile(builder, vectors, arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, types.float32), emit

    return intrinsic(multiply)


# out [6, P] = max(least, start [6, P] + rows [6, K] x panel [K, P]), depth K >= 1; a start stride of 0 is one row (a bias) for all.
# Arguments: rows, row_stride, panel, depth, start, start_stride, out, out_stride, least (float32: 0 = ReLU, -inf = none).
multiply_tile = _make_tile(2)  # P = PANEL
multiply_half_tile = _make_tile(1)  # P = LANES


@intrinsic
def add_sign_rows(_context, signature, count, table, start, out):  # type: ignore[no-untyped-def]
    """out [SIGN_CHUNK] = start + for each of `count` bytes of a signature its two nibbles' rows of table [2 count, 16, SIGN_CHUNK]."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        signature, count, table, start, out = arguments
        row_bytes = 4 * SIGN_CHUNK

        def add_byte(index: Any, sums: list[Any]) -> list[Any]:
            byte = builder.zext(load(builder, builder.add(signature, index), ir.IntType(8)), INT64)
            both = offset(builder, table, index, 32 * row_bytes)
            high = offset(builder, both, builder.lshr(byte, ir.Constant(INT64, 4)), row_bytes)
            low = offset(builder, both, builder.and_(byte, ir.Constant(INT64, 15)), row_bytes)
            for row, at in ((high, 0), (low, 16 * row_bytes)):
                sums = [builder.fadd(one, load(builder, row, _FLOATS, at + _VECTOR_BYTES * v)) for v, one in enumerate(sums)]
            return sums

        starts = [load(builder, start, _FLOATS, _VECTOR_BYTES * v) for v in range(SIGN_CHUNK // LANES)]
        for v, total in enumerate(loop(builder, count, starts, add_byte)):
            store(builder, total, out, _VECTOR_BYTES * v)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@intrinsic
def sum_rows(_context, one, other, vectors, out):  # type: ignore[no-untyped-def]
    """out [vectors x LANES] = one + other."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        one, other, vectors, out = arguments

        def add(index: Any, _: list[Any]) -> list[Any]:
            rows = [load(builder, offset(builder, row, index, _VECTOR_BYTES), _FLOATS) for row in (one, other)]
            store(builder, builder.fadd(*rows), offset(builder, out, index, _VECTOR_BYTES))
            return []

        loop(builder, vectors, [], add)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


# --- softmax ------------------------------------------------------------------------------------------------------------

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)  # of (e^r - 1 - r) / r^2
_ROUND = 12582912.0  # 1.5 * 2^23: adding it rounds to a whole number, which then stands in the last bits
_EXP_LEAST = -87.0  # below it the result would be subnormal


def _constant(value: float) -> Any:
    return ir.Constant(_FLOATS, [ir.Constant(FLOAT, value)] * LANES)


def _emit_exp(builder: Any, x: Any) -> Any:
    """e^x of a vector of numbers <= 0, to two units in the last place; what is not a number stays so. e^x = 2^n e^r with |r| <= ln 2 / 2."""
    fused = external(builder, f"llvm.fma.v{LANES}f32", _FLOATS, _FLOATS, _FLOATS, _FLOATS)
    least = _constant(_EXP_LEAST)
    x = builder.select(builder.fcmp_unordered(">", x, least), x, least)
    rounded = builder.call(fused, [x, _constant(_LOG2E), _constant(_ROUND)])
    n = builder.fsub(rounded, _constant(_ROUND))
    r = builder.call(fused, [n, _constant(-_LN2_LOW), builder.call(fused, [n, _constant(-_LN2_HIGH), x])])
    series = _constant(_EXP[0])
    for coefficient in _EXP[1:]:
        series = builder.call(fused, [series, r, _constant(coefficient)])
    power = builder.fadd(builder.call(fused, [series, builder.fmul(r, r), r]), _constant(1.0))
    whole = ir.VectorType(INT32, LANES)
    exponent = builder.shl(builder.bitcast(rounded, whole), ir.Constant(whole, [ir.Constant(INT32, 23)] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(power, whole), exponent), _FLOATS)


@intrinsic
def soften_row(_context, row, vectors, scale):  # type: ignore[no-untyped-def]
    """row [vectors x LANES] = e^(scale (row - its maximum)), in place; returns the sum. scale > 0; a place that holds -inf adds nothing."""

    def emit(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        row, vectors, scale = arguments

        def at(index: Any) -> Any:
            return offset(builder, row, index, _VECTOR_BYTES)

        def larger(index: Any, found: list[Any]) -> list[Any]:
            values = load(builder, at(index), _FLOATS)
            return [builder.select(builder.fcmp_ordered(">", values, found[0]), values, found[0])]

        lowest = ir.Constant(_FLOATS, [ir.Constant(FLOAT, float("-inf"))] * LANES)
        found = loop(builder, vectors, [lowest], larger)[0]
        greatest = builder.call(external(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", FLOAT, _FLOATS), [found])
        all_greatest, all_scale = splat(builder, greatest, LANES), splat(builder, scale, LANES)

        def soften(index: Any, total: list[Any]) -> list[Any]:
            value = _emit_exp(builder, builder.fmul(builder.fsub(load(builder, at(index), _FLOATS), all_greatest), all_scale))
            store(builder, value, at(index))
            return [builder.fadd(total[0], value)]

        total = loop(builder, vectors, [_constant(0.0)], soften)[0]
        add_up = external(builder, f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, FLOAT, _FLOATS)
        return builder.call(add_up, [ir.Constant(FLOAT, 0.0), total])

    return types.float32(types.int64, types.int64, types.float32), emit


# --- rows of the index ----------------------------------------------------------------------------------------------------


@intrinsic
def widen(_context, bits):  # type: ignore[no-untyped-def]
    """float32 of a half-precision number that is given as its uint16."""

    def emit(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), FLOAT)

    return types.float32(types.uint16), emit


@intrinsic
def widen_row(_context, source, count, out):  # type: ignore[no-untyped-def]
    """out [count] = `count` half-precision numbers side by side as float32, in the widest vectors that fit: for a loop over `widen` each number is alone."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        source, count, out = arguments
        done = ir.Constant(INT64, 0)
        for lanes in (LANES, 8, 1) if LANES > 8 else (LANES, 1):
            steps = builder.udiv(builder.sub(count, done), ir.Constant(INT64, lanes))
            with builder.if_then(builder.icmp_signed(">", steps, ir.Constant(INT64, 0))):

                def copy(index: Any, _: list[Any], done: Any = done, lanes: int = lanes) -> list[Any]:
                    at = builder.add(done, builder.mul(index, ir.Constant(INT64, lanes)))
                    narrow = load(builder, offset(builder, source, at, 2), ir.VectorType(ir.HalfType(), lanes))
                    store(builder, builder.fpext(narrow, ir.VectorType(FLOAT, lanes)), offset(builder, out, at, 4))
                    return []

                loop(builder, steps, [], copy)
            done = builder.add(done, builder.mul(steps, ir.Constant(INT64, lanes)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic
def load_word(_context, address):  # type: ignore[no-untyped-def]
    """The eight bytes at an address as uint64, aligned or not."""

    def emit(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return load(builder, arguments[0], INT64)

    return types.uint64(types.int64), emit


@intrinsic
def prefetch(_context, address):  # type: ignore[no-untyped-def]
    """Asks for the cache line at an address; never faults."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        pointer = ir.IntType(8).as_pointer()
        call = external(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT32, INT32, INT32)
        builder.call(call, [builder.inttoptr(arguments[0], pointer), *(ir.Constant(INT32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), emit
