"""Whether what a follower learns may be published: pure judgement of counts.

Here: what is counted of the newest rounds, the bounds, the reasons. Not here: counting (follower.py), publishing (publications.py).
A reason goes away by itself when the rounds that gave it have left the window, so publishing starts again without anybody's help. A checkpoint that
passes here has still to pass what everybody's has to (streams/agents/checkpoints.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

WINDOW_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """What one round held: records of impressions and those refused, shown items and those unknown at that time, steps and those refused."""

    records: int = 0
    unreadable: int = 0
    shown: int = 0
    unknown: int = 0
    steps: int = 0
    refused: int = 0

    def __add__(self, other: Self) -> "RoundCounts":
        return RoundCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class HealthBounds:
    """`late_s_max`: age of the newest impression by its own time (infinity: not looked at). Shares are of the newest rounds together."""

    late_s_max: float = 900.0
    unreadable_share_max: float = 0.05
    unknown_share_max: float = 0.2
    refused_share_max: float = 0.05


def find_faults(rounds: Iterable[RoundCounts], event_age_s: float | None, bounds: HealthBounds) -> tuple[str, ...]:
    """Why nothing may be published now, for people; empty if it may. `event_age_s` None: no impression was seen yet."""
    total = sum(rounds, RoundCounts())
    found = []
    if event_age_s is not None and event_age_s > bounds.late_s_max:
        found.append(f"late: the newest impression is {event_age_s:.0f} s old, expected at most {bounds.late_s_max:.0f} s")
    for name, bad, of, share_max, what in (
        ("unreadable", total.unreadable, total.records, bounds.unreadable_share_max, "records of impressions do not read"),
        ("unknown", total.unknown, total.shown, bounds.unknown_share_max, "shown items are not known"),
        ("not finite", total.refused, total.steps + total.refused, bounds.refused_share_max, "steps had no finite gradient"),
    ):
        if of and bad / of > share_max:
            found.append(f"{name}: {bad} of the newest {of} {what}, expected at most {share_max:.0%}")
    return tuple(found)
