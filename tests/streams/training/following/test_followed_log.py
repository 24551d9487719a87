"""How far a round goes is a function of the log: fair to every partition, and never nothing where something waits. How far a follower is reads back."""

from hypothesis import given
from hypothesis import strategies as st

from streams.training.following.followed_log import plan_impressions
from streams.training.following.follower import Place, decode_place

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


def test_a_place_reads_back_as_it_was_and_so_does_one_that_was_kept_with_the_number_of_its_round() -> None:
    place = Place(2, {"impressions": {"0": 5}}, oldest_ms=(7,), next={"impressions": {"0": 9}})
    told = place.to_dict()
    assert decode_place(told) == place == decode_place(told | {"next": {"number": 3, "ends": place.next}})
