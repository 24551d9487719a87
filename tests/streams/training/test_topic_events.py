"""What training reads from a real broker: every good event, and a count of the bad ones."""

import pytest
from confluent_kafka import Producer

from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from schemas.ids import IdKind
from streams.training.topic_events import TopicEvents
from tests.streams.training.shop import shop


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_every_good_event_is_read_in_log_order_and_bad_ones_are_counted(bootstrap_servers: str, topic_prefix: str, kind: IdKind) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    _, events = shop(kind)
    with Publisher(bootstrap_servers, topic_prefix, "test", 2, 2, kind) as publisher:
        publisher.publish_items(events.items)
        publisher.publish_new_items(events.new_items)
        publisher.publish_users(events.users)
        publisher.publish_behaviours(events.behaviours)
        publisher.publish_impressions(events.impressions)
        publisher.publish_user(events.users[0].user_id, None)
    raw = Producer({"bootstrap.servers": bootstrap_servers})
    for topic in ("item-features", "impressions", "user-behaviours"):
        raw.produce(topic_prefix + topic, b"\xff not json")
    assert raw.flush(30) == 0
    topics = TopicEvents(bootstrap_servers, topic_prefix, 2, 2, kind)
    read = topics.read()
    assert sorted(read.items, key=repr) == sorted(events.items, key=repr)
    assert [u for u in read.items if u.item_id == events.items[-1].item_id] == [
        u for u in events.items if u.item_id == events.items[-1].item_id
    ]
    assert list(read.behaviours) == events.behaviours and list(read.users) == events.users
    assert {i.request_id for i in read.impressions} == {"a", "b", "c", "d"}
    assert topics.skipped == {"item-features": 1, "impressions": 1, "user-behaviours": 1, "new-items": 0}
