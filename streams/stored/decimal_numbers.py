"""Decimal digits to fp64, compiled: the double that Python's `float` gives for the same number, or a refusal.

Here: `to_double`. Not here: the text of a number (feature_texts.py), short numbers (text_words.py).
Invariant: a result is rounded correctly, so it has the bits of `float(text)`. A number that two words do not decide is refused, and the caller asks Python.
There are two ways. Few digits and a small power of ten are exact doubles, so one multiplication or division rounds once. Otherwise a product of 64 x 128 bits
with a truncated power of ten decides all but a few numbers in 10^18.

Arrays: Q powers of ten.
Source: W. Clinger 1990 (the first way); D. Lemire, Number Parsing at a Gigabyte per Second, 2021 (the second).
"""

import numpy as np

from schemas.model.compiled import int64, kernel, part
from schemas.model.compiled import uint64 as U

_EXACT_TENS = np.array([float(10**k) for k in range(23)])
_EXACT_WHOLE_MAX = U(1 << 53)
_POWER_MIN, _POWER_MAX = -342, 308  # of ten; beyond them every 19 digits are zero or infinite
_MASK_32 = U(0xFFFFFFFF)


def _power_words(q: int) -> tuple[int, int]:
    """The 128 leading bits of 10^q: truncated for q >= 0, rounded up for q < 0, as the proof wants it."""
    if q >= 0:
        power = 5**q
        shift = power.bit_length() - 128
        top = power >> shift if shift >= 0 else power << -shift
    else:
        power = 5**-q
        top = (1 << (power.bit_length() + 127)) // power + 1
        top >>= top.bit_length() - 128
    return top >> 64, top & 0xFFFFFFFFFFFFFFFF


_POWERS_Q2 = np.array([_power_words(q) for q in range(_POWER_MIN, _POWER_MAX + 1)], np.uint64)


@part
def _multiply(a: int, b: int) -> tuple[int, int]:
    """High and low word of a product."""
    a_low, a_high, b_low, b_high = a & _MASK_32, a >> U(32), b & _MASK_32, b >> U(32)
    low, middle_1, middle_2 = a_low * b_low, a_high * b_low, a_low * b_high
    carry = (low >> U(32)) + (middle_1 & _MASK_32) + (middle_2 & _MASK_32)
    high = a_high * b_high + (middle_1 >> U(32)) + (middle_2 >> U(32)) + (carry >> U(32))
    return high, (low & _MASK_32) | (carry << U(32))


@part
def _leading_zeros(word: int) -> int:
    zeros = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> U(64 - step) == U(0):
            zeros += step
            word <<= U(step)
    return zeros


@kernel
def to_double(whole: int, power: int, bits_1: np.ndarray) -> bool:
    """The bits of whole x 10^power (whole uint64 > 0) into `bits_1` (uint64 [1]); False: ask Python."""
    if whole <= _EXACT_WHOLE_MAX and -22 <= power <= 22:
        exact = float(whole)
        exact = exact * _EXACT_TENS[power] if power >= 0 else exact / _EXACT_TENS[-power]
        bits_1.view(np.float64)[0] = exact
        return True
    if power < _POWER_MIN or power > _POWER_MAX:
        return False
    zeros = _leading_zeros(whole)
    scaled = whole << U(zeros)
    upper, lower = _multiply(scaled, _POWERS_Q2[power - _POWER_MIN, 0])
    if upper & U(0x1FF) == U(0x1FF):
        more, _ = _multiply(scaled, _POWERS_Q2[power - _POWER_MIN, 1])
        lower += more
        upper += U(1) if lower < more else U(0)
        if lower == U(0xFFFFFFFFFFFFFFFF):
            return False
    top = upper >> U(63)
    mantissa = upper >> (top + U(9))
    exponent = ((217706 * power) >> 16) + 63 + int64(top) - zeros + 1023
    if exponent <= 0 or exponent >= 2046:
        return False  # subnormal, infinite, or at the edge of it
    if lower <= U(1) and -4 <= power <= 23 and mantissa & U(3) == U(1) and mantissa << (top + U(9)) == upper:
        mantissa &= ~U(1)  # exactly half way: to even
    mantissa = (mantissa + (mantissa & U(1))) >> U(1)
    if mantissa >= U(1 << 53):
        mantissa, exponent = U(1 << 52), exponent + 1
    bits_1[0] = (mantissa & U((1 << 52) - 1)) | (U(exponent) << U(52))
    return True
