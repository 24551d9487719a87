"""Reading outside a group: exact bounds, own positions, no silent jumps. That a follower outlives a broker: tests/infra/broker/test_server.py."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from aiokafka.producer import message_accumulator, producer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import SourceRecord, TopicFollower, read_topic
from infra.kafka.security import client_config
from infra.processes import wait_until
from schemas.errors import Incompatible, Unavailable
from tests.infra.kafka.empty_broker import EmptyBroker, open_empty_broker
from tests.infra.kafka.transactions import open_transactional, send

TOPIC = "numbers"


def _create(bootstrap: str, name: str, partitions: int, **config: str) -> None:
    named = {k.replace("_", "."): v for k, v in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures fail when it is collected
    admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(Unavailable):
            if len(end_offsets(bootstrap, name, deadline_s=1)) == partitions:
                return


@pytest.fixture
def numbers(bootstrap_servers: str, topic_prefix: str) -> str:
    """Two partitions, 100 records each."""
    _create(bootstrap_servers, topic_prefix + TOPIC, 2)
    _produce(bootstrap_servers, topic_prefix + TOPIC, range(100), (0, 1))
    return topic_prefix


def _produce(bootstrap: str, topic: str, values: range, partitions: tuple[int, ...]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for i in values:
        for partition in partitions:
            producer.produce(topic, str(i).encode(), f"key-{i}".encode(), partition, headers=[("h", b"1")])
    assert producer.flush(30) == 0


def _poll_until(follower: TopicFollower, enough: Callable[[list[SourceRecord]], bool]) -> list[SourceRecord]:
    records: list[SourceRecord] = []
    deadline = time.monotonic() + 60
    while not enough(records):
        assert time.monotonic() < deadline, f"{len(records)} records only, positions {follower.positions}"
        records += follower.poll(100, 0.2)
    return records


class NotUtf8(str):
    """A header's name with bytes of its own."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"\xff"


