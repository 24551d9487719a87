"""A server says that topics of its index are gone, though a consumer of one hears nothing."""

import pytest

from infra.kafka.admin import GROW, apply_topics, describe_index
from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.ids import IdKind
from schemas.topics import INDEX_DELTAS
from serving.topic_watch import TopicWatch
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
