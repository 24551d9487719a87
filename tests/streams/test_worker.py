"""`aif worker` on the real broker: kills, two workers, garbage, refusals, a clean end, numbers of its page. No model and no server."""

import json
import os
import re
import shutil
import signal
import time
import urllib.request

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from infra.kafka.admin import GROW, apply_topics
from infra.kafka.dead_letters import TRUNCATED_HEADER, decode_dead_letter
from infra.kafka.reader import read_topic
from infra.processes import free_ports, wait_until
from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.ids import partition_of
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, ITEM_FEATURES, MODEL_CHECKPOINTS, NEW_ITEMS, SHARD_TOPICS
from tests.infra.kafka.deleted_topics import delete_topics
from tests.infra.kafka.transactions import open_transactional, send
from tests.streams.worker_stage import (
    KILLED,
    SHARDS,
    WAIT_S,
    WorkerStage,
    consumed,
    group_members,
    is_exact,
    kill_hard,
    listening_ports,
    stop_cleanly,
    wait_exit,
)

ITEMS = [i for i in range(400) if partition_of(i, SHARDS) == 0]
OTHERS = [i for i in range(400) if partition_of(i, SHARDS) == 1]


def publish(stage: WorkerStage, version: int, items: int = 400) -> None:
    """A mix of single updates and whole records."""
    with stage.publisher() as publisher:
        for item in range(0, items, 4):
            publisher.publish_item(item, version, {"price": float(version)})
        publisher.publish_items(ItemFeaturesUpdate(op="upsert", item_id=i, version=version, features={"n": i}) for i in range(items))
        publisher.publish_new_items(NewItem(item_id=i, embedding=[1.0, version]) for i in range(items))


def upsert(item: int, version: int = 1) -> bytes:
    return json.dumps({"schema": 1, "updates": [{"op": "upsert", "item_id": item, "version": version, "features": {}}]}).encode()


def test_two_workers_share_the_shards_and_one_takes_over_from_offset_0_when_the_other_stops(stage: WorkerStage) -> None:
    publish(stage, 1)
    first = stage.start_ready("first")
    second = stage.start_ready("second")
    assert "no_shards_because" not in stage.log("first") + stage.log("second")
    assert re.search(r"shards owned: \[(\d)\], stayed open: \[\1\]", stage.log("first")), "the join closes only the shard that goes"
    idle = stage.start_ready("idle")
    assert "the other workers own all shards" in stage.log("idle")
    assert stop_cleanly(idle) == 0 and "worker stopped" in stage.log("idle")
    publish(stage, 2)
    stage.wait_applied(second)
    assert stop_cleanly(second) == 0
    publish(stage, 3)
    stage.wait_applied(first)
    assert stop_cleanly(first) == 0
    owned_by_second = [d.name for d in (stage.directory / "second" / "shards").iterdir()]
    assert len(owned_by_second) == 1
    for number in range(SHARDS):
        with stage.shard("first", number) as shard:
            assert dict(consumed(shard.state.counters)) == stage.expected_counters(number)
            assert all(is_exact(c) for c in shard.state.counters.values())


