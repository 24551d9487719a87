"""What training reads from a real broker: every good event in the order of the log, and a count of the bad ones."""

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from infra.kafka.reader import SourceRecord
from schemas.events import ImpressionRecord, ShownItem, UserFeaturesRecord
from schemas.ids import IdKind, partition_of
from schemas.users import UserHistory
from streams.training import topic_events
from streams.training.histories import fold_users
from streams.training.topic_events import TopicEvents
from tests.streams.training.shop import open_log, publish_shop, shop


def produce(bootstrap_servers: str, topic: str, value: bytes | None, key: str | None = None, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    refused: list[object] = []
    producer.produce(topic, value, key=key, partition=partition, on_delivery=lambda error, _: refused.append(error) if error else None)
    assert producer.flush(30) == 0 and not refused


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_every_good_event_is_read_in_log_order_and_bad_ones_are_counted(bootstrap_servers: str, topic_prefix: str, kind: IdKind) -> None:
    topics = open_log(bootstrap_servers, topic_prefix, kind)
    _, events = shop(kind)
    publish_shop(bootstrap_servers, topic_prefix, kind)
    for topic in ("item-features", "impressions", "user-behaviours", "user-features"):
        produce(bootstrap_servers, topic_prefix + topic, b"\xff not json", key="a compacted topic wants one")
    read = topics.read(topics.ends())
    of_item_1 = [[u for u in told if u.item_id == events.items[1].item_id] for told in (read.items, events.items)]
    assert of_item_1[0] == of_item_1[1] and len(of_item_1[0]) == 3
    assert sorted(read.items, key=repr) == sorted(events.items, key=repr)
    assert list(read.behaviours) == events.behaviours and list(read.users) == events.users
    assert sorted(read.impressions, key=lambda i: i.request_id) == events.impressions
    assert topics.decoder.skipped == {"item-features": 1, "impressions": 1, "user-behaviours": 1, "user-features": 1, "new-items": 0}
    assert topics.read(topics.ends()) == read  # however the broker interleaves the partitions


def test_what_ends_one_read_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first seconds of a training once waited until everything was read and decoded."""
    until = time.monotonic() + 5

    def read(_: str, topic: str, **__: object) -> Iterator[SourceRecord]:
        if topic == "item-features":
            raise KeyboardInterrupt
        while time.monotonic() < until:
            yield SourceRecord(topic, 0, 0, b"1", b"no JSON")
            time.sleep(0.01)

    monkeypatch.setattr(topic_events, "read_topic", read)
    with pytest.raises(KeyboardInterrupt):
        TopicEvents("127.0.0.1:1", "", 1, 1, IdKind.INT64).read({})
    assert time.monotonic() < until


def test_an_id_of_another_kind_is_refused_and_a_long_one_in_text_is_the_number(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    long = 2**60 + 1
    shown = [ShownItem(item_id=str(long), position=0, bid=1.0, clicked=True)]
    for user, items in ((str(long), shown), ("anna", shown), (7, [ShownItem(item_id="red shoe", position=0, bid=1.0, clicked=True)])):
        record = ImpressionRecord(request_id="r", user_id=user, time_ms=1, items=items)
        produce(bootstrap_servers, topic_prefix + "impressions", record.model_dump_json(by_alias=True).encode())
    profile = UserFeaturesRecord(user_id=str(long), features={"country": "UK"})
    produce(bootstrap_servers, topic_prefix + "user-features", profile.model_dump_json(by_alias=True).encode(), key=str(long))
    topics = TopicEvents(bootstrap_servers, topic_prefix, 1, 1, IdKind.INT64)
    read = topics.read(topics.ends())
    assert [(i.user_id, i.items[0].item_id) for i in read.impressions] == [(long, long)]
    assert [u.user_id for u in read.users] == [long] and topics.decoder.skipped["impressions"] == 2


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_a_user_who_asked_to_be_forgotten_has_no_profile(bootstrap_servers: str, topic_prefix: str, kind: IdKind) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 2)
    user = 7 if kind is IdKind.INT64 else "anna"
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, 2, kind) as publisher:
        publisher.publish_user(user, {"country": "UK"})
        publisher.publish_user(user, None)
    produce(bootstrap_servers, topic_prefix + "user-features", None, key="", partition=partition_of(user, 2))  # forgets no user
    topics = TopicEvents(bootstrap_servers, topic_prefix, 1, 2, kind)
    users = topics.read(topics.ends()).users
    assert fold_users(users, []) == {user: UserHistory(profile_offset=len(users) - 1)} and topics.decoder.skipped["user-features"] == 1


def test_reading_may_wait_for_impressions_that_are_still_being_published(bootstrap_servers: str, topic_prefix: str) -> None:
    topics = open_log(bootstrap_servers, topic_prefix)
    topics.wait_for_impressions(0)
    waiting = threading.Thread(target=topics.wait_for_impressions, args=(4,), daemon=True)
    waiting.start()
    _, events = shop()
    with Publisher(bootstrap_servers, topic_prefix, "test", 2, 2, IdKind.INT64) as publisher:
        publisher.publish_impressions(events.impressions[:3])
    waiting.join(0.5)
    assert waiting.is_alive()
    with Publisher(bootstrap_servers, topic_prefix, "test", 2, 2, IdKind.INT64) as publisher:
        publisher.publish_impressions(events.impressions[3:])
    waiting.join(30)
    assert not waiting.is_alive()
