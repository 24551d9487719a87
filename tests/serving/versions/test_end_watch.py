"""Looks at a real broker's ends."""

from confluent_kafka import Producer

from infra.kafka.admin import apply_topics
from infra.kafka.admin_client import EndReader
from infra.kafka.security import KafkaTopics
from infra.processes import wait_until
from schemas.topics import ITEM_FEATURES
from serving.versions.freshness import EndWatch
from tests.infra.kafka.ends import read_ends


def test_rows_at_the_ends_are_fresh_and_a_shard_with_a_record_that_they_lack_is_named(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 1)
    watch, empty = EndWatch(KafkaTopics(bootstrap_servers, topic_prefix)), [{}, {}]
    assert watch.ages(empty).worst_s is None
    watch.start(2)
    try:
        wait_until(lambda: watch.ages(empty).worst_s is not None, 30, "the first look")
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        producer.produce(topic_prefix + ITEM_FEATURES, b"{}", partition=1)
        assert producer.flush(30) == 0
        wait_until(lambda: watch.ages(empty).lagging == [1], 30, "the shard that lags")
        assert watch.ages([{}, {"item-features": 1}]).lagging == []
    finally:
        watch.close()


def test_a_record_of_an_open_transaction_is_beyond_the_end(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 1)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic_prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_prefix + ITEM_FEATURES, b"{}", partition=1)
    assert producer.flush(30) == 0
    reader = EndReader(bootstrap_servers)
    assert read_ends(reader, topic_prefix + ITEM_FEATURES, 2) == [0, 0]
    producer.commit_transaction(30)
    wait_until(lambda: read_ends(reader, topic_prefix + ITEM_FEATURES, 2) == [0, 2], 30, "the end behind the transaction's marker")
