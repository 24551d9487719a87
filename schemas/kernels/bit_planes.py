"""The vector code of SimTier's counts: planes of 512 behaviours, one bit of each, through adders and comparisons.

Their use is in serving/engine/call_two/tier_counts.py.
Two forms, by what the machine has; a test compares both with the reference where both run:

    AVX-512     a plane is a register, and a carry one instruction: distance > limit is the carry out of distance + ~limit, plane by plane. Population counts
                of eight limits lie side by side as bytes, so that one instruction adds up all of them
    else        a plane is two registers. The behaviours beyond each low and each high digit are found once for all limits, which then take two
                instructions each; population counts are added up in lanes

Nothing here checks a bound: the callers own every size.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from schemas.kernels.vector_blocks import INT32, INT64, external, instruction, load, loop, offset, splat, store
from schemas.limits import TIERS_MAX

LANES = 8  # of 64 behaviours
GROUPS, GROUP_BITS, GROUP_PLANES = 21, 3, 2
WORD_PLANES = 7  # a distance of one word is at most 64
PLANES_MAX = 11  # of 1,024 bits
BATCH = 8  # candidates
EDGES_TOGETHER = 8  # bytes of a lane
# Rows of the scratch memory, in this order:
#     eight pairs of (mask, digit): how often behaviours count; then these digits by lane
#     for each limit a total of its lanes; then the limit's own two digits
#     the behaviours beyond each low digit and each high one, as half rows
#     counters
SHIFTS, _TOTALS = 2, 3
PLACES = _TOTALS + TIERS_MAX // 2
DIGITS_BEYOND = PLACES + TIERS_MAX // 4
COUNTERS = DIGITS_BEYOND + (2 ** (PLANES_MAX // 2) + 1 + 2 ** (PLANES_MAX - PLANES_MAX // 2)) // 2 + 1
SCRATCH_ROWS = COUNTERS + BATCH * PLANES_MAX
_GROUP_VALUES = 1 << GROUP_BITS
_LAST_BIT = GROUPS * _GROUP_VALUES * GROUP_PLANES  # row of the table where the last bit's two planes lie
TABLE_ROWS = _LAST_BIT + 2
PLANE_BYTES = 8 * LANES
_NEAR = ir.VectorType(INT32, EDGES_TOGETHER)


def _is_wide(context: Any) -> bool:
    """Whether a plane fits into a register."""
    return "+avx512bw" in context.codegen().magic_tuple()[2]


def _vector(context: Any) -> Any:
    """Planes, or the halves of planes, that fit into the machine's registers: as whole planes they would go through memory at every step."""
    return ir.VectorType(INT64, LANES if _is_wide(context) else LANES // 2)


def _vectors_of(context: Any) -> range:
    """Where the vectors of a plane begin, in bytes: one, or two halves."""
    return range(0, PLANE_BYTES, 8 * _vector(context).count)


def _add(context: Any, builder: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    """(sum, carry) of two or three planes: a half or a full adder. With AVX-512 a carry is one instruction, which LLVM does not find in the plain form."""
    first, second, *third = planes
    differ = builder.xor(first, second)
    if not third:
        return differ, builder.and_(first, second)
    if _is_wide(context):
        kind = first.type
        ternary = external(builder, "llvm.x86.avx512.pternlog.q.512", kind, kind, kind, kind, INT32)
        return builder.xor(differ, *third), builder.call(ternary, [first, second, *third, ir.Constant(INT32, 0b11101000)])
    return builder.xor(differ, *third), builder.or_(builder.and_(first, second), builder.and_(differ, *third))


def _push(context: Any, builder: Any, columns: list[list[Any]], i: int, plane: Any) -> None:
    """One more plane of weight 2^i; three of a weight become a sum and a carry."""
    columns[i].append(plane)
    if len(columns[i]) == 3:
        total, carry = _add(context, builder, columns[i])
        columns[i] = [total]
        _push(context, builder, columns, i + 1, carry)


def _distance_planes(context: Any, builder: Any, table: Any, word: Any) -> list[Any]:
    """The distance of one word of a candidate from the behaviours of a vector: seven planes. `table`: where that vector of its first row lies."""
    columns: list[list[Any]] = [[] for _ in range(WORD_PLANES + 1)]
    vector = _vector(context)
    for group in range(GROUPS):
        shifted = builder.lshr(word, ir.Constant(INT64, GROUP_BITS * group))
        value = builder.and_(shifted, ir.Constant(INT64, _GROUP_VALUES - 1))
        row = offset(builder, table, value, GROUP_PLANES * PLANE_BYTES)
        first = group * _GROUP_VALUES * GROUP_PLANES * PLANE_BYTES
        for plane in range(GROUP_PLANES):
            _push(context, builder, columns, plane, load(builder, row, vector, first + plane * PLANE_BYTES))
    last = offset(builder, table, builder.lshr(word, ir.Constant(INT64, 63)), PLANE_BYTES)
    _push(context, builder, columns, 0, load(builder, last, vector, _LAST_BIT * PLANE_BYTES))
    for i in range(WORD_PLANES):
        if len(columns[i]) == 2:
            total, carry = _add(context, builder, columns[i])
            columns[i] = [total]
            _push(context, builder, columns, i + 1, carry)
    return [column[0] for column in columns[:WORD_PLANES]]


@instruction
def build_planes(_context, planes, valid, table):
    """See `build_word_table`. An entry with a bit clear adds its plane; its twin with the bit set adds the plane's complement, where behaviours exist."""

    def emit(context, builder, _signature, arguments):
        vector = _vector(context)
        for half in _vectors_of(context):
            planes, valid, table = (offset(builder, argument, half, 1) for argument in arguments)
            exists = load(builder, valid, vector)

            def build_group(group: Any, _: list[Any], planes: Any = planes, table: Any = table, exists: Any = exists) -> list[Any]:
                bits = offset(builder, planes, group, GROUP_BITS * PLANE_BYTES)
                entries = offset(builder, table, group, _GROUP_VALUES * GROUP_PLANES * PLANE_BYTES)
                counts = [[ir.Constant(vector, [0] * vector.count)] * GROUP_PLANES]
                for bit in range(GROUP_BITS):
                    equal = load(builder, bits, vector, bit * PLANE_BYTES)
                    twin = builder.xor(equal, exists)
                    counts = [_increment(context, builder, count, plane) for plane in (equal, twin) for count in counts]
                for row, plane in enumerate(plane for count in counts for plane in count):
                    store(builder, plane, entries, row * PLANE_BYTES)
                return []

            loop(builder, ir.Constant(INT64, GROUPS), [], build_group)
            last = load(builder, planes, vector, 63 * PLANE_BYTES)
            for row, plane in enumerate((last, builder.xor(last, exists))):
                store(builder, plane, table, (_LAST_BIT + row) * PLANE_BYTES)
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
def set_distance(_context, table, word, counter):
    """The first word's distances into planes 0 to 6 of a counter."""

    def emit(context, builder, _signature, arguments):
        table, word, counter = arguments
        for half in _vectors_of(context):
            for i, plane in enumerate(_distance_planes(context, builder, offset(builder, table, half, 1), word)):
                store(builder, plane, counter, i * PLANE_BYTES + half)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64), emit


@instruction
def add_distance(_context, table, word, counter, planes):
    """One more word's distances added to a counter of `planes` planes (more than 7)."""

    def emit(context, builder, _signature, arguments):
        table, word, counter, planes = arguments
        vector = _vector(context)
        for half in _vectors_of(context):
            into, carries = offset(builder, counter, half, 1), list[Any]()
            for i, plane in enumerate(_distance_planes(context, builder, offset(builder, table, half, 1), word)):
                total, carry = _add(context, builder, [plane, load(builder, into, vector, i * PLANE_BYTES), *carries])
                store(builder, total, into, i * PLANE_BYTES)
                carries = [carry]

            def ripple(index: Any, carried: list[Any], into: Any = into) -> list[Any]:
                at = offset(builder, offset(builder, into, index, PLANE_BYTES), WORD_PLANES, PLANE_BYTES)
                total, carry = _add(context, builder, [load(builder, at, vector), *carried])
                store(builder, total, at)
                return [carry]

            loop(builder, builder.sub(planes, ir.Constant(INT64, WORD_PLANES)), carries, ripple)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64, types.int64), emit


def _take_in_bytes(context: Any, builder: Any, planes: int, arguments: Sequence[Any]) -> None:
    """Eight limits at a time: their population counts side by side as bytes, then one sum of bytes for each digit of how often behaviours occur."""
    scratch, count, masks, edges, digit_count, near, near_stride = arguments
    vector, octets = _vector(context), ir.VectorType(ir.IntType(8), PLANE_BYTES)
    zero, popcount = ir.Constant(vector, [0] * LANES), external(builder, "llvm.ctpop.v8i64", vector, vector)
    add_up = external(builder, "llvm.x86.avx512.psad.bw.512", vector, octets, octets)
    places = [EDGES_TOGETHER * lane + edge for edge in range(EDGES_TOGETHER) for lane in range(LANES)]
    by_edge = ir.Constant(ir.VectorType(INT32, PLANE_BYTES), places)

    def take_eight(group: Any, _: list[Any]) -> list[Any]:
        left, eight = offset(builder, edges, group, -EDGES_TOGETHER), ir.Constant(INT64, EDGES_TOGETHER)
        together = builder.select(builder.icmp_signed("<", left, eight), left, eight)
        end_mask = offset(builder, offset(builder, masks, group, 8 * planes * EDGES_TOGETHER), together, 8 * planes)

        def take(index: Any, _: list[Any]) -> list[Any]:
            counter = offset(builder, offset(builder, scratch, index, planes * PLANE_BYTES), COUNTERS, PLANE_BYTES)
            distance = [load(builder, counter, vector, plane * PLANE_BYTES) for plane in range(planes)]

            def compare(step: Any, packed: list[Any]) -> list[Any]:
                next_mask, beyond = offset(builder, end_mask, step, -8 * planes), zero  # the last edge's first
                for at, plane in enumerate(distance):  # the carry out of distance + mask
                    mask = splat(builder, load(builder, next_mask, INT64, 8 * (at - planes)), LANES)
                    _, beyond = _add(context, builder, [plane, mask, beyond])
                return [builder.or_(builder.shl(packed[0], ir.Constant(vector, [8] * LANES)), builder.call(popcount, [beyond]))]

            packed = builder.bitcast(loop(builder, together, [zero], compare)[0], octets)  # lane by lane, edges as bytes
            turned = builder.bitcast(builder.shuffle_vector(packed, packed, by_edge), vector)  # edge by edge, lanes as bytes

            def weigh(index: Any, totals: list[Any]) -> list[Any]:
                digit = offset(builder, scratch, index, 16)
                mask, shift = (splat(builder, load(builder, digit, INT64, at), LANES) for at in (0, 8))
                counts = builder.call(add_up, [builder.bitcast(builder.and_(turned, mask), octets), ir.Constant(octets, [0] * PLANE_BYTES)])
                return [builder.add(totals[0], builder.shl(counts, shift))]

            totals = builder.trunc(loop(builder, digit_count, [zero], weigh)[0], _NEAR)
            _subtract(builder, totals, offset(builder, offset(builder, near, index, near_stride), group, 4 * EDGES_TOGETHER))
            return []

        loop(builder, count, [], take)
        return []

    loop(builder, _groups(builder, edges), [], take_eight)


def _take_in_lanes(context: Any, builder: Any, planes: int, arguments: Sequence[Any]) -> None:
    """In half planes, without an instruction for carries.

    A distance is beyond a limit if its high digit is greater, or if its high digit is not less and its low digit is greater. The behaviours beyond every
    digit are found once for all limits. Population counts, shifted as their lanes count, are added up over lanes at the end.
    """
    scratch, count, _, edges, _, near, near_stride = arguments
    vector, low_planes = _vector(context), planes // 2
    size, lanes = 8 * vector.count, ir.VectorType(INT32, vector.count)
    popcount, every = external(builder, f"llvm.ctpop.v{vector.count}i64", vector, vector), ir.Constant(vector, [-1] * vector.count)
    low_begin = DIGITS_BEYOND * PLANE_BYTES
    high_begin = low_begin + (size << low_planes)

    def take(index: Any, _: list[Any]) -> list[Any]:
        counter = offset(builder, offset(builder, scratch, index, planes * PLANE_BYTES), COUNTERS, PLANE_BYTES)
        for half in _vectors_of(context):
            distance = [load(builder, counter, vector, plane * PLANE_BYTES + half) for plane in range(planes)]
            for begin, digits in ((low_begin, distance[:low_planes]), (high_begin + size, distance[low_planes:])):
                for row, plane in enumerate(_beyond_digits(builder, digits)):
                    store(builder, plane, scratch, begin + row * size)
            store(builder, every, scratch, high_begin)
            shift = load(builder, scratch, vector, SHIFTS * PLANE_BYTES + half)

            def compare(edge: Any, _: list[Any], half: int = half, shift: Any = shift) -> list[Any]:
                place, total = offset(builder, scratch, edge, 16), offset(builder, scratch, edge, size)
                low_at, high_at = (offset(builder, scratch, load(builder, place, INT64, PLACES * PLANE_BYTES + at), size) for at in (0, 8))
                least, high = (load(builder, high_at, vector, at) for at in (high_begin, high_begin + size))
                beyond = builder.or_(high, builder.and_(least, load(builder, low_at, vector, low_begin)))
                counts = builder.shl(builder.call(popcount, [beyond]), shift)
                if half:
                    counts = builder.add(counts, load(builder, total, vector, _TOTALS * PLANE_BYTES))
                store(builder, counts, total, _TOTALS * PLANE_BYTES)
                return []

            loop(builder, edges, [], compare)

        def add_up(group: Any, _: list[Any]) -> list[Any]:
            totals = offset(builder, scratch, group, EDGES_TOGETHER * size)
            rows = [load(builder, totals, vector, _TOTALS * PLANE_BYTES + size * edge) for edge in range(EDGES_TOGETHER)]
            sums = [builder.trunc(row, lanes) for row in rows]
            while len(sums) * vector.count > EDGES_TOGETHER:
                sums = [_add_neighbours(builder, *sums[i : i + 2]) for i in range(0, len(sums), 2)]
            taken = builder.shuffle_vector(*sums, ir.Constant(_NEAR, list(range(EDGES_TOGETHER))))
            _subtract(builder, taken, offset(builder, offset(builder, near, index, near_stride), group, 4 * EDGES_TOGETHER))
            return []

        loop(builder, _groups(builder, edges), [], add_up)
        return []

    loop(builder, count, [], take)


