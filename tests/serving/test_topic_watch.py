"""A server says that topics of its index are gone, though a consumer of one hears nothing."""

import gc

import pytest
from confluent_kafka import Uuid

from infra.kafka.admin import GROW, IDENTITY_TOPICS, apply_topics, describe_index
from infra.kafka.security import KafkaTopics
from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.ids import IdKind
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES
from serving.topic_watch import TopicWatch
from serving.versions.freshness import EndWatch
from tests.infra.kafka.deleted_topics import delete_topics


def test_deleted_and_remade_deltas_are_named_with_a_remedy_that_keeps_the_index(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    index, metrics = describe_index(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64), Metrics()
    watch = TopicWatch(bootstrap_servers, topic_prefix, index, metrics, every_s=0.05)
    watch.start()
    delete_topics(bootstrap_servers, [topic_prefix + INDEX_DELTAS])
    wait_until(lambda: watch.last_error != "", 20, "the reason")
    assert watch.last_error.startswith(f"topic_gone: the broker has no {topic_prefix}{INDEX_DELTAS} any more")
    assert "topics apply" not in watch.last_error and "new index" in watch.last_error
    assert metrics.registry.get_sample_value("aif_topics_gone") == 1
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    wait_until(lambda: watch.last_error.startswith("other_topic"), 20, "the topic that is another one")
    assert not watch.has_lost_items
    watch.close()


def test_rows_are_not_called_fresh_where_an_item_topic_was_made_again(bootstrap_servers: str, topic_prefix: str) -> None:
    """They were beyond its end, and so called up to date, for as long as no worker brought any change."""
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    index, kafka = describe_index(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64), KafkaTopics(bootstrap_servers, topic_prefix)
    watch, ends = TopicWatch(bootstrap_servers, topic_prefix, index, Metrics(), every_s=0.05), EndWatch(kafka)
    ends.is_lost = lambda: watch.has_lost_items
    watermark = [{"item-features": 9, "new-items": 9}]
    try:
        watch.start()
        ends.start(1)
        wait_until(lambda: ends.ages(watermark).worst_s is not None, 20, "a look")
        delete_topics(bootstrap_servers, [topic_prefix + ITEM_FEATURES])
        apply_topics(bootstrap_servers, topic_prefix, 1, 1)
        wait_until(lambda: watch.last_error.startswith("other_topic"), 20, "the topic that is another one")
        assert watch.has_lost_items and ends.ages(watermark).worst_s is None
    finally:
        ends.close()
        watch.close()


def test_partitions_that_somebody_added_to_an_item_topic_are_named_once(
    bootstrap_servers: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    watch = TopicWatch(
        bootstrap_servers, topic_prefix, describe_index(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64), Metrics(), every_s=0.05
    )
    watch.start()
    apply_topics(bootstrap_servers, topic_prefix, 2, 1, allow=[GROW])
    wait_until(lambda: "other_partitions" in watch.last_error, 20, "the surplus partitions to be named")
    watch.close()
    assert caplog.text.count("other_partitions") == 1


def test_a_look_leaves_little_in_memory(bootstrap_servers: str, topic_prefix: str) -> None:
    """The client never frees the ids of topics that it was asked for: of all 17 topics, 1.2 MiB an hour."""

    def count() -> int:
        return sum(type(one) is Uuid for one in gc.get_objects())

    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    index = describe_index(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64)
    watch = TopicWatch(bootstrap_servers, topic_prefix, index, Metrics())
    watch._look()  # the first one asks for rights too
    before = count()
    for _ in range(10):
        assert watch._look() == ""
    assert count() - before <= 10 * len(IDENTITY_TOPICS)
