"""The counter of invalid requests, and when the rule drops."""

import pytest

from schemas.drop_rule import DropRule, Shown, fold_row


@pytest.mark.parametrize(("shown", "row"), [(Shown.VALID, 0), (Shown.INVALID, 5), (Shown.DROPPED, 0)])
def test_a_request_that_was_not_shown_is_never_invalid(shown: Shown, row: int) -> None:
    assert fold_row(4, shown) == row


def test_the_rule_drops_one_request_and_stays_within_its_share() -> None:
    rule, row, drops = DropRule(3, 0.3), 0, []
    for _ in range(12):
        due = rule.is_due(row)
        drops.append(due)
        row = fold_row(row, Shown.DROPPED if due else Shown.INVALID)
    assert drops == [False, False, False, True] * 3
    assert not rule.is_due(9, 0.3) and not DropRule(0, 1.0).is_due(100)
