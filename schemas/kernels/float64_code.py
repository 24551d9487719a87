"""The steps of the item half that the compiler does not vectorise by itself, written as vector code: rows in fp64.

Invariant: the result of a row depends on that row alone, to the bit, on every processor. IEEE 754 fixes each step: sum, product, fused multiply-add,
quotient, square root, comparison. This file fixes their order: vectors of 8, whose sums are added up in halves. e^x is our own series. So a processor with
other vectors, or another math library, changes nothing.

Addresses are int64, strides in bytes; nothing here checks a bound.

Arrays: D width padded to vectors.
"""

from typing import Any

from llvmlite import ir
from numba import types

from schemas.kernels.vector_blocks import (
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
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

LANES = 8  # processors with narrower vectors use two of theirs

_DOUBLES = ir.VectorType(DOUBLE, LANES)
_BYTES = 8 * LANES


@instruction
def round_numbers(_context, source, count, out):
    """out float16 [count] = source float64 [count], rounded to float32 and then to float16, as torch does."""

    def emit(context, builder, _signature, arguments):
        source, count, out = arguments

        def narrow(at: Any, lanes: int) -> None:
            numbers = load(builder, offset(builder, source, at, 8), ir.VectorType(DOUBLE, lanes))
            singles = builder.fptrunc(numbers, ir.VectorType(FLOAT, lanes))
            store(builder, builder.fptrunc(singles, ir.VectorType(ir.HalfType(), lanes)), offset(builder, out, at, 2))

        each_run(builder, count, (LANES, 1), narrow)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


def _add_up(builder: Any, numbers: Any) -> Any:
    """The sum of a vector: halves onto each other until one is left."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        low, high = (ir.Constant(ir.VectorType(INT32, lanes), list(range(first, first + lanes))) for first in (0, lanes))
        nothing = ir.Constant(numbers.type, ir.Undefined)
        numbers = builder.fadd(builder.shuffle_vector(numbers, nothing, low), builder.shuffle_vector(numbers, nothing, high))
    return builder.extract_element(numbers, ir.Constant(INT32, 0))


@instruction
def layer_norm_row(_context, row, vectors, count, epsilon, mask, scale, shift):
    """LayerNorm in place: row [D] of which `count` (float64) are real; mask is 1 there and 0 after them; scale, shift [D]."""

    def emit(context, builder, _signature, arguments):
        row, vectors, count, epsilon, mask, scale, shift = arguments

        def at(start: Any, index: Any) -> Any:
            return load(builder, offset(builder, start, index, _BYTES), _DOUBLES)

        zero = constant(0.0, DOUBLE, LANES)
        total = loop(builder, vectors, [zero], lambda i, sums: [builder.fadd(sums[0], at(row, i))])[0]
        mean = splat(builder, builder.fdiv(_add_up(builder, total), count), LANES)

        def centre(index: Any, sums: list[Any]) -> list[Any]:
            centred = builder.fmul(builder.fsub(at(row, index), mean), at(mask, index))
            store(builder, centred, offset(builder, row, index, _BYTES))
            return [fused(builder, centred, centred, sums[0])]

        squares = loop(builder, vectors, [zero], centre)[0]
        variance = builder.fdiv(_add_up(builder, squares), count)
        root = builder.call(external(builder, "llvm.sqrt.f64", DOUBLE, DOUBLE), [builder.fadd(variance, epsilon)])
        deviation = splat(builder, builder.fdiv(ir.Constant(DOUBLE, 1.0), root), LANES)

        def stretch(index: Any, _: list[Any]) -> list[Any]:
            normal = builder.fmul(at(row, index), deviation)
            store(builder, fused(builder, normal, at(scale, index), at(shift, index)), offset(builder, row, index, _BYTES))
            return []

        loop(builder, vectors, [], stretch)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64, types.float64, *[types.int64] * 3), emit


_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.42860682030941723212e-6
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, which then stands in the last bits
_EXP_LEAST = -700.0  # below it the result would be near subnormal
_TERMS = 13  # of the series of e^r, |r| <= ln 2 / 2: the rest is 4e-18 of it


def _emit_exp(builder: Any, x: Any) -> Any:
    """e^x of a vector of numbers <= 0, as 2^n e^r with |r| <= ln 2 / 2; NaN stays NaN."""
    least = constant(_EXP_LEAST, DOUBLE, LANES)
    x = builder.select(builder.fcmp_unordered(">", x, least), x, least)
    rounded = fused(builder, x, constant(_LOG2E, DOUBLE, LANES), constant(_ROUND, DOUBLE, LANES))
    n = builder.fsub(rounded, constant(_ROUND, DOUBLE, LANES))
    r = fused(builder, n, constant(-_LN2_LOW, DOUBLE, LANES), fused(builder, n, constant(-_LN2_HIGH, DOUBLE, LANES), x))
    series, factor = constant(1.0, DOUBLE, LANES), constant(1.0, DOUBLE, LANES)
    for term in range(_TERMS, 0, -1):  # 1 + r/1 (1 + r/2 (1 + ...)), each quotient as a product
        series = fused(builder, builder.fmul(r, constant(1.0 / term, DOUBLE, LANES)), series, factor)
    whole = ir.VectorType(INT64, LANES)
    exponent = builder.shl(builder.bitcast(rounded, whole), ir.Constant(whole, [ir.Constant(INT64, 52)] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(series, whole), exponent), _DOUBLES)


@instruction
def softmax_row(_context, row, vectors, root):
    """row [D] = softmax(row / root), in place. A place that holds -inf gets nothing."""

    def emit(context, builder, _signature, arguments):
        row, vectors, root = arguments
        divisor = splat(builder, root, LANES)

        def at(index: Any) -> Any:
            return offset(builder, row, index, _BYTES)

        def larger(index: Any, found: list[Any]) -> list[Any]:
            numbers = builder.fdiv(load(builder, at(index), _DOUBLES), divisor)
            store(builder, numbers, at(index))
            return [builder.select(builder.fcmp_ordered(">", numbers, found[0]), numbers, found[0])]

        found = loop(builder, vectors, [constant(float("-inf"), DOUBLE, LANES)], larger)[0]
        greatest = builder.call(external(builder, f"llvm.vector.reduce.fmax.v{LANES}f64", DOUBLE, _DOUBLES), [found])
        all_greatest = splat(builder, greatest, LANES)

        def soften(index: Any, sums: list[Any]) -> list[Any]:
            power = _emit_exp(builder, builder.fsub(load(builder, at(index), _DOUBLES), all_greatest))
            store(builder, power, at(index))
            return [builder.fadd(sums[0], power)]

        total = loop(builder, vectors, [constant(0.0, DOUBLE, LANES)], soften)[0]
        whole = splat(builder, _add_up(builder, total), LANES)

        def share(index: Any, _: list[Any]) -> list[Any]:
            store(builder, builder.fdiv(load(builder, at(index), _DOUBLES), whole), at(index))
            return []

        loop(builder, vectors, [], share)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64), emit


@instruction
def store_signs(_context, row, count, out):
    """Bytes out [count]: bit i of each says whether number i of eight of the row is above 0."""

    def emit(context, builder, _signature, arguments):
        row, count, out = arguments

        def sign(index: Any, _: list[Any]) -> list[Any]:
            above = builder.fcmp_ordered(">", load(builder, offset(builder, row, index, _BYTES), _DOUBLES), constant(0.0, DOUBLE, LANES))
            store(builder, builder.bitcast(above, ir.IntType(LANES)), builder.add(out, index))
            return []

        loop(builder, count, [], sign)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit
