"""The few instructions that plain compiled loops do not get: written once, as vector code, for whatever vectors this machine has.

Each is some lines of LLVM's vector form, which the compiler turns into AVX-512, AVX2 or plain code.

Why each is here (10^4 candidates, one thread of a Zen 5 core, default sizes; the plain loop is what numba makes of the obvious code):

    add_sign_rows   DIN through sign tables     0.5 ms    plain loops 2.7 ms
    sum_rows        sums of a history           5,000 behaviours, on another EPYC: 0.40 ms for the pass; plain loops 0.55 ms
    prefetch        rows of the next block      5.2 ms for the pass without SimTier; 9.6 ms without it, waiting for memory
    soften_row      attention of call 1         256 rows of 256: 0.03 ms; a loop over `exp` 0.4 ms
    widen, widen_row  half-precision columns    fp16 is no type of numba's on a CPU

Addresses are int64 (`address`), strides in bytes. Nothing here checks a bound: the callers own every size.
"""

from typing import Any

from llvmlite import ir
from numba import types

from schemas.kernels.vector_blocks import (
    FLOAT,
    INT32,
    INT64,
    VECTOR_BYTES,
    constant,
    each_run,
    external,
    fused,
    instruction,
    load,
    loop,
    offset,
    splat,
    store,
)

LANES = VECTOR_BYTES // 4  # floats in a vector
SIGN_CHUNK = 4 * LANES  # columns that `add_sign_rows` sums at once

_FLOATS = ir.VectorType(FLOAT, LANES)


@instruction
def add_sign_rows(_context, signature, count, table, start, out):
    """out [SIGN_CHUNK] = start + for each of `count` bytes of a signature its two nibbles' rows of table [2 count, 16, SIGN_CHUNK]."""

    def emit(context, builder, _signature, arguments):
        signature, count, table, start, out = arguments
        row_bytes = 4 * SIGN_CHUNK

        def add_byte(index: Any, sums: list[Any]) -> list[Any]:
            byte = builder.zext(load(builder, builder.add(signature, index), ir.IntType(8)), INT64)
            both = offset(builder, table, index, 32 * row_bytes)
            high = offset(builder, both, builder.lshr(byte, ir.Constant(INT64, 4)), row_bytes)
            low = offset(builder, both, builder.and_(byte, ir.Constant(INT64, 15)), row_bytes)
            for row, at in ((high, 0), (low, 16 * row_bytes)):
                sums = [builder.fadd(one, load(builder, row, _FLOATS, at + VECTOR_BYTES * v)) for v, one in enumerate(sums)]
            return sums

        starts = [load(builder, start, _FLOATS, VECTOR_BYTES * v) for v in range(SIGN_CHUNK // LANES)]
        for v, total in enumerate(loop(builder, count, starts, add_byte)):
            store(builder, total, out, VECTOR_BYTES * v)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@instruction
def sum_rows(_context, one, other, vectors, out):
    """out [vectors x LANES] = one + other."""

    def emit(context, builder, _signature, arguments):
        one, other, vectors, out = arguments

        def add(index: Any, _: list[Any]) -> list[Any]:
            rows = [load(builder, offset(builder, row, index, VECTOR_BYTES), _FLOATS) for row in (one, other)]
            store(builder, builder.fadd(*rows), offset(builder, out, index, VECTOR_BYTES))
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
    return constant(value, FLOAT, LANES)


def _emit_exp(builder: Any, x: Any) -> Any:
    """e^x of a vector of numbers <= 0, to two units in the last place; NaN stays NaN. e^x = 2^n e^r with |r| <= ln 2 / 2."""
    least = _constant(_EXP_LEAST)
    x = builder.select(builder.fcmp_unordered(">", x, least), x, least)
    rounded = fused(builder, x, _constant(_LOG2E), _constant(_ROUND))
    n = builder.fsub(rounded, _constant(_ROUND))
    r = fused(builder, n, _constant(-_LN2_LOW), fused(builder, n, _constant(-_LN2_HIGH), x))
    series = _constant(_EXP[0])
    for coefficient in _EXP[1:]:
        series = fused(builder, series, r, _constant(coefficient))
    power = builder.fadd(fused(builder, series, builder.fmul(r, r), r), _constant(1.0))
    whole = ir.VectorType(INT32, LANES)
    exponent = builder.shl(builder.bitcast(rounded, whole), ir.Constant(whole, [ir.Constant(INT32, 23)] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(power, whole), exponent), _FLOATS)


@instruction
def soften_row(_context, row, vectors, scale):
    """row [vectors x LANES] = e^(scale (row - its maximum)), in place; returns the sum. scale > 0; a place that holds -inf adds nothing."""

    def emit(_context, builder, _signature, arguments):
        row, vectors, scale = arguments

        def at(index: Any) -> Any:
            return offset(builder, row, index, VECTOR_BYTES)

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


@instruction
def widen(_context, bits):
    """float32 of a half-precision number that is given as its uint16."""

    def emit(_context, builder, _signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), FLOAT)

    return types.float32(types.uint16), emit


@instruction
def widen_row(_context, source, count, out):
    """out [count] = `count` half-precision numbers side by side as float32, in the widest vectors that fit: for a loop over `widen` each number is alone."""

    def emit(context, builder, _signature, arguments):
        source, count, out = arguments

        def copy(at: Any, lanes: int) -> None:
            narrow = load(builder, offset(builder, source, at, 2), ir.VectorType(ir.HalfType(), lanes))
            store(builder, builder.fpext(narrow, ir.VectorType(FLOAT, lanes)), offset(builder, out, at, 4))

        each_run(builder, count, (LANES, 8, 1) if LANES > 8 else (LANES, 1), copy)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@instruction
def prefetch(_context, address):
    """Asks for the cache line at an address; never faults."""

    def emit(context, builder, _signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        call = external(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT32, INT32, INT32)
        builder.call(call, [builder.inttoptr(arguments[0], pointer), *(ir.Constant(INT32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), emit
