"""A replay adopted as a version: its rows in the index store, and a record in model-checkpoints that becomes the version (protocol B3, B11).

Here: the order of the steps. Not here: replaying (replay.py), the files (parts.py), taking rows over (streams/builders/base_rows.py).
Invariants: the version is built like every other: its shards first write increments, then take a checkpoint, and from the replay they take over only rows
whose inputs are still those of the checkpoint. So what is newer than the replay is computed in the build. A replay may be old, have only half of the
shards, or be gone from the store: that only costs computing. Rows of another encoder are never taken over (I9).
"""

from collections.abc import Iterator, Mapping

from infra.index.parts import write_replayed_part
from infra.index.store import IndexStore
from infra.kafka.publisher import Publisher
from schemas.errors import Misconfigured
from schemas.events import CheckpointRecord
from schemas.index.layout import RowBlock
from schemas.index.manifest import Part
from streams.encoder import RowEncoder
from streams.replay.parts import ReplayedParts, check_label, encode_replayed, replayed_path


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
            raise Misconfigured("label_taken", f"somebody adopted a replay as {self._label!r} meanwhile; choose another label")
        return publisher.publish_checkpoint(record.model_copy(update={"label": self._label})).result(30.0).offset