def _groups(builder: Any, edges: Any) -> Any:
    return builder.udiv(builder.add(edges, ir.Constant(INT64, EDGES_TOGETHER - 1)), ir.Constant(INT64, EDGES_TOGETHER))


def _subtract(builder: Any, taken: Any, at: Any) -> None:
    store(builder, builder.sub(load(builder, at, taken.type), taken), at)


def _beyond_digits(builder: Any, planes: list[Any]) -> list[Any]:
    """For each number that these planes can hold: which of them hold more."""
    more = [ir.Constant(planes[0].type, [0] * planes[0].type.count)]
    for plane in planes:
        more = [builder.or_(plane, one) for one in more] + [builder.and_(plane, one) for one in more]
    return more


def _add_neighbours(builder: Any, left: Any, right: Any) -> Any:
    """Neighbouring lanes added up: those of the left in the first half, those of the right in the second."""
    even, odd = (ir.Constant(left.type, [2 * i + at for i in range(left.type.count)]) for at in (0, 1))
    return builder.add(builder.shuffle_vector(left, right, even), builder.shuffle_vector(left, right, odd))


@instruction
def take_planes(_context, scratch, count, masks, edges, digit_count, near, near_stride, planes):
    """near (int32) -= behaviours beyond each limit, for `count` candidates (at least one), whose counters have `planes` planes."""

    def emit(context, builder, _signature, arguments):
        after = builder.append_basic_block("taken")
        choice = builder.switch(arguments[-1], after)
        for planes in range(WORD_PLANES, PLANES_MAX + 1):  # a form for each number: planes stay in registers
            block = builder.append_basic_block(f"planes_{planes}")
            choice.add_case(ir.Constant(INT64, planes), block)
            builder.position_at_end(block)
            (_take_in_bytes if _is_wide(context) else _take_in_lanes)(context, builder, planes, arguments[:-1])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), emit
