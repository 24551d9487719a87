"""The drop rule: after how many invalid requests in a row a user's next one may be dropped, from requests that were answered.

A request is valid if a behaviour followed before the user asks again, as servers count it (serving/allocation/answers_in_row.py): the recorded history has
grown, or the request has clicks. Clicks are needed too, because a kept user half records at most the model's `behaviours_max`, so a long history does not
grow. A row is chosen on some users and must be safe on others, or there is no rule.

Here: pure functions of columns. Not here: the rule (schemas/drop_rule.py). Arrays: R requests.
"""

from collections.abc import Sequence

import numpy as np

from schemas.drop_rule import DropRule, Shown, fold_row
from streams.allocation.value_fit import Samples

SHARE_MAX = 0.1  # of the requests that may be dropped
LOST_MAX = 0.01  # of the valid requests that may be lost
VALID_MIN = 1_000  # of each part of the users, so that a share of 1% can be seen
ROWS = range(2, 16)


def fit_drops(learn: Samples, judged: Samples) -> tuple[DropRule, str]:
    """The rule, and why it is so: row 0 unless a row is safe on both parts. The samples of a user are in the order of time."""
    parts = [valid_by_user(samples) for samples in (learn, judged)]
    fewest = min(sum(int(of.sum()) for of in part) for part in parts)
    if fewest < VALID_MIN:
        return DropRule(0, SHARE_MAX), f"no rule: {fewest} valid requests, expected {VALID_MIN} in each part of the users"
    rule = fit_rule(parts[0], SHARE_MAX, LOST_MAX)
    if not rule.row:
        return rule, f"no rule: each row drops over {SHARE_MAX:.0%} of the requests or loses over {LOST_MAX:.0%} of the valid ones"
    dropped, lost = _try_rule(parts[1], rule.row)
    seen = f"row {rule.row} drops {dropped:.1%} of other users' requests and loses {lost:.1%} of their valid ones"
    return (rule, seen) if dropped <= SHARE_MAX and lost <= LOST_MAX else (DropRule(0, SHARE_MAX), f"no rule: {seen}")


def valid_by_user(samples: Samples) -> list[np.ndarray]:
    """Bool [R] of each user: whether each answered and shown request was valid. Others are left out, and the user's last one."""
    order_R = np.argsort(samples.user_R, kind="stable")
    user_R, behaviours_R = samples.user_R[order_R], samples.requests.behaviours_R[order_R]
    outcome_R = samples.outcome_R[order_R]
    again_R, valid_R = user_R == np.roll(user_R, -1), (np.roll(behaviours_R, -1) > behaviours_R) | (outcome_R > 0)
    again_R[-1:] = False
    known_R = again_R & np.isfinite(outcome_R)
    starts = np.flatnonzero(np.diff(user_R[known_R])) + 1
    return np.split(valid_R[known_R], starts)


def fit_rule(valid: Sequence[np.ndarray], share_max: float, lost_max: float) -> DropRule:
    """The shortest row whose drops stay within a share of the requests and of the valid ones. `valid`: bool [R] of each user, in the order of time.

    Row 0, no rule, if no row fits.
    """
    for row in ROWS:
        dropped, lost = _try_rule(valid, row)
        if dropped <= share_max and lost <= lost_max:
            return DropRule(row, share_max)
    return DropRule(0, share_max)


def _try_rule(valid: Sequence[np.ndarray], row: int) -> tuple[float, float]:
    """(share of requests that the rule drops, share of the valid ones that it loses)."""
    rule, dropped, lost = DropRule(row, share_max=1.0), 0, 0
    for of_user in valid:
        invalid = 0
        for is_valid in of_user:
            if rule.is_due(invalid):
                dropped, lost, shown = dropped + 1, lost + int(is_valid), Shown.DROPPED
            else:
                shown = Shown.VALID if is_valid else Shown.INVALID
            invalid = fold_row(invalid, shown)
    return dropped / max(1, sum(map(len, valid))), lost / max(1, sum(int(of.sum()) for of in valid))
