"""How many bits a signature needs for a given loss of GAUC: from measured losses, and from the law that they follow.

Here: the recommendation as a pure function. Not here: the losses (tables.py), the spread of similarity (hash_law.py).
The variance of similarity falls as 1 / bits, and a small error of an input costs GAUC by its square: loss = a / bits. The measured
recommendation is the careful one (upper bounds); the law's tells what lies between and beyond the bits that were trained.

Source: AIF, sections 4.2 and 5.2.3, Table 3; Charikar 2002.
"""

import math
from collections.abc import Mapping

from streams.training.bootstrap import Interval

ALLOWED_PT = (0.1, 0.25, 0.5, 1.0)


def fit_law(losses_pt: Mapping[int, float]) -> float:
    """a of loss = a / bits by least squares, points times bits; not below 0."""
    return max(0.0, sum(loss / bits for bits, loss in losses_pt.items()) / sum(1 / bits**2 for bits in losses_pt))


def recommend_bits(losses: Mapping[int, Interval], allowed_pt: float) -> int | None:
    """The fewest bits that, like all greater numbers measured, surely lose no more than that; None if none do."""
    found = None
    for bits in sorted(losses, reverse=True):
        if losses[bits].high > allowed_pt:
            break
        found = bits
    return found


def bits_by_law(law_pt: float, allowed_pt: float) -> int:
    """The multiple of 8 from which a / bits is no more than that; at least 8."""
    return max(8, 8 * math.ceil(law_pt / allowed_pt / 8))
