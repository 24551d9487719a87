"""How far a round goes is a function of the log: fair to every partition, never more than allowed, never nothing where something waits."""

from hypothesis import given
from hypothesis import strategies as st

from streams.training.following.followed_log import plan_impressions

PARTITIONS = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 80)), min_size=1)


@given(PARTITIONS, st.integers(1, 100))
def test_a_round_takes_what_waits_up_to_its_size(log: dict[int, tuple[int, int]], most: int) -> None:
    begins, ends = {p: a for p, (a, _) in log.items()}, {p: a + n for p, (a, n) in log.items()}
    planned = plan_impressions(begins, ends, most)
    taken = {p: planned[p] - begins[p] for p in begins}
    assert sum(taken.values()) == min(most, sum(n for _, n in log.values()))
    assert all(0 <= taken[p] <= n for p, (_, n) in log.items())


@given(PARTITIONS, st.integers(1, 100))
def test_no_partition_is_far_behind_another_that_has_as_much(log: dict[int, tuple[int, int]], most: int) -> None:
    begins, ends = {p: a for p, (a, _) in log.items()}, {p: a + n for p, (a, n) in log.items()}
    planned = plan_impressions(begins, ends, most)
    unfinished = [planned[p] - begins[p] for p in begins if planned[p] < ends[p]]
    assert not unfinished or max(planned[p] - begins[p] for p in begins) <= min(unfinished) + 1
