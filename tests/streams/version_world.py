"""A small index for the tests of versions: real shards, a real folder store, the real encoder; the broker's topics as lists.

An oracle folds the same events with plain dictionaries and encodes the items that are left. A reader loads a published version and follows its deltas by the
row-stamp rule. Both give digests to compare.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from infra.index.control_log import ControlLog, ensure_init
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.store import IndexStore, open_index_store
from infra.kafka.reader import SourceRecord
from schemas.events import IndexEvent
from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import IdKind, encode_index_key, partition_of
from schemas.index.control import ControlState, Entry, Init, VersionStatus
from schemas.index.digest import ShardDigest, merge_parts, version_digest
from schemas.index.layout import STAMP, RowBlock, decode_delta, decode_increment, encode_increment
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import Manifest, checkpoint_path
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.checkpoint import encode_checkpoint
from schemas.model.checkpoint_file import read_checkpoint_file
from schemas.model.item_network import encoder_fingerprint
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS, SHARD_TOPICS
from streams.builders.jobs import Job
from streams.builders.pool import Ticket
from streams.builders.process import run_job
from streams.core.item import pack_features
from streams.core.misbehaviour import ReportHistory
from streams.encoder import EncoderCache, RowEncoder
from streams.shard.shard import Shard, open_shard
from streams.versions.attempts import StepReport
from streams.versions.reconcile import Reconciler, ReconcileSettings
from tests.schemas.index.stamp_rule import input_hash, is_newer
from tests.streams.shard_world import ManualClock, features_record, new_items_record

T = TypeVar("T")

torch.set_num_threads(1)  # as in a worker; test processes share two cores

MM = 6
SCHEMA = FeatureSchema(
    (
        Feature("category", Scope.ITEM, CATEGORICAL, buckets=20),
        Feature("price", Scope.ITEM, NUMERIC, default=1.0),
        Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
        Feature("image", Scope.ITEM, EMBEDDING, width=MM),
    ),
    sim_category="category",
    bid="price",
    multimodal="image",
)
SPEC = ModelSpec(
    SCHEMA, width=4, bridges=2, bridge_width=4, hash_bits=16, item_hidden=(6,), user_hidden=(6,), bridge_hidden=(6,), head_hidden=(6,)
)


@cache
def checkpoint_bytes(seed: int = 0, schema: FeatureSchema = SCHEMA) -> bytes:
    torch.manual_seed(seed)
    return encode_checkpoint(AifNetwork(dataclasses.replace(SPEC, schema=schema), make_w_hash(7, SPEC.hash_bits, MM)), f"model-{seed}", {})


@cache
def encoder_of(version: int, seed: int = 0) -> RowEncoder:
    return RowEncoder(version, read_checkpoint_file(checkpoint_bytes(seed)))


class World:
    """The logs of `shards` partitions, an index store, and the events so far."""

    def __init__(self, folder: Path, shards: int = 1) -> None:
        self.folder, self.shards, self.clock = folder, shards, ManualClock()
        self.store = open_index_store(str(folder / "store"))
        self.init = Init(shards, 1, IdKind.INT64, {t: t for t in SHARD_TOPICS})
        self.logs: dict[tuple[str, int], list[SourceRecord]] = {(t, p): [] for t in SHARD_TOPICS for p in range(shards)}
        self.deltas: list[list[bytes]] = [[] for _ in range(shards)]
        self.workers: list[Worker] = []
        ensure_init(ControlLog(self.store), self.init, 0, "test")

    @property
    def state(self) -> ControlState:
        """What the control log says now."""
        return ControlLog(self.store).refresh()

    def close(self) -> None:
        for worker in list(self.workers):
            worker.close()

    # --- events --------------------------------------------------------------------------------------------------------

    def publish_items(self, *updates: Mapping[str, Any]) -> None:
        self._publish(ITEM_FEATURES, updates, features_record)

    def publish_embeddings(self, *updates: Mapping[str, Any]) -> None:
        self._publish(NEW_ITEMS, updates, new_items_record)

    def _publish(self, topic: str, updates: tuple[Mapping[str, Any], ...], make: Callable[..., SourceRecord]) -> None:
        by_partition: dict[int, list[Any]] = {}
        for update in updates:
            by_partition.setdefault(partition_of(update["item_id"], self.shards), []).append(update)
        for partition, some in by_partition.items():
            log = self.logs[topic, partition]
            log.append(make(len(log), *some, partition=partition))

    def sources_end(self, shard: int) -> Mapping[str, int]:
        return {topic: len(self.logs[topic, shard]) for topic in SHARD_TOPICS}

    def deltas_end(self, shard: int) -> int:
        return len(self.deltas[shard])

    # --- control -------------------------------------------------------------------------------------------------------

    def want(self, version: int, seed: int = 0, fingerprint: str = "") -> None:
        self.want_bytes(version, checkpoint_bytes(seed), fingerprint)

    def want_bytes(self, version: int, data: bytes, fingerprint: str = "") -> None:
        encoder = RowEncoder(version, read_checkpoint_file(data))
        self.store.put_bytes(checkpoint_path(encoder.checkpoint_sha256), data)
        entry = Entry(
            EntryKind.WANT,
            self.clock.now_ms(),
            version=version,
            cause=Cause.CHECKPOINT,
            checkpoint_sha256=encoder.checkpoint_sha256,
            model_id=encoder.model_id,
            feature_schema=SCHEMA.fingerprint,
            encoder_fingerprint=fingerprint or encoder_fingerprint(),
        )
        self.write(entry)

    def write(self, entry: Entry) -> None:
        ControlLog(self.store).append(lambda _: entry)

    def manifest(self, version: int) -> Manifest:
        return read_manifest(self.store, self.state.versions[version])

    def entries(self, kind: EntryKind) -> int:
        """How often the log has an entry of this kind."""
        return sum(f'"kind":"{kind}"'.encode() in self.store.get(path) for path in self.store.list("control/"))

    # --- the oracle and the reader -------------------------------------------------------------------------------------

    def oracle_shard(self, shard: int, version: int, ends: Mapping[str, int], seed: int = 0) -> ShardDigest:
        """A plain fold of the events up to `ends`, then one encode."""
        features: dict[int, tuple[tuple[int, int, int], bool, dict[str, Any]]] = {}
        for record, index, update in _updates(self.logs[ITEM_FEATURES, shard][: ends[ITEM_FEATURES]]):
            stamp = (update["version"], record.offset, index)
            if update["item_id"] not in features or stamp > features[update["item_id"]][0]:
                features[update["item_id"]] = stamp, update["op"] == "delete", update.get("features", {})
        embeddings = {
            u["item_id"]: np.array(u["embedding"], np.float32).tobytes()
            for _, _, u in _updates(self.logs[NEW_ITEMS, shard][: ends[NEW_ITEMS]])
        }
        live = sorted(i for i, (_, dead, _) in features.items() if not dead)
        encoder = encoder_of(version, seed)
        rows = encoder.encode([features[i][2] for i in live], [embeddings.get(i) for i in live])
        stamps = np.zeros(len(live), STAMP)
        for stamp, item in zip(stamps, live, strict=True):
            stamp["input_hash"] = input_hash(pack_features(features[item][2]), embeddings.get(item, b""))
        digest = ShardDigest(encoder.layout, encoder.model_id, encoder.lsh_version)
        if live:
            digest.update(RowBlock([encode_index_key(i) for i in live], stamps, rows))
        return digest

    def oracle(self, version: int, seed: int = 0) -> tuple[str, str]:
        """(digest, data digest) of a version over all events."""
        shards = [self.oracle_shard(s, version, self.sources_end(s), seed) for s in range(self.shards)]
        return version_digest([d.hexdigest for d in shards]), version_digest([d.data_hexdigest for d in shards])

    def reader(self, version: int) -> tuple[str, str]:
        """What a server has that loaded the version's newest manifest and followed index-deltas from its positions."""
        manifest = self.manifest(version)
        digests = [self._read_shard(manifest, shard) for shard in range(self.shards)]
        return version_digest([d.hexdigest for d in digests]), version_digest([d.data_hexdigest for d in digests])

    def _read_shard(self, manifest: Manifest, shard: int) -> ShardDigest:
        seal, layout = manifest.seals[shard], manifest.layout
        held: dict[bytes, bytes] = {}
        for block in read_full_part(self.store, seal.full, layout):
            held |= {k: encode_increment(o, r) for k, o, r in zip(block.keys, block.stamps, block.rows, strict=True)}
        held |= dict(read_incremental_part(self.store, seal.incremental))
        for raw in self.deltas[shard][seal.delta_position :]:
            for key, value in decode_delta({manifest.version: layout}, raw).changes:
                known = None if key not in held else decode_increment(layout, held[key])[0]
                if known is None or is_newer(decode_increment(layout, value)[0], known):
                    held[key] = value
        digest = ShardDigest(layout, manifest.model_id, manifest.lsh_version)
        for block in merge_parts(layout, [], sorted(held.items())):
            digest.update(block)
        return digest


