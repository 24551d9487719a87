"""What becomes of a replay's rows: kept in its directory, or adopted as a version (protocol B3, B11).

    KeptRows  for `aif index diff`: an index store with full parts and one manifest, in the directory of the replay
    Adoption  in the index store, and a record in model-checkpoints that becomes the version

Invariants: a version that adopts is built like every other. Its shards first write increments, then take a checkpoint. From the replay they take over only
rows whose inputs are still those of the checkpoint. So rows newer than the replay are computed in the build. A replay may be old, have only half of
the shards, or be gone from the store: that only costs computing. Rows of another encoder are never taken over (I9).
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.index.diff import REPLAYED_REVISION, REPLAYED_ROWS
from infra.index.parts import write_full_part, write_replayed_part
from infra.index.store import IndexStore, open_index_store
from infra.kafka.publisher import Publisher
from schemas.errors import Misconfigured
from schemas.events import CheckpointRecord
from schemas.index.layout import RowBlock
from schemas.index.manifest import Manifest, Part, Seal, encode_manifest, manifest_path
from streams.encoder import RowEncoder
from streams.replay.adopted_parts import ReplayedParts, check_label, encode_replayed, replayed_path
from streams.replay.replay import Replayed


class KeptRows:
    """Takes the rows of each shard; `finish` writes the manifest. What an earlier attempt kept is replaced."""

    def __init__(self, directory: Path, encoder: RowEncoder) -> None:
        shutil.rmtree(directory / REPLAYED_ROWS, ignore_errors=True)
        self._store, self._encoder = open_index_store(str(directory / REPLAYED_ROWS)), encoder
        self._parts: dict[int, Part] = {}

    def keep(self, shard: int, blocks: Iterator[RowBlock], _: Mapping[str, int]) -> None:
        """Writes a shard's rows."""
        self._parts[shard] = write_full_part(self._store, REPLAYED_REVISION[0], shard, blocks, self._encoder.layout)

    def finish(self, replayed: Replayed, now_ms: int) -> None:
        """Writes the manifest, when all shards are there."""
        encoder, nothing = self._encoder, Part("", (), 0)
        seals = tuple(
            Seal(s.shard, self._parts[s.shard], nothing, 0, s.source_offsets, s.rows, s.digest, s.data_digest, encoder.fingerprint)
            for s in replayed.shards
        )
        feature_schema = encoder.spec.schema.fingerprint
        manifest = Manifest(
            *REPLAYED_REVISION,
            encoder.model_id,
            encoder.checkpoint_sha256,
            feature_schema,
            encoder.lsh_version,
            encoder.fingerprint,
            encoder.layout,
            seals,
            now_ms,
        )
        self._store.put_bytes(manifest_path(*REPLAYED_REVISION), encode_manifest(manifest))


class Adoption:
    """Takes the rows of each shard as they are replayed; `publish` makes them a version."""

    def __init__(self, store: IndexStore, label: str, encoder: RowEncoder) -> None:
        check_label(store, label)
        self._store, self._label, self._encoder = store, label, encoder
        self._parts: dict[int, Part] = {}
        self._offsets: dict[int, Mapping[str, int]] = {}

    def keep(self, shard: int, blocks: Iterator[RowBlock], source_offsets: Mapping[str, int]) -> None:
        """Writes a shard's rows into the store."""
        self._parts[shard] = write_replayed_part(self._store, self._label, shard, blocks, self._encoder.layout)
        self._offsets[shard] = source_offsets

    def publish(self, publisher: Publisher, record: CheckpointRecord) -> int:
        """Names the parts, then publishes the checkpoint under the label. Returns the new version. Raises Misconfigured (`label_taken`)."""
        encoder = self._encoder
        replayed = ReplayedParts(self._label, encoder.checkpoint_sha256, encoder.fingerprint, self._parts, self._offsets)
        if not self._store.put_exclusive(replayed_path(self._label), encode_replayed(replayed)):
            raise Misconfigured("label_taken", f"another replay was adopted as {self._label!r} meanwhile; choose another label")
        return publisher.publish_checkpoint(record.model_copy(update={"label": self._label})).result(30.0).offset