def raise_record_size(stage: WorkerStage, size: int) -> None:
    """Item-features takes records of `size` bytes."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, stage.prefix + ITEM_FEATURES, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def test_every_kind_of_garbage_ends_as_a_dead_letter_with_its_reason_and_the_partition_moves_on(stage: WorkerStage) -> None:
    worker = stage.start_ready()
    huge = b"x" * (RECORD_BYTES_MAX + 64 * 1024 - 200)  # what the broker just takes
    garbage: dict[str, tuple[bytes | None, bytes | None]] = {
        "not_json": (b"k", b"\xff\x00 not json"),
        "empty_record": (None, None),
        "bad_update": (b"", b'{"schema":1,"updates":[{"op":"upsert"}]}'),
        "wrong_partition": (b"", upsert(OTHERS[0])),
        "bad_id": (b"\xff\xfe", None),
    }
    stage.publish_raw(ITEM_FEATURES, [(0, key, value) for key, value in garbage.values()])
    stage.publish_raw(ITEM_FEATURES, [(0, b"big", huge)])
    stage.publish_raw(ITEM_FEATURES, [(0, b"1", b'{"schema":99,"updates":[]}'), (0, b"deep", b"[" * 100_000)])
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(ITEMS[1], 5))] * 20, **{"compression.type": codec})
    stage.publish_raw(ITEM_FEATURES, [(0, str(ITEMS[0]).encode(), None), (0, b"", upsert(ITEMS[0]))])
    raise_record_size(stage, 16 << 20)  # as an operator may
    stage.publish_raw(ITEM_FEATURES, [(0, b"", oversized := b"x" * (10 << 20))], **{"message.max.bytes": 16 << 20})
    stage.wait_applied(worker)
    records = []

    def all_there() -> bool:
        records[:] = list(read_topic(stage.bootstrap, DEAD_LETTER_PREFIX + ITEM_FEATURES, prefix=stage.prefix))
        return len(records) >= len(garbage) + 4

    wait_until(all_there, WAIT_S, "the dead letters")
    letters = {decode_dead_letter(list(r.headers)).offset: r for r in records}
    oversized_at = stage.ends()[0][0] - 1
    assert sorted(letters) == [*range(len(garbage) + 3), oversized_at]
    codes = {offset: decode_dead_letter(list(r.headers)).code for offset, r in letters.items()}
    assert [codes[i] for i in range(len(garbage))] == list(garbage)
    assert (letters[len(garbage)].key, letters[len(garbage)].value) == (b"big", huge)
    truncated = letters[oversized_at]
    assert oversized.startswith(truncated.value or b"") and dict(truncated.headers)[TRUNCATED_HEADER] == b"%d" % len(oversized)
    assert stop_cleanly(worker) == 0
    with stage.shard("worker", 0) as shard:
        counts = shard.state.counters[ITEM_FEATURES]
        assert counts.dead_lettered == len(garbage) + 4 and counts.applied == 80 + 2
        assert shard.pending_outbox(10) == []


def test_transactions_are_applied_when_committed_and_their_offsets_are_passed(stage: WorkerStage) -> None:
    """Committed, aborted, mixed with plain records, and one that is open while the worker starts and reads, until its producer's successor aborts it."""
    topic = stage.prefix + ITEM_FEATURES
    producer, other = (open_transactional(stage.bootstrap, topic + name) for name in "ab")
    send(producer, topic, *map(upsert, ITEMS[:2]), commit=True)  # markers at 2, 6, 9 and 12
    send(producer, topic, *map(upsert, ITEMS[2:5]), commit=False)
    send(other, topic, upsert(ITEMS[5]), commit=False)
    assert stage.ends()[0][0] == 9
    worker = stage.start_ready()
    stage.wait_applied(worker)  # the last offset is a marker
    producer.begin_transaction()
    producer.produce(topic, upsert(ITEMS[6]), partition=0)
    producer.flush(WAIT_S)
    send(other, topic, upsert(ITEMS[7]), commit=True)
    stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(ITEMS[8]))])
    assert stage.ends()[0][0] == 9, "nothing behind the open transaction is readable"
    stage.wait_applied(worker)
    open_transactional(stage.bootstrap, topic + "a")  # aborts it
    wait_until(lambda: stage.ends()[0][0] == 14, WAIT_S, "the end of the transaction")
    stage.wait_applied(worker)
    assert stop_cleanly(worker) == 0 and "offset_gap" not in stage.log()
    with stage.shard("worker", 0) as shard:
        counts = shard.state.counters[ITEM_FEATURES]
        assert (counts.consumed, counts.applied, counts.dead_lettered) == (4, 4, 0)
        assert shard.next_offsets[ITEM_FEATURES] == 14


def test_records_that_the_log_lost_stop_the_worker_with_a_named_reason_and_nothing_behind_them_is_applied(stage: WorkerStage) -> None:
    worker = stage.start_ready()
    stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(ITEMS[0]))])
    stage.wait_applied(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(ITEMS[1]))])  # the fetch that was waiting has it
    stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(item)) for item in ITEMS[2:4]])
    lost = TopicPartition(stage.prefix + ITEM_FEATURES, 0, 3)
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.delete_records([lost])[lost].result(WAIT_S)
    os.kill(worker.pid, signal.SIGCONT)
    assert wait_exit(worker) == 70, "another start may find a snapshot"
    assert re.search(r"records_removed: item-features\[0\] starts at offset 3: .* from [12] on", stage.log())
    assert wait_exit(stage.start()) == 78 and "log_gone: shard 0 continues item-features at offset" in stage.log()
    with stage.shard("worker", 0) as shard:
        assert shard.next_offsets[ITEM_FEATURES] <= 2