def _updates(records: list[SourceRecord]) -> "itertools.chain[tuple[SourceRecord, int, dict[str, Any]]]":
    import json

    return itertools.chain.from_iterable(
        ((record, index, update) for index, update in enumerate(json.loads(record.value or b"")["updates"])) for record in records
    )


class Task:
    """A shard without a thread: steps run at once. Has the interface of streams.shard.task.ShardTask that reconciling needs."""

    def __init__(self, world: World, number: int, directory: Path) -> None:
        self.number, self.world, self.admitted = number, world, False
        self.shard = open_shard(directory, number, world.init, world.clock)

    def submit(self, step: Callable[[Shard], T]) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(step(self.shard))
        except Exception as error:
            future.set_exception(error)
        return future

    def admit(self) -> None:
        self.admitted = True

    def consume(self) -> None:
        """Applies everything in the logs and sends the outbox."""
        if self.admitted:
            at = self.shard.next_offsets
            self.shard.apply([r for t in SHARD_TOPICS for r in self.world.logs[t, self.number][at[t] :]])
            self.send()

    def send(self) -> None:
        """The outbox goes to the topic."""
        for entry in self.shard.pending_outbox(10_000):
            if entry.topic == INDEX_DELTAS:
                assert entry.value is not None
                self.world.deltas[self.number].append(entry.value)
            self.shard.confirm_outbox(entry.sequence)


