"""The ladder, row by row, and as a whole."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.ladder import DEGRADED, Rung, Situation, choose_rung

LATE = {"left_ms": 10.0, "queue_ms": 4.0, "rank_ms": 3.0}  # 3 ms are left for a user half


@pytest.mark.parametrize(
    ("situation", "best"),
    [
        (Situation(**LATE, inline_ms=1, flight_ms=7.0), Rung.WAITED),
        (Situation(**LATE, inline_ms=3, flight_ms=7.1), Rung.INLINE),
        (Situation(**LATE, inline_ms=3), Rung.INLINE),
        (Situation(**LATE, inline_ms=3.1, has_last=True), Rung.LAST_CACHED),
        (Situation(**LATE, inline_ms=3.1, profile_ms=3), Rung.PROFILE_ONLY),
        (Situation(**LATE, inline_ms=3.1, profile_ms=3.1), Rung.ITEM_PRIOR),
        (Situation(left_ms=0, rank_ms=100), Rung.ITEM_PRIOR),
        (Situation(left_ms=200), Rung.INLINE),
    ],
)
def test_each_row_is_the_best_rung_where_its_condition_just_holds(situation: Situation, best: Rung) -> None:
    assert choose_rung(situation) is best


def test_a_running_call_one_is_waited_for_only_as_long_as_ranking_fits_behind_it() -> None:
    assert choose_rung(Situation(left_ms=10, rank_ms=3, flight_ms=0.0, queue_ms=7.1, inline_ms=99)) is not Rung.WAITED
    assert choose_rung(Situation(left_ms=10, rank_ms=3, flight_ms=0.0, queue_ms=7.0, inline_ms=99)) is Rung.WAITED


times = st.floats(0, 1000)
situations = st.builds(
    Situation,
    left_ms=times,
    queue_ms=times,
    rank_ms=times,
    inline_ms=times,
    profile_ms=times,
    flight_ms=st.none() | times,
    has_last=st.booleans(),
)


@given(situations)
def test_there_is_always_a_rung_and_more_time_never_gives_a_worse_one(situation: Situation) -> None:
    order = list(Rung)
    more = replace(situation, left_ms=situation.left_ms + 1)
    assert order.index(choose_rung(more)) <= order.index(choose_rung(situation))


def test_exactly_the_rungs_that_lose_something_say_so() -> None:
    assert set(DEGRADED) == {Rung.LAST_CACHED, Rung.PROFILE_ONLY, Rung.ITEM_PRIOR}
