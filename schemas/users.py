"""The state of a user: the fold of user-features and user-behaviours. The one fold, for serving and for training.

Order of a history = order of its log (one user's records share a partition). Folding a record twice changes nothing: each carries its offset, and an
offset that was seen is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.ids import Id
from schemas.limits import BEHAVIOURS_PER_USER_MAX


@dataclass(frozen=True, slots=True)
class BehaviourEvent:
    """One behaviour of a user, oldest first in a history."""

    item_id: Id
    kind: str
    time_ms: int
    features: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UserHistory:
    """Profile features (raw, by name), since when they hold (0: always), and behaviours of one user. Statistics hold over the profile. `*_offset` = last offset
    folded, -1 = none; profile and statistics come from one partition and share one."""

    profile: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    profile_time_ms: int = 0
    behaviours: list[BehaviourEvent] = field(default_factory=list)
    profile_offset: int = -1
    behaviours_offset: int = -1


def fold_profile(history: UserHistory, offset: int, features: Mapping[str, Any] | None, time_ms: int | None = None) -> bool:
    """The latest offset wins; None (a record without a value) forgets the profile. Returns whether anything changed."""
    if offset <= history.profile_offset:
        return False
    history.profile, history.profile_time_ms = dict(features or {}), time_ms or 0
    history.profile_offset = offset
    return True


def fold_statistics(history: UserHistory, offset: int, features: Mapping[str, Any]) -> bool:
    """The latest offset wins, as of the profile, over which they hold; none forgets them. Returns whether anything changed."""
    if offset <= history.profile_offset:
        return False
    history.statistics, history.profile_offset = dict(features), offset
    return True


def fold_behaviours(history: UserHistory, offset: int, events: Sequence[BehaviourEvent]) -> int:
    """Appends the events of one record (all of this user) in their order; keeps the newest `BEHAVIOURS_PER_USER_MAX`. Returns how many were new."""
    if offset <= history.behaviours_offset:
        return 0
    history.behaviours.extend(events)
    del history.behaviours[:-BEHAVIOURS_PER_USER_MAX]
    history.behaviours_offset = offset
    return len(events)
