"""A round of following: the records between two offset vectors, and how far the next one goes.

Here: values and `plan_impressions` (pure). Not here: reading (followed_log.py), what is learnt (learner.py).
A round's ends are written down before anything is learnt from it. So a round is the same records whenever it is read, however fast they
came, and what was learnt is a function of the log and of a list of offset vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streams.training.event_decoder import Offsets

REQUESTS_MAX = 512  # impressions of a round: a second or two of learning, so that a stop or a kill costs little


@dataclass(frozen=True, slots=True)
class Round:
    """Round `number` ends before `ends`; it begins where the one before it ended."""

    number: int
    ends: Offsets

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"number": self.number, "ends": {topic: dict(of) for topic, of in self.ends.items()}}


def decode_round(raw: Mapping[str, Any]) -> Round:
    """The inverse of `to_dict`."""
    return Round(int(raw["number"]), raw["ends"])


def plan_impressions(begins: Mapping[int, int], ends: Mapping[int, int], requests_max: int = REQUESTS_MAX) -> dict[int, int]:
    """Where to stop in each partition between where the last round ended and the log's end: `requests_max` records together.

    Each partition gives a fair share, so they go on side by side and a backlog is learnt about in the order of time.
    """
    planned = dict(begins)
    left = {p: ends[p] - begins[p] for p in sorted(begins) if ends[p] > begins[p]}
    room = requests_max
    while left and room > 0:
        share = max(1, room // len(left))
        for p in sorted(left):
            step = min(share, left[p], room)
            planned[p] += step
            left[p] -= step
            room -= step
        left = {p: rest for p, rest in left.items() if rest}
    return planned
