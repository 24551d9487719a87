"""Duplicates, holes and cuts of micro-batches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Incompatible
from streams.core.batching import plan_batches, plan_fresh


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_records_below_the_next_offset_are_dropped_and_the_rest_is_taken_in_order(next_offset: int, start: int, count: int) -> None:
    offsets = list(range(min(start, next_offset), min(start, next_offset) + count))
    fresh = [offsets[i] for i in plan_fresh("t", 0, next_offset, offsets)]
    assert fresh == [o for o in offsets if o >= next_offset]


def test_a_record_given_twice_in_one_batch_is_taken_once() -> None:
    assert plan_fresh("t", 0, 5, [4, 5, 6, 5, 6, 7]) == [1, 2, 5]


@pytest.mark.parametrize("offsets", [[6], [5, 7], [5, 6, 8]])
def test_a_hole_is_named_with_its_place(offsets: list[int]) -> None:
    with pytest.raises(Incompatible, match=r"offset_gap: item-features\[3\] jumps from offset") as caught:
        plan_fresh("item-features", 3, 5, offsets)
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
