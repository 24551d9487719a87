"""A group does not wait for a member that was killed, once the next process of its directory has left in its name."""

from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from infra.kafka.group_member import MEMBER_NAME, end_former_member, keep_member
from infra.processes import wait_until

WAIT_S = 60.0


def test_a_member_whose_id_was_kept_is_ended_once(bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> None:
    topic = group = topic_prefix + "t"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "session.timeout.ms": 45_000})
    consumer.subscribe([topic])

    def members() -> set[str]:
        found = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return {member.member_id for member in found.members}

    def has_joined() -> bool:
        consumer.poll(0.1)
        return bool(consumer.memberid()) and consumer.memberid() in members()

    try:
        wait_until(has_joined, WAIT_S, "the consumer to join")
        killed = consumer.memberid()
        assert isinstance(killed, str)
        keep_member(tmp_path / "faust", killed)
        end_former_member(bootstrap_servers, group, tmp_path / "faust")
        assert killed not in members()
        assert not (tmp_path / "faust" / MEMBER_NAME).exists()
    finally:
        consumer.close()


def test_without_an_id_or_a_broker_the_start_goes_on(tmp_path: Path) -> None:
    end_former_member("127.0.0.1:9", "g", tmp_path)
    keep_member(tmp_path, "gone")
    end_former_member("127.0.0.1:9", "g", tmp_path)
    assert not (tmp_path / MEMBER_NAME).exists()
