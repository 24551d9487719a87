"""What a checkpoint's card says of the data: where in the log it ended, and the span of its impressions' times, without clocks that are far off.

Here: that section of a card, and the span of some times, pure. Not here: which impressions they are of (program.py, following/follower.py), the times by
which items and histories are joined (impressions.py), which stay as they were sent.
The time of an impression is set by its publisher. One client whose clock stands at 1970 or in the next century would make the span decades long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streams.training.event_decoder import Offsets

FAR = 20  # widths of the middle eight tenths: a time that lies further outside of them is taken for a wrong clock
_TENTHS = 10  # of fewer impressions nothing is left out


@dataclass(frozen=True)
class DataRange:
    """Of what log a training set was made: where it ended, and the times of its first and last impression."""

    offsets: Offsets
    from_ms: int | None
    until_ms: int | None

    def to_dict(self) -> dict[str, Any]:
        """For a card: a follower goes on from `offsets`."""
        return {"offsets": {topic: dict(of) for topic, of in self.offsets.items()}, "from_ms": self.from_ms, "until_ms": self.until_ms}


def find_span(times_ms: Sequence[int]) -> tuple[int | None, int | None]:
    """(first, last) of times in ms, without those that lie far from most; (None, None) of no times."""
    if not times_ms:
        return None, None
    ordered = sorted(times_ms)
    low, high = ordered[len(ordered) // _TENTHS], ordered[-1 - len(ordered) // _TENTHS]
    reach = FAR * (high - low) if len(ordered) >= _TENTHS else ordered[-1] - ordered[0]
    return next(t for t in ordered if t >= low - reach), next(t for t in reversed(ordered) if t <= high + reach)
