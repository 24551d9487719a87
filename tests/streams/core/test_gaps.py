"""Holes: fetched again once, then refused; records of before a seek do not count as the second time."""

from hypothesis import given
from hypothesis import strategies as st

from streams.core.gaps import GapWatch, Remedy, plan_runs

P = ("item-features", 0)


def test_the_first_hole_asks_for_a_seek_and_the_same_hole_again_for_a_stop() -> None:
    watch = GapWatch()
    assert watch.choose_remedy(P, [7, 8]) is Remedy.SEEK
    assert watch.choose_remedy(P, [9]) is Remedy.WAIT  # fetched before the seek
    assert watch.choose_remedy(P, [7, 8]) is Remedy.STOP


def test_a_hole_that_closed_may_open_again_elsewhere() -> None:
    watch = GapWatch()
    assert watch.choose_remedy(P, [7]) is Remedy.SEEK
    watch.passed(P)
    assert watch.choose_remedy(P, [20]) is Remedy.SEEK
    assert watch.choose_remedy(("new-items", 0), [3]) is Remedy.SEEK


@given(st.lists(st.integers(0, 50), max_size=30))
def test_runs_ascend_and_together_are_everything(offsets: list[int]) -> None:
    runs = [offsets[cut] for cut in plan_runs(offsets)]
    assert [o for run in runs for o in run] == offsets
    assert all(run == sorted(set(run)) for run in runs)


def test_a_move_of_the_consumer_begins_a_run() -> None:
    assert plan_runs([110, 111, 0, 1, 2]) == [slice(0, 2), slice(2, 5)]
