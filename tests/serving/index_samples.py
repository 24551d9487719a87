"""Small published versions in a real index store, and deltas in a real topic, for the tests that load and follow them."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from confluent_kafka import Producer

from infra.index.control_log import ControlLog
from infra.index.parts import write_full_part, write_incremental_part
from infra.index.store import IndexStore
from infra.kafka.admin import apply_topics
from schemas.ids import Id, encode_index_key, partition_of
from schemas.index.control import ControlState, Entry, Init
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.layout import (
    STAMP,
    DeltaHeader,
    RowBlock,
    encode_block,
    encode_delta,
    encode_increment,
    row_layout,
    stack_increments,
)
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import Manifest, Seal, checkpoint_path, encode_manifest, manifest_path
from schemas.model.checkpoint import Checkpoint, encode_checkpoint, read_checkpoint
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS
from tests.serving.engine.samples import Version, stamp

SHARDS = 2
FINGERPRINT = "test"


def decide(log: ControlLog, kind: EntryKind, version: int = -1, **fields: object) -> ControlState:
    """One entry of the control log."""
    return log.append(lambda _: Entry(kind, 1, "test", version=version, **fields))  # type: ignore[arg-type]


def write_identity(log: ControlLog, version: Version, topic_ids: Mapping[str, str] | None = None) -> None:
    """The init entry."""
    decide(log, EntryKind.INIT, init=Init(SHARDS, 1, version.spec.schema.id_kind, {}, topic_ids or {}))


def full_blocks(version: Version, shard: int) -> list[RowBlock]:
    """The rows of one shard as blocks of 64."""
    chosen = sorted((encode_index_key(i), at) for at, i in enumerate(version.ids) if partition_of(i, SHARDS) == shard)
    cuts = [chosen[at : at + 64] for at in range(0, len(chosen), 64)]
    return [RowBlock([k for k, _ in cut], np.repeat(stamp(), len(cut)), version.rows[[at for _, at in cut]]) for cut in cuts]


def seal_shard(
    store: IndexStore,
    checkpoint: Checkpoint,
    version: Version,
    numbers: tuple[int, int, int],
    increments: Sequence[tuple[bytes, bytes]],
    position: int,
) -> Seal:
    """One shard of version numbers = (v, r, shard): a full part of the version's rows, and these increments over it."""
    number, revision, shard = numbers
    layout, blocks = row_layout(version.spec), full_blocks(version, shard)
    digest = ShardDigest(layout, checkpoint.info.model_id, checkpoint.info.lsh_version or "")
    for block in merge_parts(layout, blocks, increments):
        digest.update(block)
    full = write_full_part(store, number, shard, blocks, layout)
    incremental = write_incremental_part(store, number, revision, shard, increments)
    offsets = dict.fromkeys(SHARD_TOPICS, 7)
    return Seal(shard, full, incremental, position, offsets, digest.rows, digest.hexdigest, digest.data_hexdigest, FINGERPRINT)


def publish_version(
    store: IndexStore,
    log: ControlLog,
    version: Version,
    number: int,
    increments: Sequence[tuple[Id, np.ndarray, np.ndarray | None]] = (),
    positions: Sequence[int] = (0, 0),
    promote: bool = True,
    revision: int = 0,
    cause: Cause | None = None,
) -> Manifest:
    """want (or a revision of it), parts, manifest, publish and promote of `number`; increments = (id, stamp, row or None)."""
    raw = encode_checkpoint(version.network, f"model-{number}", {})
    checkpoint = read_checkpoint(raw)
    store.put_bytes(checkpoint_path(checkpoint.info.sha256), raw)
    info, cause = checkpoint.info, cause or (Cause.CHECKPOINT if revision == 0 else Cause.REVISE)
    facts = {"checkpoint_sha256": info.sha256, "model_id": info.model_id, "encoder_fingerprint": FINGERPRINT}
    decide(log, EntryKind.WANT, number, revision=revision, cause=cause, **facts)
    seals = []
    for shard in range(SHARDS):
        mine = sorted((encode_index_key(i), encode_increment(o, r)) for i, o, r in increments if partition_of(i, SHARDS) == shard)
        seals.append(seal_shard(store, checkpoint, version, (number, revision, shard), mine, positions[shard]))
    manifest = Manifest(
        number,
        revision,
        info.model_id,
        info.sha256,
        info.schema_fingerprint,
        info.lsh_version or "",
        FINGERPRINT,
        row_layout(version.spec),
        tuple(seals),
        1,
    )
    put_manifest(store, log, manifest, promote)
    return manifest


def put_manifest(store: IndexStore, log: ControlLog, manifest: Manifest, promote: bool = True) -> None:
    """A manifest in its place, its publish entry, and its promotion."""
    raw = encode_manifest(manifest)
    store.put_exclusive(manifest_path(manifest.version, manifest.revision), raw)
    sha256 = hashlib.sha256(raw).hexdigest()
    decide(log, EntryKind.PUBLISH, manifest.version, revision=manifest.revision, manifest_sha256=sha256)
    if promote and manifest.revision == 0:
        decide(log, EntryKind.PROMOTE, manifest.version)


class DeltaWriter:
    """Writes index-deltas of a test's own topics as shards do."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._topic = prefix + INDEX_DELTAS
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        apply_topics(bootstrap, prefix, SHARDS, 1)

    def write(self, version: Version, number: int, changes: Sequence[tuple[Id, np.ndarray, np.ndarray | None]], source_ms: int = 5) -> None:
        """One record per shard that has changes."""
        layout = row_layout(version.spec)
        for shard in range(SHARDS):
            pairs = sorted((encode_index_key(i), encode_increment(o, r)) for i, o, r in changes if partition_of(i, SHARDS) == shard)
            if pairs:
                newest = max(int(np.frombuffer(v, STAMP, 1)["features_offset"][0]) for _, v in pairs)
                header = DeltaHeader(number, shard, 0, (newest + 1, 7), source_ms)
                self._producer.produce(
                    self._topic, encode_delta(header, encode_block(layout, stack_increments(layout, pairs))), partition=shard
                )
        assert self._producer.flush(30) == 0

    def write_raw(self, shard: int, value: bytes) -> None:
        """Any bytes."""
        self._producer.produce(self._topic, value, partition=shard)
        assert self._producer.flush(30) == 0
