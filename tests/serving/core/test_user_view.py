"""The view's bytes and its start: every reason to make it again, and keys that cannot be mistaken."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.ids import Id
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent
from serving.core.user_view import (
    BLOCK,
    UNSEEN_MS_MAX,
    Head,
    TopicRange,
    ViewState,
    append_events,
    decode_events,
    decode_head,
    decode_view_state,
    encode_block_key,
    encode_head,
    encode_view_state,
    find_misfit,
)

LOG = {topic: TopicRange(f"id-{topic}", {0: 10, 1: 0}, {0: 20, 1: 0}) for topic in (USER_FEATURES, USER_BEHAVIOURS)}
IDS = {topic: found.topic_id for topic, found in LOG.items()}


def state(offset: int = 15, ids: dict[str, str] | None = None, seen_ms: int = 0, partition: int = 0) -> ViewState:
    return ViewState({USER_BEHAVIOURS: {partition: offset}}, IDS if ids is None else ids, 3, seen_ms)


@pytest.mark.parametrize(
    ("before", "now_ms", "code"),
    [
        (ViewState(), 1 << 40, ""),
        (state(), 1, ""),
        (state(10), 1, ""),
        (state(20), 1, ""),
        (state(ids={}), 1, ""),
        (state(9), 1, "log_gone"),
        (state(21), 1, "log_shorter"),
        (state(partition=7), 1, "log_shorter"),
        (state(ids={**IDS, USER_FEATURES: "other"}), 1, "other_topic"),
        (state(seen_ms=5), UNSEEN_MS_MAX + 5, ""),
        (state(seen_ms=5), UNSEEN_MS_MAX + 6, "too_old"),
        (state(seen_ms=UNSEEN_MS_MAX + 5), 5, ""),
        (state(seen_ms=UNSEEN_MS_MAX + 6), 5, "too_old"),
    ],
)
def test_a_view_goes_on_only_where_the_log_still_holds_what_comes_next(before: ViewState, now_ms: int, code: str) -> None:
    assert find_misfit(before, LOG, now_ms).partition(":")[0] == code


@given(st.binary(min_size=1, max_size=128), st.binary(min_size=1, max_size=128), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_no_users_blocks_lie_among_those_of_another(one: bytes, other: bytes, number: int, last: int) -> None:
    if one != other:
        assert not encode_block_key(one, 0) <= encode_block_key(other, number) <= encode_block_key(one, last)
    else:
        assert (encode_block_key(one, number) < encode_block_key(other, last)) == (number < last)


def test_head_and_state_come_back_from_their_bytes() -> None:
    assert decode_head(encode_head(Head(-1, 1 << 60, 7))) == Head(-1, 1 << 60, 7)
    assert decode_view_state(encode_view_state(state(5, seen_ms=9))) == state(5, seen_ms=9)


def events_of(ids: st.SearchStrategy[Id]) -> st.SearchStrategy[list[list[BehaviourEvent]]]:
    """Portions of events, as records bring them."""
    features = st.sampled_from([{}, {}, {"dwell_s": 2.5}])
    event = st.builds(BehaviourEvent, ids, st.sampled_from(["click", "buy", "é"]), st.integers(0, 1 << 50), features)
    return st.lists(st.lists(event, min_size=1, max_size=20), max_size=20)


PLAIN, DWELT = BehaviourEvent(1, "click", 1, {}), BehaviourEvent(2, "buy", 2, {"dwell_s": 2.5})


@example([[PLAIN] * BLOCK, [DWELT] * BLOCK, [PLAIN] * (BLOCK + 1)])
@settings(max_examples=50)
@given(st.one_of(events_of(st.integers(-(1 << 63), (1 << 63) - 1)), events_of(st.text(min_size=1, max_size=3))))
def test_events_come_back_from_blocks_that_were_written_portion_by_portion(portions: list[list[BehaviourEvent]]) -> None:
    blocks, head = dict[int, bytes](), Head()
    for portion in portions:
        blocks |= append_events(blocks.get(head.tail, b""), head, portion)
        head = Head(appended=head.appended + len(portion))
    assert list(decode_events(blocks[n] for n in sorted(blocks))) == [event for portion in portions for event in portion]


def test_an_event_takes_seventeen_bytes_so_that_a_long_history_is_read_in_milliseconds() -> None:
    block = append_events(b"", Head(), [BehaviourEvent(n, "click", n, {}) for n in range(BLOCK)])[0]
    assert len(block) < 17 * BLOCK + 32


@pytest.mark.parametrize("at", [0, 1, 20, -1])
def test_a_block_that_was_cut_off_is_named(at: int) -> None:
    block = append_events(b"", Head(), [BehaviourEvent(1, "click", 1, {})])[0]
    with pytest.raises(Corrupted, match="behaviours that do not read"):
        decode_events([block, block[:at]])
    if at:
        with pytest.raises(Corrupted, match="behaviours that do not read"):
            append_events(block[:at], Head(appended=1), [BehaviourEvent(2, "click", 1, {})])
