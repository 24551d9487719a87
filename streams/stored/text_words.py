"""Text in a buffer: two names are ordered, numbers are read, short ones eight characters at a time, without a branch for each.

Here: `order_of`, which reads single bytes; `to_double`, for any number; `read_short_number`, which reads a word of eight, so eight bytes must be readable
from its place. Not here: whole texts (feature_texts.py).
A number of at most seven digits and a point fits into one word: its digits are moved together, and three products make them a whole number. Where the
point is and where the number ends is found by arithmetic, because a branch on the length would be mispredicted and cost more than the reading.
Source: D. Lemire, Number Parsing at a Gigabyte per Second, 2021 (eight digits at once).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from schemas.model.compiled import int64, part
from schemas.model.compiled import uint64 as U
from schemas.model.vector_blocks import DOUBLE, INT64, address, external, instruction, load_word

WORD_BYTES = 8

_ZERO, _NINE, _A, _Z, _SMALL_A, _SMALL_Z, _UNDERSCORE = (ord(c) for c in "09AZaz_")
_POINT = U(ord("."))
_ZEROS = U(0x3030303030303030)
_SIXES = U(0x0606060606060606)
_HIGH_NIBBLES = U(0xF0F0F0F0F0F0F0F0)
_TENS = np.array([10.0**k for k in range(WORD_BYTES)])


@instruction
def trailing_zeros(_context, word):
    """How many low bits of a uint64 are 0; 64 of 0."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        count = external(builder, "llvm.cttz.i64", INT64, INT64, ir.IntType(1))
        return builder.call(count, [arguments[0], ir.Constant(ir.IntType(1), 0)])

    return types.int64(types.uint64), emit


@instruction
def to_double(_context, at):
    """The double of the number without a sign that is written at an address: C's strtod, which rounds correctly, as `float` does. Another character has to
    follow the number."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        read = external(builder, "strtod", DOUBLE, pointer, pointer)
        return builder.call(read, [builder.inttoptr(arguments[0], pointer), ir.Constant(pointer, None)])

    return types.float64(types.int64), emit


@part
def order_of(a: np.ndarray, begin_a: int, end_a: int, b: np.ndarray, begin_b: int, end_b: int) -> int:
    """Below, equal to or above 0 as a[begin_a:end_a] is before, the same as or after b[begin_b:end_b], byte by byte."""
    for i in range(min(end_a - begin_a, end_b - begin_b)):
        if a[begin_a + i] != b[begin_b + i]:
            return int64(a[begin_a + i]) - int64(b[begin_b + i])
    return (end_a - begin_a) - (end_b - begin_b)


@part
def end_of_name(text: np.ndarray, at: int, end: int) -> int:
    """The place after the letters, digits and underscores that begin at `at`."""
    while at < end and (_ZERO <= text[at] <= _NINE or _A <= text[at] <= _Z or _SMALL_A <= text[at] <= _SMALL_Z or text[at] == _UNDERSCORE):
        at += 1
    return at


@part
def divide_by_tens(whole: int, places: int) -> float:
    """whole / 10^places, where -1 counts as 0: rounded once, because both numbers are exact."""
    return float(whole) / _TENS[max(places, 0)]


@part
def read_short_number(text: np.ndarray, at: int) -> tuple[int, int, int]:
    """(number of characters, digits after the point or -1 without a point, its digits as a whole number) of the number without a sign at `at`. 0 characters
    if it does not end within the word, or if there is no number."""
    word = load_word(address(text) + at)
    other = ((word & _HIGH_NIBBLES) ^ _ZEROS) | (((word + _SIXES) & _HIGH_NIBBLES) ^ _ZEROS)  # 0 in the bytes of digits
    first = trailing_zeros(other) >> 3
    if first == 0 or first >= WORD_BYTES:
        return 0, -1, 0
    digits, places, length = word & ((U(1) << U(8 * first)) - U(1)), -1, first
    if (word >> U(8 * first)) & U(255) == _POINT:
        after = other & (U(0xFFFFFFFFFFFFFFFF) << U(8 * first) << U(8))
        length = trailing_zeros(after) >> 3
        if length >= WORD_BYTES:
            return 0, -1, 0
        places = length - first - 1
        digits |= ((word >> U(8)) & ((U(1) << U(8 * (length - 1))) - U(1))) & ~((U(1) << U(8 * first)) - U(1))
    count = length if places < 0 else length - 1
    shift = U(8 * (WORD_BYTES - count))
    digits = (digits << shift) | (_ZEROS & ((U(1) << shift) - U(1)))  # leading zeros
    digits -= _ZEROS
    digits = digits * U(10) + (digits >> U(8))
    low = (digits & U(0x000000FF000000FF)) * U(0x000F424000000064)
    high = ((digits >> U(16)) & U(0x000000FF000000FF)) * U(0x0000271000000001)
    return length, places, int64((low + high) >> U(32))
