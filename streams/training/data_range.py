"""From when until when the impressions of a training are, as its checkpoint card says it, whatever single clients claim.

Here: the span of some times, pure. Not here: which impressions they are of (program.py, following/follower.py), the times by which items and
histories are joined (impressions.py), which stay as they were sent.
The time of an impression is its publisher's word. One client whose clock stands at 1970 or in the next century would be the whole range.
"""

from collections.abc import Sequence

FAR = 20  # times the width of the middle eight tenths; what lies further outside of it is taken for a wrong clock
_TOLD_BY = 10  # of fewer impressions nothing is left out


def find_span(times_ms: Sequence[int]) -> tuple[int | None, int | None]:
    """(first, last) of times in ms, without those that lie far from most; (None, None) of no times."""
    if not times_ms:
        return None, None
    ordered = sorted(times_ms)
    low, high = ordered[len(ordered) // _TOLD_BY], ordered[-1 - len(ordered) // _TOLD_BY]
    reach = FAR * (high - low) if len(ordered) >= _TOLD_BY else ordered[-1] - ordered[0]
    return next(t for t in ordered if t >= low - reach), next(t for t in reversed(ordered) if t <= high + reach)
