"""The view's bytes and its start: every reason to make it again, and keys that cannot be mistaken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from serving.core.user_view import (
    UNSEEN_MS_MAX,
    Head,
    TopicRange,
    ViewState,
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
