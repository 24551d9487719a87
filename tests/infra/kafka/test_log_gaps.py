"""Offsets without a record, on the broker: what transactions took is known, what the log lost is not taken for it. Readers: test_reader.py."""

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra.kafka.admin import end_offsets
from infra.kafka.log_gaps import LogGaps, with_skipped_offsets
from infra.kafka.reader import TopicFollower, read_topic
from infra.processes import wait_until
from schemas.errors import Unavailable
from tests.infra.kafka.transactions import WAIT_S, open_transactional, send


@pytest.fixture
def mixed(bootstrap_servers: str, topic_prefix: str) -> str:
    """A prefix whose topic `log` has records at 0, 5, 6 and 8; markers and aborted records between them and up to 12."""
    topic = topic_prefix + "log"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    first, second = (open_transactional(bootstrap_servers, topic + name) for name in "ab")
    plain = Producer({"bootstrap.servers": bootstrap_servers})

    def wait_for_end(offset: int) -> None:
        """A commit returns before its marker is in the log."""
        wait_until(lambda: end_offsets(bootstrap_servers, topic) == {0: offset}, WAIT_S, f"the marker before {offset}")

    send(first, topic, b"0", commit=True)
    wait_for_end(2)
    send(second, topic, b"2", b"3", commit=False)
    wait_for_end(5)
    send(first, topic, b"5", b"6", commit=True)
    wait_for_end(8)
    plain.produce(topic, b"8", partition=0)
    assert plain.flush(WAIT_S) == 0
    send(first, topic, b"9", b"10", commit=False)
    wait_for_end(12)
    return topic_prefix


def test_committed_records_and_ends_are_those_that_readers_see(bootstrap_servers: str, mixed: str) -> None:
    read = list(read_topic(bootstrap_servers, "log", prefix=mixed, stall_s_max=WAIT_S))
    assert [(r.offset, r.value) for r in read] == [(at, b"%d" % at) for at in (0, 5, 6, 8)]
    assert end_offsets(bootstrap_servers, mixed + "log") == {0: 12}
    every = list(with_skipped_offsets(read, bootstrap_servers, mixed, "log", 0, 0, 12))
    assert [r.offset for r in every] == list(range(12))
    assert {r.offset for r in every if not r.skipped} == {0, 5, 6, 8}


def test_an_open_transaction_ends_the_log_for_readers_until_it_is_over(bootstrap_servers: str, mixed: str) -> None:
    topic = mixed + "log"
    producer = open_transactional(bootstrap_servers, topic + "open")
    producer.begin_transaction()
    producer.produce(topic, b"12", partition=0)
    producer.flush(WAIT_S)
    assert end_offsets(bootstrap_servers, topic) == {0: 12}
    assert end_offsets(bootstrap_servers, topic, open_too=True) == {0: 13}
    with TopicFollower(bootstrap_servers, "log", {0: 9}, prefix=mixed) as follower:
        wait_until(lambda: follower.poll(timeout_s=0.1) == [] and follower.has_reached({0: 12}), WAIT_S, "the end")
        assert follower.positions == {0: 12}
        open_transactional(bootstrap_servers, topic + "open")  # aborts it
        wait_until(lambda: end_offsets(bootstrap_servers, topic) == {0: 14}, WAIT_S, "the marker")
        wait_until(lambda: follower.poll(timeout_s=0.1) == [] and follower.has_reached({0: 14}), WAIT_S, "the new end")


def test_offsets_that_no_transaction_took_are_named(bootstrap_servers: str, mixed: str) -> None:
    topic = TopicPartition(mixed + "log", 0, 4)
    with LogGaps(bootstrap_servers) as gaps:
        assert gaps.skipped_to(topic.topic, 0, 1, 5) == 5
        assert gaps.skipped_to(topic.topic, 0, 7, 9) == 8, "a plain record at 8"
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.delete_records([topic])[topic].result(WAIT_S)
        assert gaps.skipped_to(topic.topic, 0, 1, 5) == 1, "the log begins at 4"
    with LogGaps("127.0.0.1:1", deadline_s=0) as gaps, pytest.raises(Unavailable, match="kafka_failed"):
        gaps.skipped_to(topic.topic, 0, 1, 2)