class InlineBuilders:
    """Does every job at once, in this thread."""

    def __init__(self, store: IndexStore) -> None:
        self.store, self.encoders = store, EncoderCache(store)

    def submit(self, job: Job) -> Ticket:
        ticket = Ticket(job)
        ticket.future.set_running_or_notify_cancel()
        try:
            ticket.future.set_result(run_job(lambda: (self.store, self.encoders), job, lambda _: None))
        except Exception as error:
            ticket.future.set_exception(error)
        return ticket


class Worker:
    """One process's reconciler with its shards, opened from its own folder."""

    def __init__(
        self,
        world: World,
        numbers: tuple[int, ...] = (0,),
        name: str = "w",
        builders: Any = None,
        slices: Path | None = None,
        reports_of: Callable[[], ReportHistory] = dict,
        lag: Callable[[VersionStatus], Mapping[int, int]] = lambda _: {},
        **settings: Any,
    ) -> None:
        self.world, self.events = world, list[IndexEvent]()
        world.workers.append(self)
        self.tasks = [Task(world, n, world.folder / f"shard-{n}") for n in numbers]
        self.reconciler = Reconciler(
            ControlLog(world.store),
            world.store,
            world.clock,
            ReconcileSettings(**settings),
            lambda: self.tasks,
            builders or InlineBuilders(world.store),
            world,
            world.folder / f"scratch-{name}",
            EncoderCache(world.store),
            name,
            self.events.append,
            slices,
            reports_of,
            lag=lag,
        )

    def step(self) -> StepReport:
        self.world.clock.seconds += 1
        report = self.reconciler.step()
        for task in self.tasks:
            task.consume()
        return report

    def settle(self, steps_max: int = 20) -> None:
        """Steps until nothing happens any more."""
        for _ in range(steps_max):
            report = self.step()
            assert not report.errors, report.errors
            if not report.done:
                return
        raise AssertionError(f"still busy after {steps_max} steps: {report}")

    def close(self) -> None:
        self.world.workers.remove(self)
        self.reconciler.close()
        for task in self.tasks:
            task.shard.close()
