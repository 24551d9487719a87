"""The local broker as a process: real Kafka, started, killed, restarted, refused."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from infra.broker.record import RECORD_NAME, is_held, read_record, recorded_address
from infra.broker.server import answers, start_broker, stop_broker
from infra.kafka.admin_client import EndReader
from infra.kafka.reader import TopicFollower
from infra.processes import wait_until
from schemas.errors import Incompatible, Misconfigured
from tests.infra.kafka.ends import read_ends


def _publish(bootstrap_servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def _read_all(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def _follow(follower: TopicFollower, count: int) -> list[bytes | None]:
    """Without a deadline of its own: how long a broker takes to start and to answer depends on the machine. The test's timeout ends it."""
    values: list[bytes | None] = []
    while len(values) < count:
        values += [record.value for record in follower.poll(100, 0.2)]
    return values


@pytest.mark.timeout(600)
def test_a_killed_broker_comes_back_at_its_address_with_its_data_for_those_who_follow_it_and_refuses_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.kafka.admin_client.REOPEN_S", 1e9)
    broker = start_broker(tmp_path / "data")
    try:
        address = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": address})  # held: a client that is collected aborts what it was asked
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
        _publish(address, "kept", b"before")
        with pytest.raises(Incompatible, match=str(broker.record.pid)):
            start_broker(tmp_path / "data")
        ends = EndReader(address)
        with TopicFollower(address, "kept", {0: 0}) as follower:
            assert _follow(follower, 1) == [b"before"]
            assert read_ends(ends, "kept", 1) == [1]
            broker.kill()
            assert not is_held(tmp_path / "data") and follower.poll(10, 0.2) == []
            broker = start_broker(tmp_path / "data")
            assert broker.bootstrap_servers == address
            _publish(address, "kept", b"after")
            assert _follow(follower, 1) == [b"after"]
            assert read_ends(ends, "kept", 1) == [2]
        assert _read_all(address, "kept", 2) == [b"before", b"after"]
    finally:
        broker.stop()
    assert not is_held(tmp_path / "data")


@pytest.mark.timeout(600)
def test_a_follower_takes_nothing_from_another_cluster_that_answers_at_the_address_and_goes_on_when_its_own_is_back(tmp_path: Path) -> None:
    """Of a topic that the other cluster does not have, it says so."""
    other = start_broker(tmp_path / "other")
    address = other.bootstrap_servers
    try:
        _make_topic(address, [b"x", b"y", b"z"])
        other.stop()
        (tmp_path / "own").mkdir()
        shutil.copy(tmp_path / "other" / RECORD_NAME, tmp_path / "own")  # so that it has the same ports
        own = start_broker(tmp_path / "own")
        assert own.bootstrap_servers == address
        topic_id, only_id = _make_topic(address, [b"a"]), _make_topic(address, [b"c"], "only-here")
        with (
            TopicFollower(address, "same", {0: 0}, topic_id=topic_id) as follower,
            TopicFollower(address, "only-here", {0: 0}, topic_id=only_id) as of_what_is_gone,
        ):
            assert _follow(follower, 1) == [b"a"] and _follow(of_what_is_gone, 1) == [b"c"]
            own.stop()
            other = start_broker(tmp_path / "other")
            with pytest.raises(Incompatible, match="another cluster"):
                _follow(follower, 1)
            assert follower.positions == {0: 1}
            with pytest.raises(Incompatible, match="topic_gone"):
                _follow(of_what_is_gone, 1)
        with TopicFollower(address, "same", {0: 1}, topic_id=topic_id) as follower, pytest.raises(Incompatible, match="other_topic"):
            _follow(follower, 1)
        other.stop()
        own = start_broker(tmp_path / "own")
        _publish(address, "same", b"b")
        with TopicFollower(address, "same", {0: 1}, topic_id=topic_id) as follower:
            assert _follow(follower, 1) == [b"b"]
    finally:
        other.stop()
        own.stop()


def _make_topic(address: str, values: Sequence[bytes], name: str = "same") -> str:
    """A topic with these records; its id."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    for value in values:
        _publish(address, name, value)
    return str(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)


@pytest.mark.timeout(180)
def test_a_detached_broker_outlives_its_starter_and_is_found_and_stopped_by_others(tmp_path: Path) -> None:
    code = "import sys, pathlib; from infra.broker.server import start_broker; start_broker(pathlib.Path(sys.argv[1]), detach=True)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=True)
    try:
        assert answers(recorded_address(tmp_path / "data"))
    finally:
        stopped = stop_broker(tmp_path / "data")
    assert stopped is not None
    record = read_record(tmp_path / "data")
    assert record is not None and not record.ready
    with pytest.raises(Misconfigured, match="aif broker start"):
        recorded_address(tmp_path / "data")
    assert recorded_address(tmp_path / "data", running=False) == record.bootstrap_servers, "where it will be again"
    assert stop_broker(tmp_path / "data") is None


@pytest.mark.timeout(180)
def test_a_broker_that_is_not_detached_dies_with_its_starter_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; from infra.broker.server import start_broker; start_broker(pathlib.Path(sys.argv[1])); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "data")])
    try:
        wait_until(lambda: read_record(tmp_path / "data") is not None, 120, "the broker's process")
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_until(lambda: not is_held(tmp_path / "data"), 30, "the broker to end")


def test_a_directory_without_a_broker_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="aif broker start"):
        recorded_address(tmp_path)
    with pytest.raises(Misconfigured, match="aif broker start"):
        recorded_address(tmp_path, running=False)
    assert stop_broker(tmp_path) is None


def test_the_shared_broker_answers_and_listens_on_loopback_only(bootstrap_servers: str) -> None:
    assert answers(bootstrap_servers, 10)
    if not os.environ.get("AIF_KAFKA__BOOTSTRAP_SERVERS"):
        folder = Path(os.environ["TEST_BROKER_FOLDER"], "broker")
        record = read_record(folder)
        assert record is not None
        assert _listening_addresses({record.port, record.controller_port}) == {"loopback"}


def _listening_addresses(ports: set[int]) -> set[str]:
    """Where the given ports listen, from the kernel's tables (IPv4 and IPv4 mapped into IPv6)."""
    loopback = ("0100007F", "0000000000000000FFFF00000100007F")
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) in ports:
                found.add("loopback" if address in loopback else address)
    return found
