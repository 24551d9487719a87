"""Duplicates, holes and cuts of micro-batches."""

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


@given(st.lists(st.integers(0, 256), max_size=40), st.integers(256, 2_000))
def test_batches_are_the_records_in_order_none_too_large_and_none_needlessly_small(updates: list[int], bound: int) -> None:
    cuts = plan_batches(updates, bound)
    assert [u for cut in cuts for u in updates[cut]] == updates
    sizes = [sum(updates[cut]) for cut in cuts]
    assert all(size <= bound for size in sizes)
    assert all(size + updates[after.start] > bound for size, after in zip(sizes, cuts[1:], strict=False))
