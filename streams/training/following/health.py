"""Decides whether a follower may publish its weights, from counts over the newest rounds.

Here: the counts and the reasons against publishing, as pure functions. Not here: their bounds (training/settings.py), counting (follower.py), publishing
(publications.py).
A reason disappears when the rounds that caused it have left the window, so publishing resumes by itself. A checkpoint that is published still has to
pass the gate for all checkpoints (streams/versions/checkpoints.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

from streams.training.settings import TrainSection

WINDOW_ROUNDS = 8
_REFUSED_SHARE_MAX = 0.05  # of the steps


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Counts of one round. Records of impressions, and those that could not be decoded. Shown items, and those unknown at the time of the impression. Steps
    taken, and steps refused because their gradient was not finite."""

    records: int = 0
    unreadable: int = 0
    shown: int = 0
    unknown: int = 0
    steps: int = 0
    refused: int = 0

    def __add__(self, other: Self) -> "RoundCounts":
        return RoundCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def find_faults(rounds: Iterable[RoundCounts], event_age_s: float | None, bounds: TrainSection) -> tuple[str, ...]:
    """The reasons why nothing may be published now, as texts for people; empty if publishing is allowed. The argument `event_age_s` is the median age of the
    newest round's impressions by their own times, None before the first. Below 0 they are ahead of the clock. The shares are of all rounds together. One bad
    one alone is no share, whatever it is of: it does not stop a follower that has read little, unless the bound is 0."""
    total = sum(rounds, RoundCounts())
    found = []
    if event_age_s is not None and event_age_s > bounds.late_s_max:
        found.append(f"late: the newest impressions are {event_age_s:.0f} s old (median), expected at most {bounds.late_s_max:.0f} s")
    if event_age_s is not None and -event_age_s > bounds.late_s_max:
        found.append(
            f"ahead: the newest impressions are {-event_age_s:.0f} s in the future (median), expected at most {bounds.late_s_max:.0f} s"
        )
    for name, bad, of, share_max, what in (
        ("unreadable", total.unreadable, total.records, bounds.unreadable_share_max, "records of impressions do not read"),
        ("unknown", total.unknown, total.shown, bounds.unknown_share_max, "shown items are not known"),
        ("not finite", total.refused, total.steps + total.refused, _REFUSED_SHARE_MAX, "steps had no finite gradient"),
    ):
        if bad > share_max * of and (bad > 1 or share_max == 0):
            found.append(f"{name}: {bad} of the newest {of} {what}, expected at most {share_max:.0%}")
    return tuple(found)
