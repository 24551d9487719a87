"""The range of a card: the first and the last impression, and no client with a wrong clock."""

from hypothesis import given
from hypothesis import strategies as st

from streams.training.topic_events import find_span

HOUR = [1_700_000_000_000 + 30_000 * n for n in range(120)]


def test_one_client_with_a_wrong_clock_is_not_the_range_of_the_data() -> None:
    assert find_span([*HOUR, 0, 9_999_999_999_999]) == (HOUR[0], HOUR[-1])


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=9))
def test_of_a_few_impressions_nothing_is_left_out(times: list[int]) -> None:
    assert find_span(times) == (min(times), max(times))


def test_no_impression_has_no_range() -> None:
    assert find_span([]) == (None, None)
