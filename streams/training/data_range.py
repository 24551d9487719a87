"""The time span of the impressions of a training, for its checkpoint's card. Impressions whose clock is far off are left out of it.

Here: the span of some times, pure. Not here: which impressions they are of (program.py, following/follower.py), the times by which items and
histories are joined (impressions.py), which stay as they were sent.
The time of an impression is set by its publisher. One client whose clock stands at 1970 or in the next century would make the span decades long.
"""

from collections.abc import Sequence

FAR = 20  # widths of the middle eight tenths: a time that lies further outside of them is taken for a wrong clock
_TENTHS = 10  # of fewer impressions nothing is left out


def find_span(times_ms: Sequence[int]) -> tuple[int | None, int | None]:
    """(first, last) of times in ms, without those that lie far from most; (None, None) of no times."""
    if not times_ms:
        return None, None
    ordered = sorted(times_ms)
    low, high = ordered[len(ordered) // _TENTHS], ordered[-1 - len(ordered) // _TENTHS]
    reach = FAR * (high - low) if len(ordered) >= _TENTHS else ordered[-1] - ordered[0]
    return next(t for t in ordered if t >= low - reach), next(t for t in reversed(ordered) if t <= high + reach)
