"""The server's view of users: the fold over records as they come from the real broker, good and bad ones."""

import json

import pytest
from confluent_kafka import Producer

from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.events import Behaviour, BehavioursRecord, encode_record
from schemas.ids import Id, IdKind, encode_kafka_key, partition_of
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from serving.user_follower import UserFollower
from serving.user_store import UserStore

M = 3


def behaviours(offset: int, *events: Behaviour, partition: int) -> SourceRecord:
    return SourceRecord(USER_BEHAVIOURS, partition, offset, None, encode_record(BehavioursRecord(updates=list(events))))


def home(user: Id) -> int:
    return partition_of(user, M)


def test_a_record_folds_the_events_of_each_of_its_users_in_order_and_once() -> None:
    store = UserStore(IdKind.INT64, M, 100)
    pair = [user for user in range(50) if home(user) == 0][:2]
    events = [Behaviour(user_id=pair[i % 2], item_id=i, time_ms=i) for i in range(5)]
    record = behaviours(4, *events, partition=0)
    assert store.fold_record(record) == 0 and store.fold_record(record) == 0
    assert [b.item_id for b in store.find(pair[0]).behaviours] == [0, 2, 4]
    assert [b.item_id for b in store.find(pair[1]).behaviours] == [1, 3]
    assert store.find(pair[0]).offsets == store.offsets_of(pair[0]) == (-1, 4)


def test_a_snapshot_does_not_change_with_the_user() -> None:
    store = UserStore(IdKind.INT64, M, 100)
    store.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    before = store.find(1)
    store.fold_record(behaviours(1, Behaviour(user_id=1, item_id=2, time_ms=2), partition=home(1)))
    assert len(before.behaviours) == 1 and len(store.find(1).behaviours) == 2


def test_an_update_in_the_wrong_partition_is_skipped_and_its_neighbours_are_not() -> None:
    store = UserStore(IdKind.INT64, M, 100)
    stranger = next(user for user in range(50) if home(user) != home(1))
    record = behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), Behaviour(user_id=stranger, item_id=1, time_ms=1), partition=home(1))
    assert store.fold_record(record) == 1
    assert (len(store.find(1).behaviours), store.find(stranger).is_cold, store.skipped) == (1, True, 1)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[]", b'{"schema":2,"updates":[]}', b'{"schema":1,"updates":[]}', None])
def test_a_record_that_cannot_be_read_is_skipped_and_counted(value: bytes | None) -> None:
    store = UserStore(IdKind.INT64, M, 100)
    assert store.fold_record(SourceRecord(USER_BEHAVIOURS, 0, 0, b"1", value)) == 1
    assert store.fold_record(SourceRecord(USER_FEATURES, 0, 0, b"\xff", value)) == 1
    assert len(store) == 0


def test_users_beyond_the_bound_are_not_kept_and_counted() -> None:
    store = UserStore(IdKind.TEXT, 1, 2)
    for i, user in enumerate(("a", "b", "c", "a")):
        store.fold_record(behaviours(i, Behaviour(user_id=user, item_id="x", time_ms=1), partition=0))
    assert (len(store), store.skipped, store.find("c").is_cold, len(store.find("a").behaviours)) == (2, 1, True, 2)


@pytest.mark.parametrize("kind", list(IdKind))
def test_the_view_is_the_fold_of_both_topics_and_goes_on_past_bad_records(kind: IdKind, bootstrap_servers: str, topic_prefix: str) -> None:
    users: list[Id] = list(range(20)) if kind is IdKind.INT64 else [f"user-{i}" for i in range(20)]
    item: Id = 1 << 60 if kind is IdKind.INT64 else "ä"
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    bad = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(M):
        bad.produce(topic_prefix + USER_BEHAVIOURS, b"not json", partition=partition)
        bad.produce(topic_prefix + USER_FEATURES, json.dumps({"schema": 1}).encode(), encode_kafka_key(users[0]), partition=partition)
    assert bad.flush(30) == 0
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, kind) as publisher:
        publisher.publish_behaviours(Behaviour(user_id=user, item_id=item, time_ms=t) for t in range(3) for user in users)
        for user in users:
            publisher.publish_user(user, {"country": "nl"})
        publisher.flush()
        store, metrics = UserStore(kind, M, 100), Metrics()
        follower = UserFollower(bootstrap_servers, topic_prefix, store, metrics)
        follower.start()
        try:
            wait_until(lambda: follower.ready, 30, "the view to be caught up")
            for user in users:
                known = store.find(user)
                assert known.profile == {"country": "nl"} and [b.time_ms for b in known.behaviours] == [0, 1, 2]
                assert {b.item_id for b in known.behaviours} == {item}
            assert store.skipped == 2 * M
            publisher.publish_behaviour(Behaviour(user_id=users[3], item_id=item, time_ms=9))
            wait_until(lambda: len(store.find(users[3]).behaviours) == 4, 20, "one more behaviour")
        finally:
            follower.close()
    assert follower.last_error == ""