def test_a_broker_that_takes_a_second_to_say_what_a_topic_is_is_followed(
    bootstrap_servers: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try opens a connection of its own. If none was given the time, no record ever came, and nothing said why."""

    def answer_slowly(*_: object, deadline_s: float) -> None:
        if deadline_s < 1.0:
            raise Unavailable("kafka_unreachable", "timed out")

    monkeypatch.setattr("infra.kafka.reader.check_topic_id", answer_slowly)
    with TopicFollower(bootstrap_servers, TOPIC, {0: 0}, prefix=numbers, topic_id="its id") as follower:
        assert len(_poll_until(follower, lambda records: len(records) >= 100)) == 100


def test_records_of_a_topic_that_is_gone_when_its_id_is_asked_for_are_not_waited_for(
    bootstrap_servers: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster answers at the address. Records of the former one wait for the id of a topic that this one does not have."""

    def find_none(*_: object, deadline_s: float) -> None:
        raise Unavailable("unknown_topic", f"none within {deadline_s} s")

    monkeypatch.setattr("infra.kafka.reader.check_topic_id", find_none)
    with TopicFollower(bootstrap_servers, TOPIC, {0: 0}, prefix=numbers, topic_id="its id") as follower:
        with pytest.raises(Incompatible, match="topic_gone"):
            _poll_until(follower, bool)
        assert follower.positions == {0: 0}


def test_a_record_with_a_header_name_that_is_not_utf8_is_read_without_headers(
    bootstrap_servers: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (message_accumulator, producer):
        monkeypatch.setattr(module, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)

    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as sender:
            await sender.send_and_wait(numbers + TOPIC, b"odd", partition=0, headers=[("good", b"1"), (NotUtf8("?"), b"2")])

    asyncio.run(produce())
    records = [r for r in read_topic(bootstrap_servers, TOPIC, prefix=numbers) if r.partition == 0]
    assert [r.value for r in records[-2:]] == [b"99", b"odd"] and records[-1].headers == () and records[-2].headers


def test_a_bounded_read_gives_every_record_of_every_partition_once_in_order(bootstrap_servers: str, numbers: str) -> None:
    records = list(read_topic(bootstrap_servers, TOPIC, prefix=numbers))
    for partition in (0, 1):
        of_partition = [r for r in records if r.partition == partition]
        assert [r.offset for r in of_partition] == list(range(100))
        assert [r.value for r in of_partition] == [str(i).encode() for i in range(100)]
    first = records[0]
    assert (first.topic, first.headers, first.key) == (TOPIC, (("h", b"1"),), b"key-0")
    assert first.timestamp_ms > 0


def test_a_bounded_read_keeps_to_its_bounds_though_more_records_follow(bootstrap_servers: str, numbers: str) -> None:
    records = list(read_topic(bootstrap_servers, TOPIC, start={0: 10, 1: 99}, end={0: 20, 1: 100}, prefix=numbers))
    assert sorted((r.partition, r.offset) for r in records) == [(0, i) for i in range(10, 20)] + [(1, 99)]
    assert list(read_topic(bootstrap_servers, TOPIC, start={0: 5}, end={0: 5}, prefix=numbers)) == []
    assert {r.partition for r in read_topic(bootstrap_servers, TOPIC, end={1: 3}, prefix=numbers)} == {1}


def test_a_topic_without_records_is_read_at_once(bootstrap_servers: str, topic_prefix: str) -> None:
    _create(bootstrap_servers, topic_prefix + "empty", 1)
    assert list(read_topic(bootstrap_servers, "empty", prefix=topic_prefix)) == []


def test_a_bounded_read_ends_where_the_last_offsets_are_transaction_markers(bootstrap_servers: str, topic_prefix: str) -> None:
    topic = topic_prefix + "markers"
    _create(bootstrap_servers, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"x")
        producer.commit_transaction(60)
    wait_until(
        lambda: end_offsets(bootstrap_servers, topic) == {0: 6}, 60, "the last marker, which the broker writes after it has answered"
    )
    assert [r.offset for r in read_topic(bootstrap_servers, "markers", prefix=topic_prefix, stall_s_max=20)] == [0, 2, 4]
    with TopicFollower(bootstrap_servers, "markers", {0: 0}, prefix=topic_prefix) as follower:
        _poll_until(follower, lambda _: follower.has_reached({0: 6}))
        assert follower.positions == {0: 6}


def test_a_follower_gives_no_record_of_an_aborted_transaction_and_passes_its_offsets(bootstrap_servers: str, topic_prefix: str) -> None:
    topic = topic_prefix + "aborted"
    _create(bootstrap_servers, topic, 1)
    producer = open_transactional(bootstrap_servers, topic)
    send(producer, topic, b"0", b"1", commit=False)
    send(producer, topic, b"3", commit=True)
    with TopicFollower(bootstrap_servers, "aborted", {0: 0}, prefix=topic_prefix) as follower:
        found = _poll_until(follower, lambda _: follower.has_reached({0: 5}))
        assert [(r.offset, r.value) for r in found] == [(3, b"3")] and follower.positions == {0: 5}


def test_a_bounded_read_ends_where_the_end_was_removed_from_the_middle_of_the_log(bootstrap_servers: str, numbers: str) -> None:
    """The wanted end lies inside the log and the record before it is gone with everything older: the range is refused, not shortened."""
    from confluent_kafka import TopicPartition

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records([TopicPartition(numbers + TOPIC, 0, 40)]).values():
        future.result(30)
    assert start_offsets(bootstrap_servers, numbers + TOPIC)[0] == 40
    with pytest.raises(Incompatible, match="partition 0: wanted 0 to 100, the log holds 40 to 100"):
        next(
            read_topic(bootstrap_servers, TOPIC, start={0: 0, 1: 0}, end={0: 100, 1: 100}, prefix=numbers)
        )  # before it gives any of the other's
    assert [r.offset for r in read_topic(bootstrap_servers, TOPIC, end={0: 100}, prefix=numbers)] == list(range(40, 100))
    with (
        TopicFollower(bootstrap_servers, TOPIC, {0: 0}, prefix=numbers) as follower,
        pytest.raises(Incompatible, match="offset_gone"),
    ):
        _poll_until(follower, bool)


def test_a_range_beyond_the_log_is_refused(bootstrap_servers: str, numbers: str) -> None:
    for start, end in (({0: 0}, {0: 101}), ({5: 0}, {5: 1})):
        with pytest.raises(Incompatible, match="offset_gone"):
            list(read_topic(bootstrap_servers, TOPIC, start=start, end=end, prefix=numbers))


def test_a_bounded_read_that_gets_nowhere_says_where_it_stands(
    bootstrap_servers: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a broker that died after the range was planned."""
    monkeypatch.setattr(TopicFollower, "poll", lambda *_: [])
    with pytest.raises(Unavailable, match=r"read_stalled: .* stands at {0: 7}, wanted {0: 100}, no progress for 0\.1 s"):
        list(read_topic(bootstrap_servers, TOPIC, start={0: 7}, end={0: 100}, prefix=numbers, stall_s_max=0.1))


class Given:
    """What librdkafka hands over: a record, or an error."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._error = offset, None if code is None else KafkaError(code)

    def __getattr__(self, name: str) -> Callable[[], Any]:
        found = {"partition": 0, "offset": self._offset, "error": self._error, "timestamp": (0, -1)}
        return lambda: found.get(name)


def test_an_error_behind_records_is_told_by_the_next_poll(bootstrap_servers: str, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [[Given(7), Given(8), Given(9, KafkaError._AUTO_OFFSET_RESET)]]
    with TopicFollower(bootstrap_servers, TOPIC, {0: 7}, prefix=numbers) as follower:
        monkeypatch.setattr(follower, "_fetch", lambda *_: given.pop() if given else [])
        assert [r.offset for r in follower.poll()] == [7, 8] and follower.positions == {0: 9}
        with pytest.raises(Incompatible, match="offset_gone"):
            follower.poll()
        assert follower.poll() == [], "it is told once"


def test_a_follower_gives_what_is_there_and_then_what_comes_and_knows_its_position(bootstrap_servers: str, numbers: str) -> None:
    with TopicFollower(bootstrap_servers, TOPIC, {0: 90, 1: 100}, prefix=numbers) as follower:
        first = _poll_until(follower, lambda _: follower.has_reached({0: 100, 1: 100}))
        assert [r.offset for r in first] == list(range(90, 100))
        _produce(bootstrap_servers, numbers + TOPIC, range(100, 103), (1,))
        more = _poll_until(follower, lambda records: len(records) == 3)
        assert [(r.partition, r.offset) for r in more] == [(1, 100), (1, 101), (1, 102)]
        assert follower.positions == {0: 100, 1: 103}
        follower.seek(1, 101)
        again = _poll_until(follower, lambda records: len(records) == 2)
        assert [(r.partition, r.offset) for r in again] == [(1, 101), (1, 102)]


def test_a_follower_of_an_offset_outside_the_log_says_so_and_does_not_jump(bootstrap_servers: str, numbers: str) -> None:
    with (
        TopicFollower(bootstrap_servers, TOPIC, {0: 5000}, prefix=numbers) as follower,
        pytest.raises(Incompatible, match="offset_gone"),
    ):
        _poll_until(follower, bool)


def test_a_follower_of_a_topic_that_does_not_exist_says_so(bootstrap_servers: str, topic_prefix: str) -> None:
    with (
        TopicFollower(bootstrap_servers, "nothing", {0: 0}, prefix=topic_prefix) as follower,
        pytest.raises(Incompatible, match="topic_gone"),
    ):
        _poll_until(follower, bool)


@pytest.mark.timeout(300)
def test_a_follower_that_was_told_of_no_broker_finds_its_broker_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `rebootstrap` the client always loses its last broker; with it, sometimes."""
    monkeypatch.setattr("infra.kafka.reader._SILENT_S_MAX", 0.1)
    monkeypatch.setattr("infra.kafka.reader.REOPEN_S", 1.0)
    monkeypatch.setattr(
        "infra.kafka.reader.client_config", lambda *arguments: {**client_config(*arguments), "metadata.recovery.strategy": "none"}
    )

    def follow_until_asked_again(follower: TopicFollower, broker: EmptyBroker) -> None:
        before, until_s = broker.asked, time.monotonic() + 30.0
        while broker.asked == before:
            assert time.monotonic() < until_s
            follower.poll(1, 0.1)

    with open_empty_broker("listed") as broker, TopicFollower(broker.bootstrap_servers, "listed", {0: 0}) as follower:
        for is_listed in (True, True, False, False, True, True):
            broker.is_listed = is_listed
            follow_until_asked_again(follower, broker)


@pytest.mark.timeout(120)
def test_a_follower_of_a_slow_broker_keeps_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client would begin again with the slow connection."""
    monkeypatch.setattr("infra.kafka.reader._SILENT_S_MAX", 0.1)
    monkeypatch.setattr("infra.kafka.reader.REOPEN_S", 0.5)
    with open_empty_broker("slow") as broker, TopicFollower(broker.bootstrap_servers, "slow", {0: 0}) as follower:
        until_s = time.monotonic() + 30.0
        while broker.asked < 3:
            assert time.monotonic() < until_s
            follower.poll(1, 0.1)
        broker.delay_s, before, until_s = 2.0, broker.clients, time.monotonic() + 4.0
        while time.monotonic() < until_s:
            follower.poll(1, 0.1)
        assert broker.clients == before
