"""The whole nearline way on a real broker without Faust, for tests of its replay: events, shards, builder processes, a live version."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.clock import SystemClock
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import IndexStore, open_index_store
from infra.kafka.admin import apply_topics, topic_ids
from infra.kafka.publisher import Publisher
from infra.kafka.reader import read_topic
from infra.processes import wait_until
from schemas.errors import AifError
from schemas.events import CheckpointRecord, ItemFeaturesUpdate, NewItem
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.lifecycle import State
from schemas.index.manifest import Manifest
from schemas.model.checkpoint import read_checkpoint
from schemas.model.item_network import encoder_fingerprint
from schemas.topics import MODEL_CHECKPOINTS, SHARD_TOPICS
from streams.builders.pool import BuilderPool
from streams.builders.template import start_from
from streams.encoder import EncoderCache
from streams.replay.points import ReplaySource, choose_manifest, plan_replay
from streams.replay.replay import run_replay
from streams.shard.log_ends import LogEnds
from streams.shard.outbox_sender import OutboxSender
from streams.shard.shard import open_shard
from streams.shard.task import ShardTask
from streams.versions.checkpoints import CheckpointGate, handle_checkpoints
from streams.versions.reconcile import Reconciler, ReconcileSettings
from streams.versions.version_messages import VersionMessages
from tests.streams.version_world import SCHEMA, checkpoint_bytes

SHARDS, ITEMS = 2, 500


@dataclass
class Nearline:
    """A worker's parts wired by hand, and its results."""

    bootstrap: str
    prefix: str
    folder: Path
    store: IndexStore
    init: Init
    manifest: Manifest

    @property
    def source(self) -> ReplaySource:
        return ReplaySource(self.bootstrap, self.prefix, self.init, self.store)


def publish_catalogue(publisher: Publisher) -> None:
    publisher.publish_items(
        ItemFeaturesUpdate(item_id=i, version=1, features={"category": i % 7, "price": 1.0 + i, "stock": float(i % 3)})
        for i in range(ITEMS)
    )
    publisher.publish_new_items(NewItem(item_id=i, embedding=[float((i * k) % 11 - 5) for k in range(1, 7)]) for i in range(0, ITEMS, 3))
    publisher.flush()


def publish_changes(publisher: Publisher) -> None:
    for i in range(0, 60, 7):
        publisher.publish_item(i, 2, {"category": 3, "price": 0.25})
        publisher.publish_delete(i + 1, 2)
        publisher.publish_new_item(i + 2, [1.0, -1.0, 2.0, -2.0, 3.0, float(i)])
    publisher.flush()


def consume(bootstrap: str, prefix: str, tasks: list[ShardTask], topic: str) -> None:
    """What Faust would do: everything that is new in a topic goes to the shards."""
    at = {t.number: t.submit(lambda s: s.next_offsets[topic]).result() for t in tasks}
    for record in list(read_topic(bootstrap, topic, start=at, prefix=prefix)):
        asyncio.run(tasks[record.partition].apply([record]))


def make_nearline(bootstrap: str, folder: Path) -> Nearline:
    """A catalogue, changes of it while its version was built, and that version live. Its parts are closed."""
    prefix = f"replay-{uuid.uuid4().hex[:12]}."
    apply_topics(bootstrap, prefix, SHARDS, 1)
    store, clock = open_index_store(str(folder / "store")), SystemClock()
    ids = {t: i for t, i in topic_ids(bootstrap, prefix).items() if t in SHARD_TOPICS}
    init = Init(SHARDS, 1, IdKind.INT64, {t: prefix + t for t in SHARD_TOPICS}, ids)
    ensure_init(ControlLog(store), init, 0, "test")
    tasks = [
        ShardTask(open_shard(folder / f"shard-{n}", n, init, clock), clock, lambda task: _sender(bootstrap, prefix, task))
        for n in range(SHARDS)
    ]
    with (
        BuilderPool(start_from(None, store.url), folder / "logs") as builders,
        VersionMessages(bootstrap, prefix) as messages,
        Publisher(bootstrap, prefix, "test", SHARDS, 1, IdKind.INT64) as publisher,
    ):
        ends, log = LogEnds(bootstrap, prefix), ControlLog(store)
        reconciler = Reconciler(
            log,
            store,
            clock,
            ReconcileSettings(),
            lambda: tasks,
            builders,
            ends,
            folder / "scratch",
            EncoderCache(store),
            "w",
            messages.announce,
        )

        def step_until(condition: Callable[[], bool], what: str) -> None:
            def stepped() -> bool:
                report = reconciler.step()
                assert not report.errors, report.errors
                return condition()

            wait_until(stepped, 60, what)

        step_until(lambda: all(t.admitted for t in tasks), "admission")
        publish_catalogue(publisher)
        for topic in SHARD_TOPICS:
            consume(bootstrap, prefix, tasks, topic)
        _announce_checkpoints(bootstrap, prefix, folder, store, publisher, messages)
        step_until(lambda: bool(tasks[0].submit(lambda s: s.versions).result()), "the version to be started")
        publish_changes(publisher)  # while it builds
        for topic in reversed(SHARD_TOPICS):
            consume(bootstrap, prefix, tasks, topic)
        step_until(lambda: log.state.live == 1, "version 1 to be live")
        assert log.state.versions[0].state is State.REJECTED
        manifest = choose_manifest(store, log.refresh(), "live")
        reconciler.close()
        for task in tasks:
            task.close()
    return Nearline(bootstrap, prefix, folder, store, init, manifest)


def _sender(bootstrap: str, prefix: str, task: ShardTask) -> OutboxSender:
    def fail(error: AifError) -> None:
        raise AssertionError(error)

    return OutboxSender(bootstrap, prefix, on_confirmed=task.confirmed, on_failure=fail, on_tick=task.tick)


def _announce_checkpoints(
    bootstrap: str, prefix: str, folder: Path, store: IndexStore, publisher: Publisher, messages: VersionMessages
) -> None:
    """A bad record at offset 0, a good one at offset 1, both decided."""
    path, data = folder / "model.safetensors", checkpoint_bytes()
    path.write_bytes(data)
    good = CheckpointRecord(
        uri=str(path), size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), model_id="model-0", feature_schema=SCHEMA.fingerprint
    )
    publisher.publish_checkpoint(good.model_copy(update={"sha256": "0" * 64}))
    publisher.publish_checkpoint(good)
    publisher.flush()
    gate = CheckpointGate(
        ControlLog(store),
        store,
        SystemClock(),
        encoder_fingerprint,
        (folder,),
        1.0,
        messages.send_dead_letter,
        read_checkpoint,
        messages.announce,
    )
    asyncio.run(handle_checkpoints(gate, list(read_topic(bootstrap, MODEL_CHECKPOINTS, prefix=prefix))))


def replay(nearline: Nearline, folder: Path, start: str = "earliest", to: str = "1.0", **changes: Any) -> Any:
    plan = plan_replay(nearline.source, ControlLog(nearline.store).refresh(), start, to)
    encoder = EncoderCache(nearline.store).get(1, nearline.manifest.checkpoint_sha256)
    return run_replay(nearline.source, plan, encoder, folder / "replay", SystemClock(), **changes)
