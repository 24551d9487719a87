"""Topics: the plan is pure, the real broker agrees with it."""

import gc
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from infra.clock import DAY_MS, SystemClock
from infra.kafka import admin_client, producer, reader
from infra.kafka.admin import (
    CLEANUP,
    CONFIG,
    CREATE,
    GROW,
    IDENTITY_TOPICS,
    LARGER,
    SURPLUS,
    FoundTopic,
    apply_topics,
    check_partitions,
    describe_index,
    end_offsets,
    fetch_topics,
    plan_topics,
    start_offsets,
    topic_ids,
)
from infra.processes import free_ports
from schemas.errors import Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.topics import DEAD_LETTER_PREFIX, INDEX_DELTAS, INDEX_EVENTS, ITEM_FEATURES, NEW_ITEMS, REPORTS, TOPICS
from tests.infra.kafka.deleted_topics import delete_topics


def _all_there(shards: int = 2, user_partitions: int = 3) -> dict[str, FoundTopic]:
    return {t.name: FoundTopic(t.partition_count(shards, user_partitions), t.config()) for t in TOPICS}


def test_an_empty_broker_needs_every_topic_and_a_complete_one_nothing() -> None:
    assert [c.kind for c in plan_topics({}, 2, 3)] == [CREATE] * len(TOPICS)
    assert plan_topics(_all_there(), 2, 3) == []


@pytest.mark.parametrize(
    ("topic", "found", "kind"),
    [
        ("item-features", FoundTopic(1, {}), GROW),
        ("item-features", FoundTopic(4, {}), SURPLUS),
        ("index-deltas", FoundTopic(4, {}), SURPLUS),
        ("model-checkpoints", FoundTopic(2, {}), SURPLUS),
        ("user-features", FoundTopic(3, {"cleanup.policy": "delete"}), CLEANUP),
        ("item-features", FoundTopic(2, {"retention.ms": "1"}), CONFIG),
    ],
)
def test_a_difference_is_named_by_what_it_would_do(topic: str, found: FoundTopic, kind: str) -> None:
    there = _all_there()
    there[topic] = FoundTopic(found.partitions, {**there[topic].config, **found.config})
    assert [(c.topic, c.kind) for c in plan_topics(there, 2, 3)] == [(topic, kind)]


def test_other_partitions_than_shards_are_named_where_ids_would_go_astray_and_nowhere_else() -> None:
    there = _all_there(2, 3)
    check_partitions(there, "aif.", 2)
    for topic in ("item-features", "new-items"):
        with pytest.raises(Incompatible, match=rf"other_partitions: aif\.{topic} has 3 partitions, the index has 2 shards: .* a new index"):
            check_partitions({**there, topic: FoundTopic(3)}, "aif.", 2)
    check_partitions({**there, "user-features": FoundTopic(9), "index-deltas": FoundTopic(9)}, "aif.", 2)
    with pytest.raises(Incompatible, match="index-deltas has 1 partitions"):
        check_partitions({**there, "index-deltas": FoundTopic(1)}, "aif.", 2)


def test_the_broker_has_every_topic_after_apply_and_a_second_apply_changes_nothing(bootstrap_servers: str, topic_prefix: str) -> None:
    assert len(apply_topics(bootstrap_servers, topic_prefix, 2, 3)) == len(TOPICS)
    assert apply_topics(bootstrap_servers, topic_prefix, 2, 3) == []
    found = fetch_topics(bootstrap_servers, topic_prefix, settings=True)
    assert {t.name: t.partition_count(2, 3) for t in TOPICS} == {name: f.partitions for name, f in found.items()}
    assert found["user-features"].config["cleanup.policy"] == "compact"
    assert end_offsets(bootstrap_servers, topic_prefix + "user-features") == {0: 0, 1: 0, 2: 0}
    assert start_offsets(bootstrap_servers, topic_prefix + "item-features") == {0: 0, 1: 0}


