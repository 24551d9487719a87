"""A server says that topics of its index are gone, though a consumer of one hears nothing."""

from infra.kafka.admin import apply_topics, describe_index
from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.ids import IdKind
from schemas.topics import INDEX_DELTAS
from serving.topic_watch import TopicWatch
from tests.infra.kafka.deleted_topics import delete_topics


def test_deleted_and_remade_deltas_are_named_with_a_remedy_that_keeps_the_index(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    known, metrics = describe_index(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64).topic_ids, Metrics()
    watch = TopicWatch(bootstrap_servers, topic_prefix, known, metrics, every_s=0.05)
    watch.start()
    delete_topics(bootstrap_servers, [topic_prefix + INDEX_DELTAS])
    wait_until(lambda: watch.last_error != "", 20, "the reason")
    assert watch.last_error.startswith(f"topic_gone: the broker has no {topic_prefix}{INDEX_DELTAS} any more")
    assert "topics apply" not in watch.last_error and "new index" in watch.last_error
    assert metrics.registry.get_sample_value("aif_topics_gone") == 1
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    wait_until(lambda: watch.last_error.startswith("other_topic"), 20, "the topic that is another one")
    watch.close()
