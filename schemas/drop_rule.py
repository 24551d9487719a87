"""Dropping by rule: after `row` invalid requests of a user in a row the next one is dropped, and the count starts again.

Only a shown answer can be invalid: a request that was dropped, refused or failed is "not ranked", and says nothing of the user. A drop resets the count. If
it counted as invalid, or left the count as it was, each drop would cause the next one. A user once dropped would never be seen again.

Here: pure functions, for servers, the fit and the evaluation. Not here: what a server counts as valid (serving/allocation/answers_in_row.py), the choice of
`row` (streams/allocation/drop_fit.py).
"""

import enum
from dataclasses import dataclass


class Shown(enum.Enum):
    """What became of a request: a shown answer with or without an outcome, or a drop. A request without an answer for another cause does not count."""

    VALID = 1
    INVALID = 2
    DROPPED = 3


@dataclass(frozen=True, slots=True)
class DropRule:
    """After `row` invalid requests of a user in a row the next is dropped. 0: never. `share_max` caps the share of recent requests dropped."""

    row: int = 0
    share_max: float = 0.1

    def is_due(self, row: int, dropped_share: float = 0.0) -> bool:
        """Whether the next request of a user is dropped. `dropped_share`: the share of recent requests that the rule dropped."""
        return 0 < self.row <= row and dropped_share < self.share_max


def fold_row(row: int, shown: Shown) -> int:
    """The number of invalid requests in a row after one more request."""
    return row + 1 if shown is Shown.INVALID else 0