@pytest.mark.campaign  # in processes; tests/system/test_worker_killed.py and shard/test_start.py hold the same
def test_another_index_is_refused_at_start_by_name(stage: WorkerStage) -> None:
    """N, kind of ids, other topics of the same name, and a data directory of another broker."""
    assert stop_cleanly(stage.start_ready()) == 0
    refused = {
        "kind": stage.start("kind", AIF_INDEX__ID_KIND="text"),
        "shards": stage.start("shards", AIF_INDEX__SHARDS="3"),
        "shards-as-they-are": stage.start("shards-as-they-are", AIF_INDEX__SHARDS="3", AIF_WORKER__APPLY_TOPICS="false"),
    }
    codes = {name: wait_exit(child) for name, child in refused.items()}
    assert all(code not in (0, -9) for code in codes.values()), codes
    assert "other_index" in stage.log("kind") and "text" in stage.log("kind")
    assert "other_index" in stage.log("shards") and "other_index" in stage.log("shards-as-they-are")
    delete_topics(stage.bootstrap, [stage.prefix + ITEM_FEATURES])
    assert wait_exit(stage.start("topics")) not in (0, -9)
    assert "other_index" in stage.log("topics")
    moved = stage.start("worker", AIF_INDEX__STORE=str(stage.directory / "another"))  # a new index, an old directory
    assert wait_exit(moved) not in (0, -9)
    assert "index_store_gone" in stage.log("worker") and "is empty, but" in stage.log("worker")


def test_a_worker_whose_index_was_begun_anew_by_another_is_refused_by_name(stage: WorkerStage) -> None:
    """The store is not empty any more, and all that its first entry names is the same: only the entry is another."""
    stage.settings = KILLED  # who is refused does not leave the group
    publish(stage, 1)
    assert stop_cleanly(stage.start_ready()) == 0
    shutil.move(stage.directory / "index", stage.directory / "former")
    assert stop_cleanly(stage.start_ready("another")) == 0
    assert wait_exit(stage.start()) == 78
    assert "other_index_store" in stage.log() and "a new one" in stage.log()
    shutil.rmtree(stage.directory / "index")
    shutil.move(stage.directory / "former", stage.directory / "index")
    assert stop_cleanly(stage.start_ready()) == 0


def test_a_worker_with_an_empty_index_store_takes_no_shard_from_workers_of_another_store(stage: WorkerStage) -> None:
    """As one that was started on a second machine, with the default folder there."""
    stage.settings = KILLED
    first = stage.start_ready()
    assert wait_exit(stage.start("other", AIF_INDEX__STORE=str(stage.directory / "other-index"))) == 78
    assert "other_workers: the index store" in stage.log("other") and "has 1 workers of another index store" in stage.log("other")
    publish(stage, 1)
    stage.wait_applied(first)
    kill_hard(first)
    stage.start_ready("later", AIF_INDEX__STORE=str(stage.directory / "later-index"))  # once the session of the killed one has ended


def test_an_idle_worker_listens_nowhere_and_ends_cleanly_within_seconds(stage: WorkerStage) -> None:
    worker = stage.start_ready()
    assert listening_ports(group_members(worker.pid)) == set()
    began = time.monotonic()
    assert stop_cleanly(worker) == 0
    assert time.monotonic() - began < 20
    wait_until(lambda: not group_members(worker.pid), WAIT_S, "its builders to end")


