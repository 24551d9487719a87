"""How many bits a signature needs so that hashing costs no more GAUC than is allowed.

Here: two recommendations as pure functions. Not here: the measured losses (tables.py), the spread of similarity (hash_law.py).
The measured recommendation is the cautious one: it takes the upper bounds of the measured losses. The second follows from a law: the variance of
a hashed similarity falls as 1 / bits, and a small error of an input costs GAUC in proportion to its square, so loss = a / bits. The law also
covers numbers of bits between and beyond those that were trained. All losses are in points of GAUC (0.01 = 1 point).

Source: AIF, sections 4.2 and 5.2.3, Table 3; Charikar 2002.
"""

import math
from collections.abc import Mapping

from streams.training.bootstrap import Interval

ALLOWED_PT = (0.1, 0.25, 0.5, 1.0)


def fit_law(losses_pt: Mapping[int, float]) -> float:
    """The a of loss = a / bits, fitted by least squares to losses by bits; in points times bits, at least 0."""
    return max(0.0, sum(loss / bits for bits, loss in losses_pt.items()) / sum(1 / bits**2 for bits in losses_pt))


def recommend_bits(losses: Mapping[int, Interval], allowed_pt: float) -> int | None:
    """The smallest measured number of bits whose loss is at most `allowed_pt` by its upper bound, as is that of every larger number; None if no
    number is."""
    found = None
    for bits in sorted(losses, reverse=True):
        if losses[bits].high > allowed_pt:
            break
        found = bits
    return found


def bits_by_law(law_pt: float, allowed_pt: float) -> int:
    """The smallest multiple of 8, at least 8, at which `law_pt` / bits is at most `allowed_pt`."""
    return max(8, 8 * math.ceil(law_pt / allowed_pt / 8))
