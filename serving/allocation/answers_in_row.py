"""How many answers in a row no behaviour of their user followed: what the drop rule counts, by what this server sees itself.

An answer is valid if the user's history has grown when the user asks again. A server sees its own answers only, so users should keep to one server (the
merger's affinity). Whoever is not in memory, or brings the history along, is never dropped by the rule.

Here: the counts. Not here: the rule (schemas/drop_rule.py), its fit (streams/allocation/drop_fit.py), the drop itself (serving/core/choice.py).
"""

from collections import OrderedDict
from typing import NamedTuple

from schemas.drop_rule import DropRule, Shown, fold_row
from schemas.ids import Id

USERS_MAX = 100_000
_SHARE_WEIGHT = 1e-3  # of a request in the share of recent requests that the rule dropped


class _Seen(NamedTuple):
    row: int
    behaviours_at: int  # offset of the user's newest behaviour when the user asked last
    answered: bool  # and whether that was answered


class AnswersInRow:
    """Used in the event loop only. The users that asked longest ago are forgotten first."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Id, _Seen] = OrderedDict()
        self.dropped_share = 0.0

    def is_due(self, rule: DropRule, user: Id, behaviours_at: int) -> bool:
        """Whether the rule drops this request of a user, whose newest behaviour has this offset. Called once for each request."""
        row, before_at, answered = self._seen.pop(user, _Seen(0, behaviours_at, answered=False))
        if answered:
            row = fold_row(row, Shown.VALID if behaviours_at > before_at else Shown.INVALID)
        self._seen[user] = _Seen(row, behaviours_at, answered=False)
        if len(self._seen) > USERS_MAX:
            self._seen.popitem(last=False)
        return rule.is_due(row, self.dropped_share)

    def note(self, user: Id, *, dropped: bool) -> None:
        """The request was dropped by the rule, or answered. The next request says whether the answer was valid."""
        seen = self._seen.get(user)
        if seen is not None:
            row = fold_row(seen.row, Shown.DROPPED) if dropped else seen.row
            self._seen[user] = _Seen(row, seen.behaviours_at, answered=not dropped)
            self.dropped_share += _SHARE_WEIGHT * (dropped - self.dropped_share)
