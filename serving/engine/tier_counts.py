"""SimTier counted bit-sliced: 512 behaviours side by side, one bit of each in a vector, so that one instruction serves 512 pairs.

Here: the tables (`build_word_table`) and the counts (`take_beyond`). Not here: the blocks of behaviours (behaviour_blocks.py, call 1), what a tier is
(schemas/model/simtier.py), the features made of counts (joint_pass.py). Exact: whole numbers all the way.

    table       per word of 64 bits: twenty-one groups of 3 bits and the last bit; for each value of a group its number of differing bits from
                each behaviour, as 2 planes of 512 bits: 22 KB, which the first cache holds
    counter     planes of the Hamming distance: the groups' planes through full adders (carry-save), words one after another
    beyond      distance > limit is the carry out of distance + ~limit, plane by plane; population counts of eight limits lie side by side as bytes,
                so that one instruction adds up all of them

Distances of BATCH candidates are made before any is compared: the two steps of one candidate wait for each other (42 ns in place of 39 for 512 pairs
and nine limits).

Measured on one thread of a Zen 4 core, per pair and before the tables (in brackets the form before, which compared each candidate at once, counted
limit by limit and took two instructions for a carry): 0.072 ns (0.098) with 64 bits and eight equal tiers, 0.084 (0.128) with nine arbitrary edges,
0.135 (0.199) with these and 128 bits; the plain loop over popcounts takes 0.7. On two threads, tables included, 0.054 (0.071) and 0.046 (0.069) with
64 bits. Groups of 7 bits (221 KB, in the second cache) are up to 10% faster there and take longer to build; on a Zen 5 core, whose first cache is
larger, they were slower. It is the only cost of call 2 that grows with the length of a history.

Arrays: C candidates, S behaviours, Q words of a signature, Z blocks, B bits of a word, E edges, N = E + 1 tiers, P planes.
Source: AIF, eq. (9); carry-save population counts: Harley and Seal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from schemas.model.compiled import kernel, part
from schemas.model.vector_blocks import INT32, INT64, address, apart, external, instruction, load, loop, offset, splat, store
from serving.engine.behaviour_blocks import ALL, LANES, U

GROUPS, GROUP_BITS, GROUP_PLANES = 21, 3, 2
WORD_PLANES = 7  # a distance of one word is at most 64
PLANES_MAX = 11  # of 1,024 bits
BATCH = 8  # candidates
EDGES_TOGETHER = 8  # bytes of a lane
_DIGIT_ROWS = 2  # eight pairs of (mask, digit)
SCRATCH_ROWS = _DIGIT_ROWS + BATCH * PLANES_MAX
_GROUP_VALUES = 1 << GROUP_BITS
_LAST_BIT = GROUPS * _GROUP_VALUES * GROUP_PLANES  # row of the table where the last bit's two planes lie
TABLE_ROWS = _LAST_BIT + 2
_PLANE = ir.VectorType(INT64, LANES)
_PLANE_BYTES = 8 * LANES


@dataclass(frozen=True, slots=True)
class Limits:
    """The edges as the planes compare them: largest distance per edge int64 [E] (-1: none reaches it); masks_EP = ~limit bit by bit, all or nothing."""

    distance_max_E: np.ndarray
    masks_EP: np.ndarray


def plan_limits(equal_bits_min: tuple[int, ...], bits: int) -> Limits:
    """The limits of a model's edges: for each the largest Hamming distance that still reaches it."""
    planes = (64 * -(-bits // 64)).bit_length()
    distance_max = [max(bits - minimum, -1) for minimum in equal_bits_min]
    masks = [[0 if limit >> p & 1 else int(ALL) for p in range(planes)] for limit in distance_max]
    return Limits(np.array(distance_max, np.int64), np.array(masks, np.uint64).reshape(len(masks), planes))


# --- vector code ----------------------------------------------------------------------------------------------------------


def _majority(context: Any, builder: Any, first: Any, second: Any, third: Any) -> Any:
    """What two of three planes have. With AVX-512 it is one instruction, which LLVM does not find in the plain form (it takes two)."""
    if "+avx512f" in context.codegen().magic_tuple()[2]:
        ternary = external(builder, "llvm.x86.avx512.pternlog.q.512", _PLANE, _PLANE, _PLANE, _PLANE, INT32)
        return builder.call(ternary, [first, second, third, ir.Constant(INT32, 0b11101000)])
    return builder.or_(builder.and_(first, second), builder.and_(third, builder.or_(first, second)))


def _add(context: Any, builder: Any, planes: list[Any]) -> tuple[Any, Any]:
    """(sum, carry) of two or three planes: a half or a full adder."""
    if len(planes) == 2:
        return builder.xor(*planes), builder.and_(*planes)
    first, second, third = planes
    return builder.xor(builder.xor(first, second), third), _majority(context, builder, first, second, third)


def _push(context: Any, builder: Any, columns: list[list[Any]], i: int, plane: Any) -> None:
    """One more plane of weight 2^i; three of a weight become a sum and a carry."""
    columns[i].append(plane)
    if len(columns[i]) == 3:
        total, carry = _add(context, builder, columns[i])
        columns[i] = [total]
        _push(context, builder, columns, i + 1, carry)


def _distance_planes(context: Any, builder: Any, table: Any, word: Any) -> list[Any]:
    """The distance of one word of a candidate from 512 behaviours: seven planes."""
    columns: list[list[Any]] = [[] for _ in range(WORD_PLANES + 1)]
    for group in range(GROUPS):
        shifted = builder.lshr(word, ir.Constant(INT64, GROUP_BITS * group))
        value = builder.and_(shifted, ir.Constant(INT64, _GROUP_VALUES - 1))
        row = offset(builder, table, value, GROUP_PLANES * _PLANE_BYTES)
        first = group * _GROUP_VALUES * GROUP_PLANES * _PLANE_BYTES
        for plane in range(GROUP_PLANES):
            _push(context, builder, columns, plane, load(builder, row, _PLANE, first + plane * _PLANE_BYTES))
    last = offset(builder, table, builder.lshr(word, ir.Constant(INT64, 63)), _PLANE_BYTES)
    _push(context, builder, columns, 0, load(builder, last, _PLANE, _LAST_BIT * _PLANE_BYTES))
    for i in range(WORD_PLANES):
        if len(columns[i]) == 2:
            total, carry = _add(context, builder, columns[i])
            columns[i] = [total]
            _push(context, builder, columns, i + 1, carry)
    return [column[0] for column in columns[:WORD_PLANES]]


@instruction
def _build_table(_context, planes, valid, table):
    """See `build_word_table`. An entry with a bit clear adds its plane; its twin with the bit set adds the plane's complement, where behaviours exist."""

    def emit(context, builder, _signature, arguments):
        planes, valid, table = arguments
        exists = load(builder, valid, _PLANE)

        def build_group(group: Any, _: list[Any]) -> list[Any]:
            bits = offset(builder, planes, group, GROUP_BITS * _PLANE_BYTES)
            entries = offset(builder, table, group, _GROUP_VALUES * GROUP_PLANES * _PLANE_BYTES)
            counts = [[ir.Constant(_PLANE, [0] * LANES)] * GROUP_PLANES]
            for bit in range(GROUP_BITS):
                equal = load(builder, bits, _PLANE, bit * _PLANE_BYTES)
                twin = builder.xor(equal, exists)
                counts = [_increment(context, builder, count, plane) for plane in (equal, twin) for count in counts]
            for row, plane in enumerate(plane for count in counts for plane in count):
                store(builder, plane, entries, row * _PLANE_BYTES)
            return []

        loop(builder, ir.Constant(INT64, GROUPS), [], build_group)
        last = load(builder, planes, _PLANE, 63 * _PLANE_BYTES)
        for row, plane in enumerate((last, builder.xor(last, exists))):
            store(builder, plane, table, (_LAST_BIT + row) * _PLANE_BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


def _increment(context: Any, builder: Any, count: list[Any], carry: Any) -> list[Any]:
    """A count's planes after one more plane of weight 1."""
    total = []
    for plane in count:
        one, carry = _add(context, builder, [plane, carry])
        total.append(one)
    return total


@instruction
def _set_distance(_context, table, word, counter):
    """The first word's distances into planes 0 to 6 of a counter."""

    def emit(context, builder, _signature, arguments):
        table, word, counter = arguments
        for i, plane in enumerate(_distance_planes(context, builder, table, word)):
            store(builder, plane, counter, i * _PLANE_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64), emit


@instruction
def _add_distance(_context, table, word, counter, planes):
    """One more word's distances added to a counter of `planes` planes (more than 7)."""

    def emit(context, builder, _signature, arguments):
        table, word, counter, planes = arguments
        carries: list[Any] = []
        for i, plane in enumerate(_distance_planes(context, builder, table, word)):
            total, carry = _add(context, builder, [plane, load(builder, counter, _PLANE, i * _PLANE_BYTES), *carries])
            store(builder, total, counter, i * _PLANE_BYTES)
            carries = [carry]

        def ripple(index: Any, carried: list[Any]) -> list[Any]:
            at = offset(builder, offset(builder, counter, index, _PLANE_BYTES), WORD_PLANES, _PLANE_BYTES)
            total, carry = _add(context, builder, [load(builder, at, _PLANE), *carried])
            store(builder, total, at)
            return [carry]

        loop(builder, builder.sub(planes, ir.Constant(INT64, WORD_PLANES)), carries, ripple)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64, types.int64), emit


def _sum_bytes(context: Any, builder: Any, eights: Any) -> Any:
    """The sum of the eight bytes of each lane."""
    if "+avx512bw" in context.codegen().magic_tuple()[2]:
        octets = ir.VectorType(ir.IntType(8), _PLANE_BYTES)
        add_up = external(builder, "llvm.x86.avx512.psad.bw.512", _PLANE, octets, octets)
        return builder.call(add_up, [builder.bitcast(eights, octets), ir.Constant(octets, [0] * _PLANE_BYTES)])
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        keep = ir.Constant(_PLANE, [mask] * LANES)
        eights = builder.add(builder.and_(eights, keep), builder.and_(builder.lshr(eights, ir.Constant(_PLANE, [bits] * LANES)), keep))
    return eights


def _emit_beyond(context: Any, builder: Any, planes: int, arguments: Sequence[Any]) -> None:
    counters, count, masks, edges, digits, digit_count, near, near_stride = arguments
    zero, popcount = ir.Constant(_PLANE, [0] * LANES), external(builder, "llvm.ctpop.v8i64", _PLANE, _PLANE)
    octets, row = ir.VectorType(ir.IntType(8), _PLANE_BYTES), ir.VectorType(INT32, EDGES_TOGETHER)
    places = [EDGES_TOGETHER * lane + edge for edge in range(EDGES_TOGETHER) for lane in range(LANES)]
    by_edge = ir.Constant(ir.VectorType(INT32, _PLANE_BYTES), places)

    def take(index: Any, _: list[Any]) -> list[Any]:
        counter = offset(builder, counters, index, planes * _PLANE_BYTES)
        distance = [load(builder, counter, _PLANE, plane * _PLANE_BYTES) for plane in range(planes)]

        def compare(step: Any, packed: list[Any]) -> list[Any]:
            mask = offset(builder, masks, builder.sub(builder.sub(edges, ir.Constant(INT64, 1)), step), 8 * planes)  # the last edge's first
            beyond = zero
            for at, plane in enumerate(distance):
                beyond = _majority(context, builder, plane, splat(builder, load(builder, mask, INT64, 8 * at), LANES), beyond)
            return [builder.or_(builder.shl(packed[0], ir.Constant(_PLANE, [8] * LANES)), builder.call(popcount, [beyond]))]

        packed = builder.bitcast(loop(builder, edges, [zero], compare)[0], octets)  # lane by lane a byte for each edge
        turned = builder.bitcast(builder.shuffle_vector(packed, packed, by_edge), _PLANE)  # edge by edge a byte for each lane

        def weigh(index: Any, totals: list[Any]) -> list[Any]:
            digit = offset(builder, digits, index, 16)
            mask, shift = (splat(builder, load(builder, digit, INT64, at), LANES) for at in (0, 8))
            return [builder.add(totals[0], builder.shl(_sum_bytes(context, builder, builder.and_(turned, mask)), shift))]

        totals = builder.trunc(loop(builder, digit_count, [zero], weigh)[0], row)
        at = offset(builder, near, index, near_stride)
        store(builder, builder.sub(load(builder, at, row), totals), at)
        return []

    loop(builder, count, [], take)


@instruction
def _take_beyond(_context, counters, count, masks, edges, digits, digit_count, near, near_stride, planes):
    """near (int32) -= behaviours beyond each of one to eight limits, for `count` candidates (at least one), whose counters have `planes` planes."""

    def emit(context, builder, _signature, arguments):
        after = builder.append_basic_block("taken")
        choice = builder.switch(arguments[-1], after)
        for planes in range(WORD_PLANES, PLANES_MAX + 1):  # a form for each number: planes stay in registers
            block = builder.append_basic_block(f"planes_{planes}")
            choice.add_case(ir.Constant(INT64, planes), block)
            builder.position_at_end(block)
            _emit_beyond(context, builder, planes, arguments[:-1])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), emit


# --- kernels --------------------------------------------------------------------------------------------------------------


@kernel
def build_word_table(planes_BL: np.ndarray, valid_L: np.ndarray, table_XL: np.ndarray) -> None:
    """Fills the table uint64 [TABLE_ROWS, 8] of one word of a block. Behaviours that do not exist differ from no candidate, so they are beyond no limit."""
    _build_table(address(planes_BL), address(valid_L), address(table_XL))


@part
def _list_digits(shift_L: np.ndarray, digits_X: np.ndarray) -> int:
    """The binary digits for which lanes count, as pairs of (mask: the bytes of their lanes, digit). Returns their number."""
    known = 0
    for lane in range(LANES):
        pair = 0
        while pair < known and digits_X[2 * pair + 1] != shift_L[lane]:
            pair += 1
        if pair == known:
            digits_X[2 * pair], digits_X[2 * pair + 1] = U(0), shift_L[lane]
            known += 1
        digits_X[2 * pair] |= U(0xFF) << U(8 * lane)
    return known


@kernel
def take_beyond(
    words_CQ: np.ndarray, tables_QXL: np.ndarray, masks_EP: np.ndarray, shift_L: np.ndarray, scratch_XL: np.ndarray, near_CE: np.ndarray
) -> None:
    """near_CE (int32) -= behaviours of one block beyond each limit, for each candidate.

    near_CE has EDGES_TOGETHER columns, or a multiple of it, of which the first E count. scratch_XL is uint64 [SCRATCH_ROWS, 8], 64-byte aligned.
    """
    apart()
    edges, planes = masks_EP.shape
    digits, counters, tables = address(scratch_XL), address(scratch_XL[_DIGIT_ROWS:]), address(tables_QXL)
    digit_count, near_stride = _list_digits(shift_L, scratch_XL[:_DIGIT_ROWS].reshape(-1)), 4 * near_CE.shape[1]
    for start in range(0, words_CQ.shape[0], BATCH):
        count = min(BATCH, words_CQ.shape[0] - start)
        for i in range(count):
            for plane in range(WORD_PLANES, planes):
                for lane in range(LANES):
                    scratch_XL[_DIGIT_ROWS + i * planes + plane, lane] = U(0)
            counter = counters + i * planes * _PLANE_BYTES
            _set_distance(tables, words_CQ[start + i, 0], counter)
            for q in range(1, words_CQ.shape[1]):
                _add_distance(tables + q * TABLE_ROWS * _PLANE_BYTES, words_CQ[start + i, q], counter, planes)
        for e in range(0, edges, EDGES_TOGETHER):
            at, near = address(masks_EP) + 8 * planes * e, address(near_CE) + start * near_stride + 4 * e
            _take_beyond(counters, count, at, min(EDGES_TOGETHER, edges - e), digits, digit_count, near, near_stride, planes)
