"""Ages of rows: never below the true one, and an idle shard is not old."""

from hypothesis import given
from hypothesis import strategies as st

from serving.core.row_ages import KEPT, LAGGING_S, SourceEnds


def offsets(*shards: tuple[int, int]) -> list[dict[str, int]]:
    return [{"item-features": f, "new-items": e} for f, e in shards]


def test_the_age_is_that_of_the_worst_shard_and_of_its_worst_topic() -> None:
    ends = SourceEnds()
    ends.note(100.0, offsets((10, 5), (10, 5)))
    ends.note(104.0, offsets((20, 6), (10, 5)))
    ends.note(110.0, offsets((30, 6), (10, 5)))
    ages = ends.ages(offsets((30, 5), (10, 5)), 111.0)
    assert (list(ages.shards), ages.worst_s, list(ages.lagging)) == ([11.0, 1.0], 11.0, [0]), (
        "new-items of shard 0 has lagged since the first look"
    )
    assert ends.ages(offsets((25, 6), (10, 5)), 111.0).shards == [7.0, 1.0]


def test_a_shard_without_events_stays_fresh_and_without_looks_its_age_grows() -> None:
    ends = SourceEnds()
    for second in range(1_000):
        ends.note(float(second), offsets((10, 5)))
    assert ends.ages(offsets((10, 5)), 999.5).worst_s == 0.5
    assert ends.ages(offsets((10, 5)), 1_050.0).worst_s == 51.0, "the broker is away: the last 51 s are unknown"


def test_an_age_that_no_look_shows_is_unknown_and_the_shard_is_named_once_it_is_old() -> None:
    ends = SourceEnds()
    assert ends.ages(offsets((0, 0)), 5.0).worst_s is None
    ends.note(5.0, offsets((10, 0), (0, 0)))
    young, old = (ends.ages(offsets((9, 0), (0, 0)), 5.0 + seconds) for seconds in (LAGGING_S / 2, LAGGING_S * 2))
    assert (young.worst_s, list(young.lagging), old.worst_s, list(old.lagging)) == (None, [], None, [0, 1])


def test_ends_of_a_topic_that_was_made_again_begin_anew() -> None:
    ends = SourceEnds()
    ends.note(1.0, offsets((10, 5)))
    ends.note(9.0, offsets((0, 0)))
    assert ends.ages(offsets((10, 5)), 10.0).worst_s == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60), st.integers(0, 200), st.data())
def test_an_age_is_never_below_the_true_one(arrivals: list[tuple[int, int]], lag: int, data: st.DataObject) -> None:
    """`arrivals`: records per second; the watermark includes what came up to `lag` seconds ago."""
    ends, total, at_second = SourceEnds(), 0, []
    for second, (records, _) in enumerate(arrivals):
        total += records
        at_second.append(total)
        ends.note(float(second), offsets((total, 0)))
    reached_at = max(0, len(arrivals) - 1 - lag)
    watermark, now = at_second[reached_at], float(len(arrivals) - 1)
    first_missing = next((second for second, end in enumerate(at_second) if end > watermark), None)
    true_age = 0.0 if first_missing is None else now - first_missing
    age = ends.ages(offsets((watermark, 0)), now).worst_s
    assert age is not None and age >= true_age and age <= true_age + 1


def test_old_looks_are_thinned_and_ages_stay_upper_bounds() -> None:
    ends = SourceEnds()
    for second in range(4 * KEPT):
        ends.note(float(second), offsets((second, 0)))
    now = float(4 * KEPT - 1)
    for reached in range(0, 4 * KEPT, 97):
        age = ends.ages(offsets((reached, 0)), now).worst_s
        assert age is None or now - reached <= age
    assert ends.ages(offsets((100, 0)), now).worst_s is not None and len(ends._looks) <= KEPT
