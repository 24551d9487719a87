"""kill -9 of the worker, at the worst moments: nothing lost, nothing doubled, nothing to be done by hand (I1), and a replay agrees (I4)."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from infra.kafka.admin import end_offsets
from infra.kafka.reader import SourceRecord
from infra.processes import wait_until
from lab.demo.stage import SHARDS, json_figures
from schemas.events import NewItem
from schemas.ids import IdKind, partition_of
from schemas.index.layout import decode_delta
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, SHARD_TOPICS
from streams.shard.shard_reader import open_shard_reader
from tests.system.conftest import WAIT_S, System, open_system

CATALOGUE = 1_500


@pytest.fixture
def system(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[System]:
    one = open_system(tmp_path_factory.mktemp("killed"), bootstrap_servers, IdKind.TEXT)
    one.settings = {"AIF_WORKER__BATCH_RECORDS_MAX": "20"}  # many small batches: a kill falls between two of them
    try:
        yield one
    finally:
        one.stop()


def publish(system: System, numbers: Sequence[int], version: int) -> None:
    """Features one by one, embeddings in batches: both forms of records."""
    with system.publisher() as publisher:
        for n in numbers:
            publisher.publish_item(system.item_id(n), version, system.features(n, price=1.0 + version + n))
        publisher.publish_new_items(NewItem(item_id=system.item_id(n), embedding=system.embedding(n)) for n in numbers)


def applied_offsets(system: System) -> int:
    """How many records the worker has told to have applied, over all shards."""
    newest = {r.partition: decode_delta({}, r.value).header.next_offsets for r in system.read(INDEX_DELTAS) if r.value}
    return sum(map(sum, newest.values()))


def served_offsets(system: System) -> int:
    """How many records are in what the server answers from."""
    resident = next(r for r in system.status()["residents"])
    return sum(shard[topic] for shard in resident["watermark"] for topic in SHARD_TOPICS)


def published_records(system: System) -> int:
    return sum(sum(end_offsets(system.bootstrap_servers, system.topic_prefix + topic).values()) for topic in SHARD_TOPICS)


def counts_of_shards(system: System, topic: str) -> Counter[str]:
    """The counters that the shards wrote in their batches, read from copies of their directories."""
    total: Counter[str] = Counter()
    for shard in range(SHARDS):
        copy = system.directory / "copies" / f"{topic}-{shard}"
        shutil.copytree(system.directory / "worker" / "shards" / f"{shard:05d}", copy)
        with open_shard_reader(copy) as reader:
            counts = reader.state.counters[topic]
        total += Counter({name: getattr(counts, name) for name in ("consumed", "applied", "superseded", "dead_lettered")})
    return total


def counts_of_topic(records: Sequence[SourceRecord]) -> tuple[Counter[str], set[str]]:
    """What a plain fold of the topic says, and the live ids. One unreadable record is one update."""
    total: Counter[str] = Counter(consumed=0, applied=0, superseded=0, dead_lettered=0)
    newest: dict[str, int] = {}
    live: dict[str, bool] = {}
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        try:
            updates = json.loads(record.value or b"")["updates"]
        except ValueError:
            updates = [{"item_id": ""}]
        for update in updates:
            item, version = update["item_id"], update.get("version", 0)
            total["consumed"] += 1
            if not item or partition_of(item, SHARDS) != record.partition:
                total["dead_lettered"] += 1
            elif version < newest.get(item, 0):
                total["superseded"] += 1
            else:
                total["applied"] += 1
                newest[item], live[item] = version, update.get("op") != "delete"
    return total, {item for item, is_live in live.items() if is_live}


@pytest.mark.timeout(300)  # three starts of a worker, two sessions that have to time out
def test_every_event_is_applied_once_and_the_version_goes_live_though_the_worker_is_killed_in_a_batch_and_in_a_build(
    system: System,
) -> None:
    system.start_server()
    publish(system, range(CATALOGUE // 2), version=1)
    system.start_worker()
    wait_until(lambda: applied_offsets(system) > 0, WAIT_S, "a first batch to be applied")
    publish(system, range(CATALOGUE // 2, CATALOGUE), version=1)
    system.kill_hard("worker")
    applied_at_kill = applied_offsets(system)

    publish(system, range(0, 300, 3), version=5)
    publish(system, range(0, 300, 6), version=4)  # too late: superseded
    bad = [system.produce(topic, 1, value) for topic, value in itertools.product(SHARD_TOPICS, (b"\xff not json", strange(system, 0)))]
    version = system.publish_checkpoint(system.write_checkpoint("first", seed=1))
    system.start_worker()
    system.wait_state(lambda s: version in s.versions, "the version to be wanted")
    system.kill_hard("worker")

    with system.publisher() as publisher:
        for n in range(0, 300, 30):
            publisher.publish_delete(system.item_id(n), 6)
    system.start_worker()
    system.wait_served(version)
    wait_until(lambda: served_offsets(system) == published_records(system), WAIT_S, "every record to be served")
    rows = system.status()["residents"][0]["rows"]
    system.stop_worker()
    replay = json_figures(system.run("replay", "replay", "--directory", str(system.directory / "replay"), "--batch-size", "7", "--json"))

    assert 0 < applied_at_kill < published_records(system)
    assert replay["digest_equal"] == 1 and replay["items"] == CATALOGUE - 10
    for topic in SHARD_TOPICS:
        expected, live = counts_of_topic(system.read(topic))
        assert counts_of_shards(system, topic) == expected
        assert expected["dead_lettered"] == 2
        assert {(d.partition, d.offset) for d, _ in system.dead_letters(topic)} == {
            (r.partition, r.offset) for r in bad if r.topic == topic
        }
        if topic == ITEM_FEATURES:
            assert expected["superseded"] == 50 and rows == len(live) == CATALOGUE - 10


def strange(system: System, partition: int) -> bytes:
    """An update of an item that belongs to `partition`; fits both topics but for its own fields."""
    item = next(i for i in map(system.item_id, range(10_000, 20_000)) if partition_of(i, SHARDS) == partition)
    return json.dumps({"schema": 1, "updates": [{"item_id": item, "version": 1}]}).encode()
