"""Duplicates, holes and cuts of micro-batches. A hole is fetched again once, then refused; records from before a seek do not count as the second time."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Incompatible
from streams.core.batching import GapWatch, Remedy, plan_batches, plan_fresh, plan_runs


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_records_below_the_next_offset_are_dropped_and_the_rest_is_taken_in_order(next_offset: int, start: int, count: int) -> None:
    offsets = list(range(min(start, next_offset), min(start, next_offset) + count))
    fresh = [offsets[i] for i in plan_fresh(0, {"t": next_offset}, [("t", offset) for offset in offsets])]
    assert fresh == [o for o in offsets if o >= next_offset]


def test_a_record_given_twice_in_one_batch_is_taken_once_and_each_topic_has_its_own_offsets() -> None:
    records = [("t", 4), ("t", 5), ("u", 0), ("t", 6), ("t", 5), ("t", 6), ("u", 0), ("t", 7)]
    assert plan_fresh(0, {"t": 5, "u": 0}, records) == [1, 2, 3, 7]


@pytest.mark.parametrize("offsets", [[6], [5, 7], [5, 6, 8]])
def test_a_hole_is_named_with_its_place(offsets: list[int]) -> None:
    with pytest.raises(Incompatible, match=r"offset_gap: item-features\[3\] jumps from offset") as caught:
        plan_fresh(3, {"item-features": 5}, [("item-features", offset) for offset in offsets])
    assert caught.value.code == "offset_gap"


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(256, 2_000), st.none() | st.integers(1, 10))
def test_batches_are_the_records_in_order_none_too_large_and_none_needlessly_small(
    updates: list[int], bound: int, records_max: int | None
) -> None:
    cuts = plan_batches(updates, bound, records_max)
    assert [u for cut in cuts for u in updates[cut]] == updates
    batches = [updates[cut] for cut in cuts]
    assert all(sum(batch) <= bound or len(batch) == 1 for batch in batches)
    assert all(0 < len(batch) <= (records_max or len(batch)) for batch in batches)
    for batch, after in itertools.pairwise(batches):
        assert sum(batch) + after[0] > bound or len(batch) == records_max


P = ("item-features", 0)


def test_the_first_hole_asks_for_a_seek_and_the_same_hole_again_for_a_stop() -> None:
    watch = GapWatch()
    assert watch.choose_remedy(P, [7, 8]) is Remedy.SEEK
    assert watch.choose_remedy(P, [9]) is Remedy.WAIT  # fetched before the seek
    assert watch.choose_remedy(P, [7, 8]) is Remedy.STOP


def test_a_hole_ends_a_process_although_retention_passed_the_refused_records_before_the_seek() -> None:
    """Every later fetch then begins after the refused records, like those that were fetched before the seek."""
    watch = GapWatch()
    remedies = [watch.choose_remedy(P, range(first, first + 500)) for first in range(1_000, 100_000, 500)]
    assert remedies[:2] == [Remedy.SEEK, Remedy.WAIT] and Remedy.SEEK in remedies[2:]
    assert watch.choose_remedy(P, range(1_000, 1_500)) is Remedy.STOP, "the fetch after that seek begins at the start of the log"


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
