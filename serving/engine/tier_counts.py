"""SimTier counted bit-sliced: 512 behaviours side by side, one bit of each in a vector, so that one instruction serves 512 pairs.

Here: the arrangement of a user's behaviours (`arrange_behaviours`, call 1), the tables (`build_word_table`), the counts (`count_near`, call 2). Not
here: what a tier is (schemas/model/simtier.py), the features made of counts (joint_pass.py). Exact: whole numbers all the way.

    block       512 behaviours as 8 lanes of 64. Equal signatures are counted once, in the lanes of the binary digits of how often they occur
    table       per word of 64 bits: twenty-one groups of 3 bits and the last bit; for each value of a group its number of differing bits from
                each behaviour, as 2 planes of 512 bits: 22 KB, which the first cache holds (groups of 7 bits: fewer sums, 221 KB, slower)
    counter     planes of the Hamming distance: the groups' planes through a tree of full adders (carry-save), words one after another
    near        distance > limit is the carry out of distance + ~limit, plane by plane; what is not, is counted

Measured on one thread of a Zen 5 core, per pair: 0.06 ns with 64 bits and eight equal tiers, 0.10 ns with 128 bits and nine arbitrary edges; the
plain loop over popcounts that it replaced takes 0.8 ns. It is the only cost of call 2 that grows with the length of a history.

Arrays: C candidates, S behaviours, Q words of a signature, Z blocks, E edges, N = E + 1 tiers, P planes.
Source: AIF, eq. (9); carry-save population counts: Harley and Seal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from schemas.model.compiled import kernel, part
from schemas.model.vector_blocks import INT32, INT64, address, external, instruction, load, loop, offset, splat, store

U = np.uint64
LANES = 8  # of 64 behaviours
BLOCK = 64 * LANES
GROUPS, GROUP_BITS, GROUP_PLANES = 21, 3, 2
WORD_PLANES = 7  # a distance of one word is at most 64
PLANES_MAX = 12  # 1,024 bits need 11
_GROUP_VALUES = 1 << GROUP_BITS
_LAST_BIT = GROUPS * _GROUP_VALUES * GROUP_PLANES  # row of the table where the last bit's two planes lie
TABLE_ROWS = _LAST_BIT + 2
_PLANE = ir.VectorType(INT64, LANES)
_PLANE_BYTES = 8 * LANES
ALL = U(2**64 - 1)
_HASH = U(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Arranged:
    """A user's behaviours in blocks: words_ZQS uint64 [Z, Q, 512]; valid_ZL, shift_ZL uint64 [Z, 8]: which behaviours of a lane exist, and the
    binary digit for which it counts; length = behaviours in all."""

    words_ZQS: np.ndarray
    valid_ZL: np.ndarray
    shift_ZL: np.ndarray
    length: int

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.words_ZQS.nbytes + self.valid_ZL.nbytes + self.shift_ZL.nbytes


@dataclass(frozen=True, slots=True)
class Limits:
    """The edges as the planes compare them: largest distance per edge int64 [E] (-1: none reaches it); masks_EP = ~limit bit by bit, all or
    nothing; low = planes in which every limit has a 0, so that one OR of them serves all edges."""

    distance_max_E: np.ndarray
    masks_EP: np.ndarray
    low: int
    planes: int


def pack_words(signatures_RW: np.ndarray) -> np.ndarray:
    """uint64 [R, Q]: packed signatures as words, padded with zeros (equal on both sides, so they add no distance)."""
    rows, width = signatures_RW.shape
    padded = np.zeros((rows, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = signatures_RW
    return padded.view(np.uint64)


def plan_limits(equal_bits_min: tuple[int, ...], bits: int) -> Limits:
    """The limits of a model's edges: for each the largest Hamming distance that still reaches it."""
    planes = (64 * -(-bits // 64)).bit_length()
    distance_max = [max(bits - minimum, -1) for minimum in equal_bits_min]
    masks = [[0 if limit >> p & 1 else int(ALL) for p in range(planes)] for limit in distance_max]
    low = min(((limit & -limit).bit_length() - 1 if limit > 0 else planes for limit in distance_max), default=planes)
    return Limits(np.array(distance_max, np.int64), np.array(masks, np.uint64).reshape(len(masks), planes), low, planes)


def arrange_behaviours(signatures_SW: np.ndarray) -> Arranged:
    """Behaviours with a signature, in blocks. Equal ones are joined where that saves a block."""
    words_SQ = pack_words(signatures_SW)
    different_SQ, often_S = _find_different(words_SQ)
    if -(-len(different_SQ) // BLOCK) >= _blocks_of([words_SQ]):  # each different one takes a place at least once
        return _lay_out([(words_SQ, 0)], words_SQ)
    digits = [np.flatnonzero(often_S >> digit & 1) for digit in range(int(often_S.max(initial=0)).bit_length())]
    if _blocks_of(digits) < _blocks_of([words_SQ]):
        return _lay_out([(different_SQ[places], digit) for digit, places in enumerate(digits)], words_SQ)
    return _lay_out([(words_SQ, 0)], words_SQ)


def _blocks_of(parts: Sequence[np.ndarray]) -> int:
    """Blocks for parts that begin a lane each."""
    return -(-sum(-(-len(part) // 64) for part in parts) // LANES)


def _lay_out(parts: Sequence[tuple[np.ndarray, int]], words_SQ: np.ndarray) -> Arranged:
    """Words, and the binary digit for which they count, from one lane to the next."""
    blocks, width = _blocks_of([words for words, _ in parts]), words_SQ.shape[1]
    words_XQ, lane = np.zeros((blocks * BLOCK, width), np.uint64), 0
    valid_X, shift_X = np.zeros((2, blocks * LANES), np.uint64)
    for words, shift in parts:
        lanes, left = divmod(len(words), 64)
        words_XQ[64 * lane : 64 * lane + len(words)] = words
        valid_X[lane : lane + lanes], shift_X[lane : lane + lanes + (left > 0)] = ALL, shift
        if left:
            valid_X[lane + lanes] = (1 << left) - 1
        lane += lanes + (left > 0)
    words_ZQS = np.ascontiguousarray(words_XQ.reshape(blocks, BLOCK, width).swapaxes(1, 2))
    return Arranged(words_ZQS, valid_X.reshape(blocks, LANES), shift_X.reshape(blocks, LANES), len(words_SQ))


def _find_different(words_SQ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(different words, how often each occurs)."""
    table_T = np.zeros(1 << (2 * len(words_SQ)).bit_length(), np.int64)
    first_S, often_S = np.zeros((2, len(words_SQ)), np.int64)
    different = _count_equal(words_SQ, table_T, first_S, often_S)
    return words_SQ[first_S[:different]], often_S[:different]


@kernel
def _count_equal(words_SQ: np.ndarray, table_T: np.ndarray, first_S: np.ndarray, often_S: np.ndarray) -> int:
    """first_S, often_S = where each different row of words occurs first, and how often; returns how many there are. table_T: zeros, a power of two."""
    mask, different, width = U(table_T.shape[0] - 1), 0, words_SQ.shape[1]
    for s in range(words_SQ.shape[0]):
        key = U(0)
        for q in range(width):
            key = (key ^ (key >> U(29)) ^ words_SQ[s, q]) * _HASH
        place = (key ^ (key >> U(32))) & mask
        entry = table_T[place] - 1
        while entry >= 0:
            q = 0
            while q < width and words_SQ[first_S[entry], q] == words_SQ[s, q]:
                q += 1
            if q == width:
                break
            place = (place + U(1)) & mask
            entry = table_T[place] - 1
        if entry < 0:
            entry = different
            table_T[place], first_S[entry] = entry + 1, s
            different += 1
        often_S[entry] += 1
    return different


@part
def _write_planes(words_S: np.ndarray, planes_BL: np.ndarray) -> None:
    """Bit b of 512 words as plane b, uint64 [64, 8]: a 64 x 64 transposition in each lane, all lanes side by side."""
    for k in range(64):
        for lane in range(LANES):
            planes_BL[k, lane] = words_S[64 * lane + k]
    mask, step = U(0x00000000FFFFFFFF), 32
    while step != 0:
        k = 0
        while k < 64:
            for lane in range(LANES):
                swapped = ((planes_BL[k, lane] >> U(step)) ^ planes_BL[k + step, lane]) & mask
                planes_BL[k + step, lane] ^= swapped
                planes_BL[k, lane] ^= swapped << U(step)
            k = (k + step + 1) & ~step
        step >>= 1
        mask ^= mask << U(step)


@kernel
def build_word_table(words_S: np.ndarray, planes_BL: np.ndarray, table_XL: np.ndarray) -> None:
    """Fills the table uint64 [TABLE_ROWS, 8] of one word of a block; planes_BL is scratch [64, 8].

    A group grows bit by bit: an entry with the bit clear adds the plane, its twin with the bit set adds the plane's complement.
    """
    _write_planes(words_S, planes_BL)
    for group in range(GROUPS):
        first = group * _GROUP_VALUES * GROUP_PLANES
        for lane in range(LANES):
            table_XL[first, lane] = table_XL[first + 1, lane] = U(0)
        for bit in range(GROUP_BITS):
            for value in range(1 << bit):
                old = first + GROUP_PLANES * value
                new = old + (GROUP_PLANES << bit)
                for lane in range(LANES):
                    ones, twos, differs = table_XL[old, lane], table_XL[old + 1, lane], planes_BL[GROUP_BITS * group + bit, lane]
                    table_XL[old, lane], table_XL[old + 1, lane] = ones ^ differs, twos ^ (ones & differs)
                    table_XL[new, lane], table_XL[new + 1, lane] = ones ^ ~differs, twos ^ (ones & ~differs)
    for lane in range(LANES):
        table_XL[_LAST_BIT, lane], table_XL[_LAST_BIT + 1, lane] = planes_BL[63, lane], ~planes_BL[63, lane]


# --- vector code ----------------------------------------------------------------------------------------------------------


def _add(builder: Any, planes: list[Any]) -> tuple[Any, Any]:
    """(sum, carry) of two or three planes: a half or a full adder."""
    both = builder.and_(planes[0], planes[1])
    if len(planes) == 2:
        return builder.xor(planes[0], planes[1]), both
    first, second, third = planes
    return builder.xor(builder.xor(first, second), third), builder.or_(both, builder.and_(third, builder.or_(first, second)))


def _sum_columns(builder: Any, columns: list[list[Any]]) -> list[Any]:
    """columns[i] = planes of weight 2^i; returns one plane for each weight."""
    for i in range(WORD_PLANES):
        columns.append([])
        while len(columns[i]) > 1:
            total, carry = _add(builder, [columns[i].pop(0) for _ in range(min(3, len(columns[i])))])
            columns[i].append(total)
            columns[i + 1].append(carry)
    return [column[0] for column in columns[:WORD_PLANES]]


def _distance_planes(builder: Any, table: Any, word: Any) -> list[Any]:
    """The distance of one word of a candidate from 512 behaviours: seven planes."""
    columns: list[list[Any]] = [[] for _ in range(GROUP_PLANES)]
    for group in range(GROUPS):
        shifted = builder.lshr(word, ir.Constant(INT64, GROUP_BITS * group))
        value = builder.and_(shifted, ir.Constant(INT64, _GROUP_VALUES - 1))
        row = offset(builder, table, value, GROUP_PLANES * _PLANE_BYTES)
        first = group * _GROUP_VALUES * GROUP_PLANES * _PLANE_BYTES
        for plane, column in enumerate(columns):
            column.append(load(builder, row, _PLANE, first + plane * _PLANE_BYTES))
    last = offset(builder, table, builder.lshr(word, ir.Constant(INT64, 63)), _PLANE_BYTES)
    columns[0].append(load(builder, last, _PLANE, _LAST_BIT * _PLANE_BYTES))
    return _sum_columns(builder, columns)


@instruction
def _set_distance(_context, table, word, counter):  # type: ignore[no-untyped-def]
    """The first word's distances into planes 0 to 6 of a counter."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        table, word, counter = arguments
        for i, plane in enumerate(_distance_planes(builder, table, word)):
            store(builder, plane, counter, i * _PLANE_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64), emit


@instruction
def _add_distance(_context, table, word, counter, planes):  # type: ignore[no-untyped-def]
    """One more word's distances added to a counter of `planes` planes (more than 7)."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        table, word, counter, planes = arguments
        carries: list[Any] = []
        for i, plane in enumerate(_distance_planes(builder, table, word)):
            total, carry = _add(builder, [plane, load(builder, counter, _PLANE, i * _PLANE_BYTES), *carries])
            store(builder, total, counter, i * _PLANE_BYTES)
            carries = [carry]

        def ripple(index: Any, carried: list[Any]) -> list[Any]:
            at = offset(builder, offset(builder, counter, index, _PLANE_BYTES), WORD_PLANES, _PLANE_BYTES)
            total, carry = _add(builder, [load(builder, at, _PLANE), *carried])
            store(builder, total, at)
            return [carry]

        loop(builder, builder.sub(planes, ir.Constant(INT64, WORD_PLANES)), carries, ripple)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int64, types.int64), emit


@instruction
def _or_planes(_context, counter, count, out):  # type: ignore[no-untyped-def]
    """The OR of the first `count` planes (at least one)."""

    def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        counter, count, out = arguments

        def join(index: Any, joined: list[Any]) -> list[Any]:
            return [builder.or_(joined[0], load(builder, offset(builder, counter, index, _PLANE_BYTES), _PLANE))]

        store(builder, loop(builder, count, [ir.Constant(_PLANE, [0] * LANES)], join)[0], out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


def _emit_within(builder: Any, edges: int, arguments: Any) -> None:
    carry, counter, masks, edge_stride, count, valid, shift, near = arguments

    def compare(index: Any, carried: list[Any]) -> list[Any]:
        plane = load(builder, offset(builder, counter, index, _PLANE_BYTES), _PLANE)
        at = offset(builder, masks, index, 8)
        following = []
        for edge, one in enumerate(carried):
            mask = splat(builder, load(builder, offset(builder, at, edge, edge_stride), INT64), LANES)
            either, both = builder.or_(plane, mask), builder.and_(plane, mask)
            following.append(builder.or_(both, builder.and_(one, either)))
        return following

    beyond = loop(builder, count, [load(builder, carry, _PLANE)] * edges, compare)
    popcount, add_up = (
        external(builder, "llvm.ctpop.v8i64", _PLANE, _PLANE),
        external(builder, "llvm.vector.reduce.add.v8i64", INT64, _PLANE),
    )
    exists, shifts = load(builder, valid, _PLANE), load(builder, shift, _PLANE)
    counts = [builder.shl(builder.call(popcount, [builder.and_(builder.not_(one), exists)]), shifts) for one in beyond]
    for edge in range(0, edges, 2):  # two counts side by side in 64 bits are added up at once; a count of a block is below 2^26
        pair = counts[edge]
        if edge + 1 < edges:
            pair = builder.or_(pair, builder.shl(counts[edge + 1], splat(builder, ir.Constant(INT64, 32), LANES)))
        total = builder.call(add_up, [pair])
        for half in range(min(2, edges - edge)):
            value = builder.trunc(builder.lshr(total, ir.Constant(INT64, 32 * half)), INT32)
            at = 4 * (edge + half)
            store(builder, builder.add(load(builder, near, INT32, at), value), near, at)


def _make_within(edges: int) -> Any:
    def within(_context, carry, counter, masks, edge_stride, count, valid, shift, near):  # type: ignore[no-untyped-def]
        def emit(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            _emit_within(builder, edges, arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), emit

    return instruction(within)


# near (int32) += behaviours that are not beyond a limit: planes of the distance (`count` of them, from where a limit may have its lowest 1)
# against the limit's masks; one or four limits at a time.
_count_within_one = _make_within(1)
_count_within_four = _make_within(4)


@kernel
def count_near(
    words_CQ: np.ndarray,
    tables_QXL: np.ndarray,
    masks_EP: np.ndarray,
    low: int,
    valid_L: np.ndarray,
    shift_L: np.ndarray,
    counter_PL: np.ndarray,
    near_CE: np.ndarray,
) -> None:
    """near_CE (int32) += behaviours of one block within each limit, for each candidate. counter_PL is scratch [PLANES_MAX + 1, 8], 64-byte aligned."""
    edges, planes = masks_EP.shape
    counter, tables, masks = address(counter_PL), address(tables_QXL), address(masks_EP)
    first, carry = min(low, planes - 1), counter + PLANES_MAX * _PLANE_BYTES
    distance, valid, shift = counter + first * _PLANE_BYTES, address(valid_L), address(shift_L)
    for i in range(words_CQ.shape[0]):
        for plane in range(WORD_PLANES, planes):
            for lane in range(LANES):
                counter_PL[plane, lane] = U(0)
        _set_distance(tables, words_CQ[i, 0], counter)
        for q in range(1, words_CQ.shape[1]):
            _add_distance(tables + q * TABLE_ROWS * _PLANE_BYTES, words_CQ[i, q], counter, planes)
        if first > 0:
            _or_planes(counter, first, carry)
        for e in range(0, edges - edges % 4, 4):
            at = masks + 8 * (e * planes + first)
            _count_within_four(carry, distance, at, 8 * planes, planes - first, valid, shift, address(near_CE[i, e:]))
        for e in range(edges - edges % 4, edges):
            at = masks + 8 * (e * planes + first)
            _count_within_one(carry, distance, at, 8 * planes, planes - first, valid, shift, address(near_CE[i, e:]))
