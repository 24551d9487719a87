"""Which numbers are sent again after a record of the topic."""

from schemas.statistics import Log, Measure, Statistic
from streams.statistics.counts import Change
from streams.statistics.side import USERS_SIDE, Side

USER, LATER = b"u", 1 << 40


def send(side: Side, at_ms: int, more: int) -> None:
    """Counts events and sends what they change."""
    counted = {Change(0, 0, USER): more}
    side.add(counted, counted)
    side.counts.clock_ms, number_SI = at_ms, side.counts.numbers()
    side.note_sent(side.choose(number_SI, 9)[0], number_SI)


def is_due(side: Side) -> bool:
    return len(side.choose(side.counts.numbers(), 9)[0]) > 0


def test_numbers_of_a_former_owner_that_come_after_ours_are_sent_again_and_late_records_of_ours_are_not() -> None:
    side = Side(USERS_SIDE, {"taken": Statistic(Log.BEHAVIOURS, Measure.EXACT)})
    send(side, 10, more=1)
    send(side, 20, more=2)
    assert side.place(USER, True, {"taken": 1.0}, 10, LATER) and not is_due(side), "the second record is still to be read"
    assert not side.place(USER, True, {"taken": 3.0}, 20, LATER) and not is_due(side)
    assert side.place(USER, True, {"taken": 2.0}, 15, LATER) and is_due(side), "compaction would keep the other owner's"
    send(side, 30, more=0)
    assert not is_due(side)