def test_whoever_has_a_clock_that_is_days_off_is_still_heard_and_its_items_are_kept(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    refused: list[str] = []
    told = producer.open_producer(bootstrap_servers, 10.0, lambda _: None)
    written = [
        ITEM_FEATURES,
        NEW_ITEMS,
        INDEX_DELTAS,
        INDEX_EVENTS,
        *REPORTS,
        *(t.name for t in TOPICS if t.name.startswith(DEAD_LETTER_PREFIX)),
    ]
    for name in written:
        for days in (-30, 3):
            at_ms = SystemClock().now_ms() + days * DAY_MS
            told.produce(topic_prefix + name, b"x", timestamp=at_ms, on_delivery=lambda error, m: error and refused.append(str(m.topic())))
    assert told.flush(60) == 0 and refused == []
    stamps = [r.timestamp_ms for name in written for r in reader.read_topic(bootstrap_servers, name, prefix=topic_prefix)]
    assert len(stamps) == 2 * len(written) and all(abs(at_ms - SystemClock().now_ms()) < DAY_MS for at_ms in stamps)


def test_partitions_and_cleanup_change_only_when_allowed_by_name(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    before = topic_ids(bootstrap_servers, topic_prefix)
    for shards, code in ((1, "other_partitions"), (3, "topic_change_refused")):
        with pytest.raises(Incompatible, match=code):
            apply_topics(bootstrap_servers, topic_prefix, shards, 2)
    assert topic_ids(bootstrap_servers, topic_prefix) == before
    apply_topics(bootstrap_servers, topic_prefix, 3, 2, allow=[GROW])
    with pytest.raises(Incompatible, match=r"other_partitions: .*item-features has 3, .* partitions, the index has 2 shards"):
        describe_index(bootstrap_servers, topic_prefix, 2, 2, "int64")
    assert topic_ids(bootstrap_servers, topic_prefix) == before


def set_config(bootstrap: str, topic: str, **config: str) -> None:
    """Settings of a topic, as an operator changes them; underscores stand for points."""
    entries = [ConfigEntry(k.replace("_", "."), v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.incremental_alter_configs([resource])[resource].result(30)


def test_settings_that_an_operator_enlarged_stay_and_are_logged_and_smaller_ones_grow(
    bootstrap_servers: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    table = fetch_topics(bootstrap_servers, topic_prefix, settings=True)["item-features"].config
    larger = str(2 * int(table["retention.ms"]))
    set_config(bootstrap_servers, topic_prefix + "item-features", retention_ms=larger, max_message_bytes="1000")
    set_config(bootstrap_servers, topic_prefix + "index-deltas", retention_ms="-1")
    planned = plan_topics(fetch_topics(bootstrap_servers, topic_prefix, settings=True), 1, 1)
    assert {(c.topic, c.kind) for c in planned} == {("item-features", LARGER), ("item-features", CONFIG), ("index-deltas", LARGER)}
    assert [c.config for c in apply_topics(bootstrap_servers, topic_prefix, 1, 1)] == [{"max.message.bytes": table["max.message.bytes"]}]
    found = fetch_topics(bootstrap_servers, topic_prefix, settings=True)
    assert (found["item-features"].config["retention.ms"], found["index-deltas"].config["retention.ms"]) == (larger, "-1")
    assert found["item-features"].config["max.message.bytes"] == table["max.message.bytes"]
    assert caplog.text.count("left as it is") == 2 and f"retention.ms={larger}" in caplog.text


def test_a_deleted_and_recreated_topic_has_another_id(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    before = topic_ids(bootstrap_servers, topic_prefix)
    assert set(before) == {t.name for t in TOPICS}
    delete_topics(bootstrap_servers, [topic_prefix + "new-items"])
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    after = topic_ids(bootstrap_servers, topic_prefix)
    assert {name for name in before if before[name] != after[name]} == {"new-items"}


def test_a_topic_that_is_missing_and_a_broker_that_is_away_are_named(bootstrap_servers: str, topic_prefix: str) -> None:
    with pytest.raises(Unavailable, match="unknown_topic"):
        end_offsets(bootstrap_servers, topic_prefix + "nothing", deadline_s=2.0)
    with pytest.raises(Unavailable, match="kafka_unreachable"):
        fetch_topics(f"127.0.0.1:{free_ports(1)[0]}", topic_prefix, deadline_s=0.2)


def test_an_offset_that_a_starting_broker_leaves_out_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the end of the log, -1001 stopped a worker with `log_shorter`, for its operator, and would have been the position of a seal."""
    answers = [-1001, 7]

    class Starting:
        def __init__(self, _: object) -> None: ...

        def poll(self, timeout: float) -> None: ...

        def list_topics(self, topic: str, timeout: float) -> object:
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

        def list_offsets(self, asked: dict[object, object], **_: object) -> dict[object, Future[object]]:
            found: Future[object] = Future()
            found.set_result(SimpleNamespace(offset=answers.pop(0)))
            return dict.fromkeys(asked, found)

    monkeypatch.setattr(admin_client, "AdminClient", Starting)
    assert end_offsets("localhost:1", "aif.item-features") == {0: 7}
    answers += [-1001] * 2
    with pytest.raises(Unavailable, match=r"kafka_unreachable: .*no offset of aif\.item-features \[0\]"):
        end_offsets("localhost:1", "aif.item-features", deadline_s=0)


def test_no_client_lets_the_broker_make_a_topic_that_was_only_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers do by default, with one partition: then `aif topics apply` would refuse to give it the others."""
    asked: list[dict[str, object]] = []

    def refuse(config: dict[str, object]) -> None:
        asked.append(config)
        raise RuntimeError

    for module, client, use in (
        (admin_client, "AdminClient", lambda: end_offsets("", "missing")),
        (producer, "Producer", lambda: producer.open_producer("", 1.0)),
        (reader, "Consumer", lambda: reader.TopicFollower("", "missing", {0: 0})),
    ):
        monkeypatch.setattr(module, client, refuse)
        with pytest.raises(RuntimeError):
            use()
    assert [config["allow.auto.create.topics"] for config in asked] == [False] * 3


def test_the_identity_of_an_index_is_asked_for_without_the_other_topics(bootstrap_servers: str, prefix: str) -> None:
    """A worker asks every 5 s, and the client never frees the ids of topics that it was asked for."""

    def count() -> int:
        return sum(type(one) is Uuid for one in gc.get_objects())

    apply_topics(bootstrap_servers, prefix, 1, 1)
    before = count()
    for _ in range(10):
        describe_index(bootstrap_servers, prefix, 1, 1, IdKind.INT64)
    assert count() - before <= 10 * len(IDENTITY_TOPICS)


def test_a_broker_that_takes_seconds_for_an_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look of two seconds ended before its answer came: a worker could not start, and a running one could open no shard."""
    looked: list[float] = []

    class Slow:
        def __init__(self, _: object) -> None: ...

        def poll(self, timeout: float) -> None: ...

        def list_topics(self, timeout: float) -> object:
            looked.append(timeout)
            if timeout < 2.5:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return SimpleNamespace(topics={})

        def describe_topics(self, *_: object, **__: object) -> dict[object, object]:
            return {}

    monkeypatch.setattr(admin_client, "AdminClient", Slow)
    assert fetch_topics("localhost:1", "aif.") == {}
    assert looked == [2.0, 4.0]
