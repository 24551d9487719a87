"""Behaviours as columns: the same sequence as a list of events, whatever was appended when, and a snapshot that never changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.users import BehaviourEvent

KEPT = 20
FEATURES = st.sampled_from([{}, {"price": 1.5}])


def rows_of(ids: st.SearchStrategy[int] | st.SearchStrategy[str]):
    return st.lists(
        st.lists(st.tuples(ids, st.sampled_from(["click", "buy", "new"]), st.integers(0, 1 << 53), FEATURES), max_size=30), max_size=8
    )


@given(rows_of(st.integers(-(1 << 63), (1 << 63) - 1)) | rows_of(st.text(max_size=5)))
def test_columns_are_the_list_of_the_newest_events_whatever_the_portions_and_what_was_read_before_stays(portions) -> None:
    columns, events, snapshots = EMPTY, list[BehaviourEvent](), list[tuple[BehaviourColumns, list[BehaviourEvent]]]()
    for rows in portions:
        snapshots.append((columns, events))
        columns, events = columns.append(rows, KEPT), [*events, *(BehaviourEvent(*row) for row in rows)][-KEPT:]
    for seen, wanted in [*snapshots, (columns, events)]:
        names, kinds = seen.kinds
        assert seen == wanted and list(seen) == wanted and len(seen) == len(wanted)
        assert list(seen.item_ids) == [one.item_id for one in wanted]
        assert [names[kind] for kind in kinds] == [one.kind for one in wanted]
        assert list(seen.features or [{}] * len(wanted)) == [one.features for one in wanted]
        assert list(seen[3:-2]) == wanted[3:-2] and list(seen[-5:]) == wanted[-5:] and not seen[4:2]


def test_two_that_go_on_from_the_same_behaviours_do_not_write_into_each_other() -> None:
    first = EMPTY.append([(1, "click", 1, {})], KEPT)
    left, right = first.append([(2, "click", 2, {})], KEPT), first.append([(3, "buy", 3, {"price": 2.0})], KEPT)
    assert [one.item_id for one in left] == [1, 2] and [one.item_id for one in right] == [1, 3]
    assert (left[-1].kind, right[-1].kind, left.features) == ("click", "buy", None)


def test_a_place_outside_and_a_step_are_refused() -> None:
    columns = EMPTY.append([(1, "click", 1, {}), (2, "click", 2, {})], KEPT)
    assert columns[-1].item_id == 2 and columns != [columns[0]]
    with pytest.raises(IndexError):
        columns[2]
    with pytest.raises(ValueError, match="step"):
        columns[::2]
