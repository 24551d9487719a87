"""When nothing may be published, and that a reason goes away by itself."""

import pytest

from streams.training.following.health import RoundCounts, find_faults
from streams.training.settings import TrainSection

GOOD = RoundCounts(records=100, shown=1_000, steps=4)


def test_good_data_may_be_published() -> None:
    assert find_faults([GOOD] * 8, 3.0, TrainSection()) == ()
    assert find_faults([], None, TrainSection()) == ()


@pytest.mark.parametrize(
    ("bad", "age_s", "reason"),
    [
        (GOOD, 901.0, "late: the newest impressions are 901 s old (median), expected at most 900 s"),
        (GOOD, -901.0, "ahead: the newest impressions are 901 s in the future (median), expected at most 900 s"),
        (RoundCounts(100, 90, 1_000, 0, 4, 0), 1.0, "unreadable: 90 of the newest 100"),
        (RoundCounts(100, 0, 1_000, 500, 4, 0), 1.0, "unknown: 500 of the newest 1000"),
        (RoundCounts(100, 0, 1_000, 0, 2, 2), 1.0, "not finite: 2 of the newest 4"),
    ],
    ids=lambda v: v.split(":")[0] if isinstance(v, str) else "",
)
def test_each_fault_is_named_with_its_count_and_its_bound(bad: RoundCounts, age_s: float, reason: str) -> None:
    (found,) = find_faults([bad], age_s, TrainSection())
    assert found.startswith(reason)


def test_a_little_of_it_is_borne_and_more_is_not() -> None:
    some = RoundCounts(100, 5, 1_000, 200, 38, 2)
    assert find_faults([some], 1.0, TrainSection()) == ()
    assert len(find_faults([some + RoundCounts(unreadable=1, unknown=1, refused=1)], 1.0, TrainSection())) == 3


def test_one_bad_one_of_few_is_no_share_yet_and_two_are() -> None:
    """The first record that a follower meets may be the one that does not read: it says nothing about the others."""
    one, two = RoundCounts(records=1, unreadable=1), RoundCounts(records=3, unreadable=2)
    assert find_faults([one], None, TrainSection()) == ()
    assert len(find_faults([two], None, TrainSection())) == 1
    assert len(find_faults([one], None, TrainSection(unreadable_share_max=0.0))) == 1  # with a limit of none, the first is reported
    assert find_faults([RoundCounts(0, 0, 0, 0, 0, 0)], None, TrainSection(unreadable_share_max=0.0)) == ()


def test_lateness_may_be_left_out() -> None:
    assert find_faults([GOOD], 1e9, TrainSection(late_s_max=1e12)) == ()
