"""The ladder: where call 2 gets the user half from if call 1 is late, lost or of another version (protocol C9), as a table.

    rung          user half                                                        what the answer lacks
    carried       call 2 brought call 1's state itself                             nothing
    cached        call 1's state is in the pool                                    nothing
    waited        call 1 is being computed and will end in time                    nothing
    inline        made together with the ranking                                   nothing, but call 2 is slower
    last_cached   an older state of this user, on a resident version               what the user did since
    profile_only  made from the profile alone                                      all behaviours
    item_prior    the empty user's half: items are ranked by themselves            everything about the user

The length of the candidate list is the second ladder: under load fewer candidates are ranked, the first in the caller's order or the best by retrieval.

Here: the best rung that a situation allows. Not here: taking a rung (serving/calls/user_rungs.py), predicted times
(core/admission.py), the lengths that the time allows and that are worth their price (core/choice.py).
A state that is there is taken whatever the time (the first two rungs), so the table begins with what a call without one can do. Its last rung is always
allowed: a worse answer is better than none, and the answer names its rung.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.ids import Id


class Rung(enum.StrEnum):
    """Where the user half of an answer came from; the answer contains the value."""

    CARRIED = "carried"
    CACHED = "cached"
    WAITED = "waited"
    INLINE = "inline"
    LAST_CACHED = "last_cached"
    PROFILE_ONLY = "profile_only"
    ITEM_PRIOR = "item_prior"


# What an answer from such a rung says in `degraded`.
DEGRADED: Mapping[Rung, str] = {
    Rung.LAST_CACHED: "older_history",
    Rung.PROFILE_ONLY: "profile_only",
    Rung.ITEM_PRIOR: "item_prior",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What a call 2 without a state finds. Times are predictions in ms; work submitted now begins after `queue_ms`.

    flight_ms: until the running call 1 ends, None if none runs. has_last: an older state on a resident version is kept.
    """

    left_ms: float
    queue_ms: float = 0.0
    rank_ms: float = 0.0
    inline_ms: float = 0.0
    profile_ms: float = 0.0
    flight_ms: float | None = None
    has_last: bool = False

    def has_time_for(self, user_ms: float) -> bool:
        """Whether there is time to rank after making a user half that takes `user_ms`."""
        return self.queue_ms + user_ms + self.rank_ms <= self.left_ms


_TABLE: Sequence[tuple[Rung, Callable[[Situation], bool]]] = (
    (Rung.WAITED, lambda s: s.flight_ms is not None and max(s.flight_ms, s.queue_ms) + s.rank_ms <= s.left_ms),
    (Rung.INLINE, lambda s: s.has_time_for(s.inline_ms)),
    (Rung.LAST_CACHED, lambda s: s.has_last),
    (Rung.PROFILE_ONLY, lambda s: s.has_time_for(s.profile_ms)),
    (Rung.ITEM_PRIOR, lambda s: True),
)


def choose_rung(situation: Situation) -> Rung:
    """The best rung that is allowed."""
    return next(rung for rung, allows in _TABLE if allows(situation))


def take_first(ids: Sequence[Id] | np.ndarray, count: int | None, scores: Sequence[float] | None = None) -> Sequence[Id] | np.ndarray:
    """The first `count` candidates in the caller's order, or the best by retrieval's scores; None: all."""
    if count is None or count >= len(ids):
        return ids
    if scores is None:
        return ids[:count]
    best = np.sort(np.argpartition(-np.asarray(scores, np.float64), count - 1)[:count])
    return ids[best] if isinstance(ids, np.ndarray) else [ids[place] for place in best]
