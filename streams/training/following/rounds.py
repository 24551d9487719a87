"""A round of online learning: the records between two offset vectors, and how far the next round goes.

Here: values and `plan_impressions`, pure. Not here: reading (followed_log.py), learning (learner.py).
Invariant: a round's ends are stored before anything of it is learnt. It therefore has the same records whenever it is read, and what was learnt is a
function of the log and of a list of offset vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streams.training.event_decoder import Offsets

REQUESTS_MAX = 512  # impressions of a round, which take a second or two: a stop waits that long, and a kill loses no more


@dataclass(frozen=True, slots=True)
class Round:
    """Round `number` has the records from the end of the round before it up to, but not including, the offsets `ends`."""

    number: int
    ends: Offsets

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"number": self.number, "ends": {topic: dict(of) for topic, of in self.ends.items()}}


def decode_round(raw: Mapping[str, Any]) -> Round:
    """The inverse of `to_dict`."""
    return Round(int(raw["number"]), raw["ends"])


def plan_impressions(begins: Mapping[int, int], ends: Mapping[int, int], requests_max: int) -> dict[int, int]:
    """The end of the next round in each partition: from `begins` towards the log's `ends`, at most `requests_max` records in all.

    Every partition gets an equal share, so a backlog is learnt approximately in the order of time.
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
