"""Runs of records instead of records: nothing is lost or moved, and the group gets the right offsets. How they get to agents: test_faust_shell.py."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest
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


@pytest.mark.parametrize(("takes", "asked"), [({FEW, MANY}, {FEW, MANY}), ({FEW}, {FEW}), (set(), None)])
def test_what_is_not_taken_yet_is_not_fetched(takes: set[TP], asked: set[TP] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[set[TP], float]] = []

    async def fetch(_: object, partitions: set[TP], timeout_s: float) -> dict[TP, list[int]]:
        fetched.append((partitions, timeout_s))
        return {tp: [1] for tp in partitions}

    monkeypatch.setattr("faust.transport.drivers.aiokafka.Consumer._getmany", fetch)
    consumer = object.__new__(RunConsumer)
    consumer._thread = SimpleNamespace(_consumer=None)  # type: ignore[assignment]
    consumer.app = SimpleNamespace(takes=lambda tp: tp in takes)  # type: ignore[assignment]
    assert asyncio.run(consumer._getmany({FEW, MANY}, 1.0)) == {tp: [1] for tp in asked or ()}
    assert [partitions for partitions, _ in fetched] == ([] if asked is None else [asked])
    assert all(timeout_s == 1.0 or (len(takes) < 2 and timeout_s < 0.1) for _, timeout_s in fetched), "it looks soon whether more is taken"


def test_what_came_over_a_new_connection_waits_until_the_topics_were_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def fetch(*_: object) -> dict[TP, list[int]]:
        order.append("fetched")
        return {FEW: [1]}

    async def compare() -> None:
        order.append("compared")

    monkeypatch.setattr("faust.transport.drivers.aiokafka.Consumer._getmany", fetch)
    consumer, connections = object.__new__(RunConsumer), {1: "first"}
    consumer._thread = SimpleNamespace(_consumer=SimpleNamespace(_client=SimpleNamespace(_conns=connections)))  # type: ignore[assignment]
    consumer.app = SimpleNamespace(takes=lambda tp: True, compare_topics=compare)  # type: ignore[assignment]

    async def get() -> None:
        assert await consumer._getmany({FEW}, 1.0) == {FEW: [1]}

    asyncio.run(get())
    asyncio.run(get())
    connections[1] = "second"
    asyncio.run(get())
    assert order == ["fetched", "compared", "fetched", "fetched", "compared"]


def test_the_group_goes_on_behind_the_last_run_that_was_acked_and_is_told_once() -> None:
    consumer = SimpleNamespace(_acked=defaultdict(list, {MANY: [249, 499, 503]}), _acked_index=defaultdict(set, {MANY: {249, 499, 503}}))
    assert RunConsumer._new_offset(consumer, MANY) == 504  # type: ignore[arg-type]
    assert RunConsumer._new_offset(consumer, MANY) is None  # type: ignore[arg-type]
    assert RunConsumer._new_offset(consumer, FEW) is None  # type: ignore[arg-type]
    assert not consumer._acked_index[MANY]
