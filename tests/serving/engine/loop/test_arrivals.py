"""Ages of what became visible, topic by topic; a load tells none."""

from serving.engine.loop.resident import KEPT, Arrivals

FEATURES, BOTH = {"item-features": 2, "new-items": 5}, {"item-features": 3, "new-items": 6}
START = {"item-features": 1, "new-items": 5}


def test_an_age_belongs_to_the_topics_that_moved() -> None:
    arrivals = Arrivals(lambda: 100.0)
    arrivals.note(0, {}, START, 90_000)
    arrivals.note(0, START, FEATURES, 99_500)
    arrivals.note(0, FEATURES, BOTH, 99_750)
    assert arrivals.take() == [("item-features", 0.5), ("item-features", 0.25), ("new-items", 0.25)]
    assert arrivals.take() == []


def test_the_first_record_of_a_partition_an_older_and_a_repeated_one_say_nothing() -> None:
    arrivals = Arrivals(lambda: 100.0)
    arrivals.note(0, START, FEATURES, 99_000)
    arrivals.note(0, FEATURES, BOTH, 98_000)
    arrivals.note(0, FEATURES, BOTH, 99_000)
    arrivals.note(1, START, FEATURES, 99_900)
    assert arrivals.take() == []


def test_a_publisher_s_clock_that_is_ahead_counts_as_now() -> None:
    arrivals = Arrivals(lambda: 100.0)
    arrivals.note(0, {}, START, 1)
    arrivals.note(0, START, FEATURES, 900_000)
    assert arrivals.take() == [("item-features", 0.0)]


def test_what_nobody_asks_for_is_bounded() -> None:
    arrivals = Arrivals(lambda: 100.0)
    for n in range(KEPT + 100):
        arrivals.note(0, START, FEATURES, n)
    assert len(arrivals.take()) == KEPT
