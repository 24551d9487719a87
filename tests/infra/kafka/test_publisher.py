"""Publishing: right partition, right key, valid records, nothing lost in silence."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.admin import GROW, apply_topics, end_offsets
from infra.kafka.publisher import Publisher
from infra.kafka.reader import SourceRecord, read_topic
from infra.processes import free_ports, wait_until
from schemas.decoding import decode_record, decode_updates
from schemas.errors import AifError, Incompatible, RejectedInput, Unavailable
from schemas.events import (
    Behaviour,
    BehavioursRecord,
    CheckpointRecord,
    ImpressionRecord,
    ItemFeaturesRecord,
    ItemFeaturesUpdate,
    NewItem,
    NewItemsRecord,
    ShownItem,
    UserFeaturesRecord,
)
from schemas.ids import IdKind, partition_of
from schemas.limits import RECORD_BYTES_MAX, UPDATES_PER_RECORD_MAX

SHARDS, USER_PARTITIONS = 3, 2
WAIT_S = 60.0


@pytest.fixture
def publisher(bootstrap_servers: str, topic_prefix: str) -> Iterator[Publisher]:
    apply_topics(bootstrap_servers, topic_prefix, SHARDS, USER_PARTITIONS)
    with Publisher(bootstrap_servers, topic_prefix, "test", SHARDS, USER_PARTITIONS, "int64") as opened:
        yield opened


@pytest.fixture
def records(bootstrap_servers: str, topic_prefix: str):  # type: ignore[no-untyped-def]
    return lambda topic: list(read_topic(bootstrap_servers, topic, prefix=topic_prefix))


def _accepted(record: SourceRecord) -> list[ItemFeaturesUpdate]:
    decoded = decode_updates(
        ItemFeaturesRecord, ItemFeaturesUpdate, record.value, IdKind.INT64, record.partition, SHARDS, lambda u: u.item_id
    )
    assert decoded.rejected == []
    return [u for _, u in decoded.accepted]


def test_a_single_update_has_its_id_as_key_its_partition_and_cloud_event_headers(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    delivered = publisher.publish_item(42, 7, {"price": 1.5, "tags": ["a", "b"]}).result(WAIT_S)
    (record,) = records("item-features")
    assert (record.topic, record.partition, record.offset) == ("item-features", delivered.partition, delivered.offset)
    assert record.partition == partition_of(42, SHARDS)
    assert record.key == b"42"
    assert _accepted(record) == [ItemFeaturesUpdate(item_id=42, version=7, features={"price": 1.5, "tags": ["a", "b"]})]
    headers = dict(record.headers)
    assert headers["ce_type"] == b"aif.item-features"
    assert {"ce_id", "ce_source", "ce_specversion", "ce_time", "content-type", "schema"} <= set(headers)


def test_our_partition_is_the_one_that_kafkas_own_partitioner_chooses_for_the_key(
    bootstrap_servers: str,
    topic_prefix: str,
    publisher: Publisher,
    records,  # type: ignore[no-untyped-def]
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random"})
    for item in range(-20, 20):
        producer.produce(topic_prefix + "new-items", b"x", str(item).encode())
    assert producer.flush(WAIT_S) == 0
    assert {r.key: r.partition for r in records("new-items")} == {str(i).encode(): partition_of(i, SHARDS) for i in range(-20, 20)}


def test_bulk_updates_are_packed_by_partition_in_order_with_an_empty_key(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    updates = [ItemFeaturesUpdate(item_id=i % 1500, version=i, features={"n": i}) for i in range(3000)]
    assert publisher.publish_items(iter(updates)) == 3000
    publisher.flush()
    read = records("item-features")
    assert {r.key for r in read} == {b""}
    sizes = [len(_accepted(r)) for r in read]
    assert sum(sizes) == 3000
    assert max(sizes) == UPDATES_PER_RECORD_MAX
    assert len(sizes) <= 3000 // UPDATES_PER_RECORD_MAX + SHARDS + 1
    versions_of_item_7 = [u.version for r in sorted(read, key=lambda r: r.offset) for u in _accepted(r) if u.item_id == 7]
    assert versions_of_item_7 == [7, 1507]


def test_large_updates_are_packed_below_the_size_of_a_record(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    wide = [NewItem(item_id=i, embedding=[-1.2345678901234567e-300] * 1024) for i in range(600)]
    long = [ItemFeaturesUpdate(item_id=i, version=1, features={f"f{k}": "\u0001" * 1000 for k in range(40)}) for i in range(300)]
    publisher.publish_new_items(wide)
    publisher.publish_items(long)
    publisher.flush()
    for topic, record_type, count in (("new-items", NewItemsRecord, 600), ("item-features", ItemFeaturesRecord, 300)):
        read = records(topic)
        assert all(len(r.value) <= RECORD_BYTES_MAX for r in read)
        assert sum(len(decode_record(record_type, r.value).updates) for r in read) == count


def test_a_new_item_goes_to_both_topics(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    for delivery in publisher.publish_new_item(5, [0.25, -1.0], {"price": 2}, version=3):
        delivery.result(WAIT_S)
    (new,), (features,) = records("new-items"), records("item-features")
    assert decode_record(NewItemsRecord, new.value).updates[0] == NewItem(item_id=5, embedding=[0.25, -1.0])
    assert _accepted(features)[0].version == 3
    assert new.partition == features.partition


def test_a_delete_is_an_update_with_its_version(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    publisher.publish_delete(5, 9).result(WAIT_S)
    assert _accepted(records("item-features")[0]) == [ItemFeaturesUpdate(op="delete", item_id=5, version=9)]


def test_users_behaviours_impressions_and_checkpoints_arrive_where_they_belong(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    behaviours = [Behaviour(user_id=u, item_id=1, time_ms=u) for u in range(500)]
    assert publisher.publish_behaviours(behaviours) == 500
    publisher.publish_behaviour(Behaviour(user_id=3, item_id=2, time_ms=9))
    assert publisher.publish_users(UserFeaturesRecord(user_id=u, features={"age": u}, time_ms=u) for u in range(10)) == 10
    publisher.publish_user(3, None)
    shown = ShownItem(item_id=1, position=0, bid=1.0, clicked=True)
    publisher.publish_impression(ImpressionRecord(request_id="r", user_id=3, time_ms=1, items=[shown]))
    publisher.publish_checkpoint(CheckpointRecord(uri="file:///m", size_bytes=1, sha256="a" * 64, model_id="m", feature_schema="b" * 16))
    publisher.flush()
    partition = partition_of(3, USER_PARTITIONS)
    read = records("user-behaviours")
    assert sum(len(decode_record(BehavioursRecord, r.value).updates) for r in read) == 501
    assert {r.partition for r in read if r.key == b"3"} == {partition}
    of_user_3 = [r for r in records("user-features") if r.key == b"3"]
    assert [(r.partition, r.value is None) for r in of_user_3] == [(partition, False), (partition, True)]
    assert of_user_3[0].value is not None and decode_record(UserFeaturesRecord, of_user_3[0].value).time_ms == 3
    assert decode_record(ImpressionRecord, records("impressions")[0].value).items == [shown]
    assert [r.offset for r in records("model-checkpoints")] == [0]


def test_an_event_that_is_not_valid_is_refused_before_it_is_sent(publisher: Publisher, records) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="finite"):
        publisher.publish_item(1, 1, {"price": float("nan")})
    with pytest.raises(RejectedInput, match="bad_id"):
        publisher.publish_item("seven", 1, {})
    with pytest.raises(RejectedInput, match="bad_id"):
        publisher.publish_behaviour(Behaviour(user_id=1, item_id="seven", time_ms=1))
    publisher.flush()
    assert records("item-features") == records("user-behaviours") == []


def test_text_ids_and_int_ids_written_as_text_have_the_same_key(
    bootstrap_servers: str, topic_prefix: str, publisher: Publisher, records
) -> None:  # type: ignore[no-untyped-def]
    publisher.publish_item("12", 1, {}).result(WAIT_S)
    assert records("item-features")[0].partition == partition_of(12, SHARDS)
    with Publisher(bootstrap_servers, topic_prefix, "test", SHARDS, USER_PARTITIONS, IdKind.TEXT) as text:
        text.publish_new_item("naïve-ß", [1.0])
        with pytest.raises(RejectedInput, match="bad_id"):
            text.publish_item(5, 1, {})
    assert records("new-items")[0].key == "naïve-ß".encode()


def test_what_a_broker_that_is_away_did_not_take_surfaces_on_the_handle_on_flush_and_on_close() -> None:
    away = f"127.0.0.1:{free_ports(1)[0]}"
    publisher = Publisher(away, "x.", "test", 1, 1, "int64", delivery_s_max=0.3)
    delivery = publisher.publish_item(1, 1, {})
    with pytest.raises(Unavailable, match="not_delivered"):
        publisher.flush(WAIT_S)
    with pytest.raises(Unavailable, match="not_delivered"):
        delivery.result(WAIT_S)
    publisher.publish_items([ItemFeaturesUpdate(item_id=1, version=1)])
    with pytest.raises(Unavailable, match="not_delivered"):
        publisher.close(WAIT_S)


def test_a_flush_that_runs_out_of_time_says_what_is_left_and_no_handle_is_left_waiting_after_the_close() -> None:
    publisher = Publisher(f"127.0.0.1:{free_ports(1)[0]}", "x.", "test", 1, 1, "int64", delivery_s_max=60)
    delivery = publisher.publish_item(1, 1, {})
    with pytest.raises(Unavailable, match="1 are still waiting"):
        publisher.close(0.2)
    with pytest.raises(Unavailable, match="not_delivered"):
        delivery.result(WAIT_S)


def test_an_event_larger_than_a_record_may_be_is_refused_as_the_senders_fault_and_the_publisher_goes_on() -> None:
    publisher = Publisher(f"127.0.0.1:{free_ports(1)[0]}", "x.", "test", 1, 1, "int64", delivery_s_max=0.3)
    with pytest.raises(RejectedInput, match="record_too_large"):
        publisher.publish_item(1, 1, {f"f{n}": ["\u0001" * 1_000] * 1_000 for n in range(1)})
    publisher.close(1)


@pytest.mark.usefixtures("publisher")
def test_a_partition_that_the_topic_does_not_have_is_an_error(bootstrap_servers: str, topic_prefix: str) -> None:
    wrong = Publisher(bootstrap_servers, topic_prefix, "test", 50, 1, "int64", delivery_s_max=5)

    def publish_all() -> None:
        for item in range(200):
            wrong.publish_item(item, 1, {})
        wrong.flush()

    try:
        with pytest.raises(AifError):
            publish_all()
    finally:
        with contextlib.suppress(Unavailable):
            wrong.close(0.1)


def test_more_than_the_queue_holds_waits_instead_of_failing(publisher: Publisher, bootstrap_servers: str, topic_prefix: str) -> None:
    embedding = [0.12345678901234] * 1024
    assert publisher.publish_new_items(NewItem(item_id=i, embedding=embedding) for i in range(6000)) == 6000
    publisher.flush(WAIT_S)
    assert sum(end_offsets(bootstrap_servers, topic_prefix + "new-items").values()) > 0


def test_importing_the_publisher_is_not_needed_to_read_dead_letters() -> None:
    code = "import sys, infra.kafka.dead_letters; assert 'confluent_kafka' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_items_are_refused_once_somebody_added_partitions_to_their_topic(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    apply_topics(bootstrap_servers, topic_prefix, 2, 1, allow=[GROW])
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, 1, IdKind.INT64) as publisher:

        def is_refused() -> bool:
            try:
                publisher.publish_item(1, 1, {})
            except Incompatible as error:
                return error.code == "other_partitions"
            return False

        wait_until(is_refused, 30, "the partitions to be seen")
        publisher.publish_behaviour(Behaviour(user_id=1, item_id=1, time_ms=1)).result(30)


def test_a_record_that_was_handed_over_cannot_be_cancelled_and_its_handle_is_settled() -> None:
    """As `asyncio.wait_for` does after its time: the client would raise at the record's delivery, in the thread that serves all others."""
    publisher = Publisher(f"127.0.0.1:{free_ports(1)[0]}", "p.", "test", SHARDS, USER_PARTITIONS, "int64", delivery_s_max=0.3)
    delivery = publisher.publish_item(1, 1, {})
    assert not delivery.cancel()
    with pytest.raises(Unavailable, match="not_delivered: 1 records failed and 0 are still waiting"):
        publisher.close(WAIT_S)
    assert isinstance(delivery.exception(0), Unavailable)
