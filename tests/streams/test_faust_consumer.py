"""Runs of records in place of records: nothing is lost or moved, and what the group is told. How they get to agents: test_faust_shell.py."""

from collections import defaultdict
from types import SimpleNamespace

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.faust_consumer import _RUN_RECORDS_MAX, RunConsumer, RunsInTurn

FEW, MANY = TP("few", 0), TP("many", 1)


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 3 * _RUN_RECORDS_MAX), max_size=6))
def test_every_record_leaves_once_in_its_partitions_order(counts: dict[int, int]) -> None:
    fetched = {TP("t", partition): list(range(count)) for partition, count in counts.items()}
    left: dict[TP, list[int]] = defaultdict(list)
    for tp, run in RunsInTurn().iterate(fetched):
        assert 0 < len(run) <= _RUN_RECORDS_MAX
        left[tp] += run
    assert left == {tp: records for tp, records in fetched.items() if records}


def test_partitions_take_turns() -> None:
    runs = RunsInTurn().iterate({MANY: list(range(3 * _RUN_RECORDS_MAX)), FEW: [7]})
    assert [tp for tp, _ in runs] == [MANY, FEW, MANY, MANY]


def test_the_group_goes_on_behind_the_last_run_that_was_acked_and_is_told_once() -> None:
    consumer = SimpleNamespace(_acked=defaultdict(list, {MANY: [249, 499, 503]}), _acked_index=defaultdict(set, {MANY: {249, 499, 503}}))
    assert RunConsumer._new_offset(consumer, MANY) == 504  # type: ignore[arg-type]
    assert RunConsumer._new_offset(consumer, MANY) is None  # type: ignore[arg-type]
    assert RunConsumer._new_offset(consumer, FEW) is None  # type: ignore[arg-type]
    assert not consumer._acked_index[MANY]
