"""Dropping by rule: after `row` invalid requests of a user in a row the next one is dropped, and the count starts again.

Only a shown answer can be invalid: a request that was dropped, refused or failed is "not ranked", and says nothing of the user. A drop resets the count. If
it counted as invalid, or left the count as it was, each drop would cause the next one. A user once dropped would never be seen again.

Here: pure functions. Not here: what a server counts as valid (serving/allocation/answers_in_row.py), the choice of `row`
(streams/allocation/drop_fit.py).
"""

import enum

from schemas.allocation import DropRule


class Shown(enum.Enum):
    """What became of a request: a shown answer with or without an outcome, or a drop. A request without an answer for another cause does not count."""

    VALID = 1
    INVALID = 2
    DROPPED = 3


def fold_row(row: int, shown: Shown) -> int:
    """The number of invalid requests in a row after one more request."""
    return row + 1 if shown is Shown.INVALID else 0


def is_due(rule: DropRule, row: int, dropped_share: float) -> bool:
    """Whether the rule drops the next request of a user. `dropped_share`: the share of recent requests that the rule dropped."""
    return 0 < rule.row <= row and dropped_share < rule.share_max
