"""A second `aif worker` without a directory, on a real broker whose log has lost its head: it starts from snapshots, and the digest is right."""

from collections.abc import Mapping
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from infra.clock import SystemClock
from infra.index.control_log import ControlLog
from infra.index.parts import read_manifest
from infra.index.store import open_index_store
from infra.kafka.reader import SourceRecord, read_topic
from infra.processes import wait_until
from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.index.digest import version_digest
from schemas.index.lifecycle import State
from schemas.index.manifest import Manifest
from schemas.topics import SHARD_TOPICS
from streams.builders.full_part import encode_blocks
from streams.shard.shard import open_shard
from streams.shard.shard_reader import open_shard_reader
from streams.shard.snapshot_files import list_snapshots
from tests.streams.digests import digest_blocks
from tests.streams.version_world import MM, checkpoint_bytes, encoder_of
from tests.streams.worker_stage import SHARDS, WAIT_S, WorkerStage, stop_cleanly

ITEMS = 300


OFTEN = {"AIF_BUILD__SNAPSHOT_EVERY_UPDATES": "100", "AIF_BUILD__REVISE_EVERY_S": "1"}


def publish(stage: WorkerStage, version: int) -> None:
    with stage.publisher() as publisher:
        publisher.publish_items(
            ItemFeaturesUpdate(op="upsert", item_id=i, version=version, features={"category": i % 5, "price": float(version + i)})
            for i in range(ITEMS)
        )
        publisher.publish_new_items(NewItem(item_id=i, embedding=[float(version + i + k) for k in range(MM)]) for i in range(0, ITEMS, 3))
        for i in range(0, ITEMS, 50):
            publisher.publish_delete(i, version)


def cut_head(stage: WorkerStage, to: Mapping[str, Mapping[int, int]]) -> None:
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    wanted = [TopicPartition(stage.prefix + topic, p, offset) for topic, by in to.items() for p, offset in by.items() if offset > 0]
    for future in admin.delete_records(wanted).values():
        future.result()


def snapshot_offsets(stage: WorkerStage) -> list[Mapping[str, int]]:
    store = open_index_store(str(stage.directory / "index"))
    found = [list_snapshots(store, n)[0] for n in range(SHARDS)]
    return [f[0].snapshot.next_offsets if f else {} for f in found]


def live_manifest(stage: WorkerStage) -> Manifest | None:
    store = open_index_store(str(stage.directory / "index"))
    status = ControlLog(store).refresh().versions.get(0)
    return read_manifest(store, status) if status is not None and status.state is State.LIVE else None


def expected_digest(stage: WorkerStage, records: list[SourceRecord]) -> str:
    """The digest of version 0 from records alone: fresh shards, one encode."""
    digests, encoder = [], encoder_of(0)
    for n in range(SHARDS):
        shard = open_shard(stage.directory / f"oracle-{n}", n, stage.init(), SystemClock())
        for topic in SHARD_TOPICS:
            shard.apply([r for r in records if (r.topic, r.partition) == (topic, n)])
        shard.create_checkpoint(stage.directory / f"oracle-{n}-copy")
        shard.close()
        with open_shard_reader(stage.directory / f"oracle-{n}-copy") as reader:
            digests.append(digest_blocks(encoder, encode_blocks(encoder, reader.scan_blocks())).hexdigest)
    return version_digest(digests)


def read_all(stage: WorkerStage, start: Mapping[str, Mapping[int, int]] | None = None) -> list[SourceRecord]:
    begins = start or {}
    return [r for topic in SHARD_TOPICS for r in read_topic(stage.bootstrap, topic, start=begins.get(topic), prefix=stage.prefix)]


@pytest.mark.timeout(300)
def test_a_worker_without_a_directory_takes_over_from_snapshots_after_the_log_s_head_is_gone(stage: WorkerStage) -> None:
    stage.settings = OFTEN
    first = stage.start_ready("first")
    publish(stage, 1)
    stage.publish_checkpoint(checkpoint_bytes())
    stage.wait_applied(first)
    wait_until(lambda: live_manifest(stage) is not None, WAIT_S, f"version 0 to be live; log: {first.log_tail()}")
    publish(stage, 2)
    stage.wait_applied(first)
    wait_until(lambda: all(sum(at.values()) > 1 for at in snapshot_offsets(stage)), WAIT_S, "snapshots of both shards")
    publish(stage, 3)
    stage.wait_applied(first)
    assert stop_cleanly(first) == 0
    before_the_cut = read_all(stage)
    cut = {topic: {n: at[topic] for n, at in enumerate(snapshot_offsets(stage))} for topic in SHARD_TOPICS}
    cut_head(stage, cut)
    publish(stage, 4)
    second = stage.start_ready("second")
    stage.wait_applied(second)
    records = before_the_cut + [r for r in read_all(stage, cut) if r not in before_the_cut]
    expected = expected_digest(stage, records)
    wait_until(lambda: (m := live_manifest(stage)) is not None and m.digest == expected, WAIT_S, f"a revision; log: {second.log_tail()}")
    assert "starts from snapshot" in stage.log("second")
    assert stop_cleanly(second) == 0
    for n in range(SHARDS):
        with (
            stage.shard("second", n) as shard,
            closing(open_shard(stage.directory / f"oracle-{n}", n, stage.init(), SystemClock())) as oracle,
        ):
            assert shard.state.counters == oracle.state.counters and shard.next_offsets == oracle.next_offsets