def test_the_metrics_page_has_the_right_values_after_a_known_input(stage: WorkerStage) -> None:
    (port,) = free_ports(1)
    stage.start_ready(AIF_WORKER__METRICS_PORT=str(port))
    with stage.publisher() as publisher:
        publisher.publish_items(
            ItemFeaturesUpdate(op="upsert", item_id=i, version=v, features={"n": i}) for v in (2, 1) for i in ITEMS[:30]
        )
        publisher.publish_new_items(NewItem(item_id=i, embedding=[1.0]) for i in OTHERS[:7])
    stage.publish_raw(NEW_ITEMS, [(1, b"", b"garbage")])
    stage.wait_applied()
    ends = stage.ends()

    def values() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^(aif_\S+) (\S+)$", text, re.MULTILINE)}

    def offsets_shown() -> bool:
        found = values()
        return all(
            found.get(f'aif_shard_offset{{shard="{s}",topic="{t}"}}') == ends[s][i]
            for s in range(SHARDS)
            for i, t in enumerate(SHARD_TOPICS)
        )

    wait_until(offsets_shown, WAIT_S, "the offsets on the page")
    found = values()

    def value(name: str, **labels: str | int) -> float | None:
        return found.get(name + ("{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""))

    assert value("aif_updates_consumed_total", topic=ITEM_FEATURES, shard=0) == 60
    assert value("aif_updates_applied_total", topic=ITEM_FEATURES, shard=0) == 30
    assert value("aif_updates_superseded_total", topic=ITEM_FEATURES, shard=0) == 30
    assert value("aif_updates_consumed_total", topic=NEW_ITEMS, shard=1) == 8
    assert value("aif_updates_applied_total", topic=NEW_ITEMS, shard=1) == 7
    assert value("aif_dead_letters_total", topic=NEW_ITEMS, disposition="malformed") == 1
    assert value("aif_rows_encoded_total", shard=0) == 0
    assert value("aif_version_wanted") == -1
    for shard in range(SHARDS):
        for topic in SHARD_TOPICS:
            assert value("aif_lag_records", shard=shard, topic=topic) == 0
            assert value("aif_lag_seconds", shard=shard, topic=topic) == 0
    assert (value("aif_micro_batch_seconds_count", shard=0) or 0) >= 1
    assert 0 < (value("aif_micro_batch_seconds_sum", shard=0) or 0) < 30


def test_a_topic_that_is_made_again_under_a_running_worker_ends_it_with_what_to_do(stage: WorkerStage) -> None:
    """Its offsets begin at 0, where everything was applied: the worker would drop all new records in silence."""
    worker = stage.start_ready()
    publish(stage, 1)
    stage.wait_applied(worker)
    delete_topics(stage.bootstrap, [stage.prefix + ITEM_FEATURES])
    apply_topics(stage.bootstrap, stage.prefix, SHARDS, 1)
    stage.publish_raw(ITEM_FEATURES, [(0, b"", upsert(ITEMS[1], 9))])
    assert wait_exit(worker) == 78
    assert wait_exit(stage.start()) != 0
    assert "topic id of item-features: index has" in stage.log() and "publish the catalogue again" in stage.log()


def test_partitions_that_somebody_adds_stop_a_running_worker_and_the_next_start_by_name(stage: WorkerStage) -> None:
    """Clients that compute the partition from their number send ids to where no shard is, or where its id does not belong."""
    worker = stage.start_ready()
    publish(stage, 1)
    stage.wait_applied(worker)
    apply_topics(stage.bootstrap, stage.prefix, SHARDS + 1, 1, allow=[GROW])
    assert wait_exit(worker) == 78
    assert wait_exit(stage.start()) == 78
    assert wait_exit(stage.start(AIF_WORKER__APPLY_TOPICS="false")) == 78
    assert len(re.findall("other_partitions: .* the index has 2 shards", stage.log())) >= 3
    assert "publish the catalogue into a new index" in stage.log() and "--allow" not in stage.log()
    for shard in range(SHARDS):
        with stage.shard("worker", shard) as held:
            assert consumed(held.state.counters) == stage.expected_counters(shard)


def test_a_killed_worker_that_starts_again_does_not_wait_for_its_former_session(stage: WorkerStage) -> None:
    session_s = 60.0
    stage.settings = {"AIF_WORKER__SESSION_TIMEOUT_S": f"{session_s:g}"}
    worker = stage.start_ready()
    publish(stage, 1)
    stage.wait_applied(worker)
    kill_hard(worker)
    killed_s = time.monotonic()
    publish(stage, 2)
    stage.wait_applied(stage.start())
    assert time.monotonic() - killed_s < session_s


def test_a_worker_that_may_make_no_topics_names_a_missing_one_with_what_helps(stage: WorkerStage) -> None:
    missing = DEAD_LETTER_PREFIX + NEW_ITEMS
    delete_topics(stage.bootstrap, [stage.prefix + missing])
    assert wait_exit(stage.start(AIF_WORKER__APPLY_TOPICS="false")) == 78
    assert f"topic_missing: the broker has no {stage.prefix}{missing}; make the missing topics with `aif topics apply`" in stage.log()


@pytest.mark.campaign  # 10 s: its client looks for partitions every 5
def test_a_checkpoint_in_a_partition_that_somebody_adds_is_rejected_by_name_without_a_restart(stage: WorkerStage) -> None:
    worker, topic = stage.start_ready(), stage.prefix + MODEL_CHECKPOINTS
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
    wait_until(lambda: len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 2, WAIT_S, "the partition")
    stage.publish_raw(MODEL_CHECKPOINTS, [(1, b"", b"{}")])

    def codes() -> list[str]:
        letters = read_topic(stage.bootstrap, DEAD_LETTER_PREFIX + MODEL_CHECKPOINTS, prefix=stage.prefix)
        return [decode_dead_letter(list(letter.headers)).code for letter in letters]

    wait_until(lambda: codes() == ["checkpoint_partition"], WAIT_S, f"the dead letter; log: {worker.log_tail()}")
    assert stop_cleanly(worker) == 0
