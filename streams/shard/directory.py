"""The RocksDB directory of a shard, with everything except micro-batches: identity, versions, the stored outbox, checkpoints.

    items        index key -> both components of the item   embeddings  index key -> float32 numbers of its embedding
    increments   version (u64 big-endian) + index key -> stamp and row, of every version that receives increments
    outbox       sequence -> message still to be sent        meta        state, identity, one entry for each version

Not thread-safe: one serial task owns it.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.rocks import Batch, Database
from schemas.errors import Corrupted, Incompatible
from schemas.index.control import Init
from streams.core.item import is_covered
from streams.core.shard_state import (
    SHARD_REPAIR,
    ShardState,
    ShardVersion,
    decode_shard_state,
    decode_shard_version,
    encode_identity,
    encode_shard_version,
)
from streams.encoder_protocol import Encoder
from streams.shard.outbox import OUTBOX, OutboxOwner

ITEMS, EMBEDDINGS, INCREMENTS, META = "items", "embeddings", "increments", "meta"
COLUMN_FAMILIES = (ITEMS, EMBEDDINGS, INCREMENTS, OUTBOX, META)
STATE_KEY, IDENTITY_KEY, INDEX_KEY, VERSION_PREFIX = b"state", b"identity", b"index", b"version/"


def increment_prefix(version: int) -> bytes:
    """Start of a version's keys in `increments`; the prefix of version + 1 is their end."""
    return version.to_bytes(8, "big")


def embedding_missing(key: bytes) -> Corrupted:
    """The error for an item whose stored value names an embedding that is not stored."""
    return Corrupted("embedding_missing", f"the shard stores item {key.hex()} with an embedding, and not the embedding; {SHARD_REPAIR}")


class ShardDirectory(OutboxOwner):
    """See the module. `versions` are those that this shard keeps rows for. After the shard is opened, their encoders have to be attached."""

    def __init__(self, database: Database, number: int, init: Init, clock: Clock) -> None:
        super().__init__(database)
        self.number, self.init = number, init
        self._clock = clock
        self._encoders: dict[int, Encoder] = {}
        self._check_identity()
        self._read_state()

    def _read_state(self) -> None:
        raw = self.database.get(META, STATE_KEY)
        self.state = ShardState() if raw is None else decode_shard_state(raw)
        entries = self.database.scan(META, VERSION_PREFIX, VERSION_PREFIX + b"\xff")
        self._versions = {v.version: v for v in (decode_shard_version(raw) for _, raw in entries)}

    def _check_identity(self) -> None:
        expected = encode_identity(self.number, self.init)
        if (found := self._keep_once(IDENTITY_KEY, expected)) != expected:
            raise Incompatible(
                "other_shard", f"{self.database.path} belongs to {found.decode()}, expected {expected.decode()}; use another data directory"
            )

    def hold_index(self, index_id: str) -> None:
        """Keeps which index its versions are of; a shard that has none yet takes this one. Raises Incompatible (`other_index_store`)."""
        if (found := self._keep_once(INDEX_KEY, index_id.encode()).decode()) != index_id:
            raise Incompatible(
                "other_index_store",
                f"{self.database.path} has rows and seals of index {found}, the index store holds index {index_id}, a new one: restore "
                "the former index store, or use another AIF_WORKER__DATA_DIR for the new index",
            )

    def _keep_once(self, key: bytes, value: bytes) -> bytes:
        """What `meta` has under a key; `value`, synced, where there was nothing."""
        found = self.database.get(META, key)
        if found is None:
            batch = self.database.new_batch()
            batch.put(META, key, value)
            self.database.write(batch, sync=True)
        return value if found is None else found

    # --- contents --------------------------------------------------------------------------------------------------

    @property
    def next_offsets(self) -> dict[str, int]:
        """Next offset of each source topic: everything before it is in the shard."""
        return dict(self.state.next_offsets)

    def next_offset(self, topic: str, _: int) -> int:
        """The same of one topic; a shard has one partition of each."""
        return self.state.next_offsets[topic]

    @property
    def versions(self) -> Mapping[int, ShardVersion]:
        """The versions of this shard, by number, ascending."""
        return dict(self._versions)

    def needs_encoders(self) -> list[ShardVersion]:
        """Versions that receive increments and have no encoder yet. Nothing can be applied before they have one."""
        return [v for v in self._versions.values() if not v.behind and v.version not in self._encoders]

    # --- versions ----------------------------------------------------------------------------------------------------

    def start_version(self, encoder: Encoder, want_end_offsets: Mapping[str, int]) -> ShardVersion:
        """Writes `building v`: from the next micro-batch on, its rows and deltas are written. Synced, so that a checkpoint taken after it has it (B6)."""
        started = self._start(ShardVersion(encoder.version, encoder.checkpoint_sha256, encoder.fingerprint, False, dict(want_end_offsets)))
        self._encoders[started.version] = encoder
        return started

    def start_behind(
        self, version: int, checkpoint_sha256: str, encoder_fingerprint: str, want_end_offsets: Mapping[str, int]
    ) -> ShardVersion:
        """The same for a version that this worker has no encoder of, or another one (B5): components are written, but no rows of this version."""
        return self._start(ShardVersion(version, checkpoint_sha256, encoder_fingerprint, True, dict(want_end_offsets)))

    def _start(self, started: ShardVersion) -> ShardVersion:
        started = dataclasses.replace(started, building_from_offsets=dict(self.state.next_offsets))
        batch = self.database.new_batch()
        batch.delete_range(INCREMENTS, increment_prefix(started.version), increment_prefix(started.version + 1))
        self._put_version(batch, started)
        failpoint("after-building")
        return started

    def attach_encoder(self, encoder: Encoder) -> None:
        """Attaches the encoder of a version that `needs_encoders` names. Raises Incompatible (`other_encoder`)."""
        known = self._versions[encoder.version]
        if (known.checkpoint_sha256, known.encoder_fingerprint) != (encoder.checkpoint_sha256, encoder.fingerprint):
            raise Incompatible(
                "other_encoder",
                f"version {encoder.version} of shard {self.number} was written by checkpoint {known.checkpoint_sha256[:12]} on "
                f"{known.encoder_fingerprint}, this encoder is {encoder.checkpoint_sha256[:12]} on {encoder.fingerprint}; mark it behind",
            )
        self._encoders[encoder.version] = encoder

    def update_version(self, version: int, **fields: Any) -> ShardVersion:
        """Replaces fields of a version's entry, synced. `behind=True` also stops its increments."""
        updated = dataclasses.replace(self._versions[version], **fields)
        self._put_version(self.database.new_batch(), updated)
        if updated.behind:
            self._encoders.pop(version, None)
        return updated

    def stop_version(self, version: int) -> None:
        """Forgets a version and its increments."""
        batch = self.database.new_batch()
        batch.delete(META, _version_key(version))
        batch.delete_range(INCREMENTS, increment_prefix(version), increment_prefix(version + 1))
        self.database.write(batch, sync=True)
        self._versions.pop(version, None)
        self._encoders.pop(version, None)

    def forget_increments(self, version: int, before: Mapping[str, int], after_key: bytes, rows_max: int) -> bytes | None:
        """Removes rows of a version whose last change lies before the offsets `before`, because its full part has them. Tombstones stay, because readers
        need their stamp. Looks at up to `rows_max` entries from `after_key` on. Returns the key to continue from, None at the end. A kill in between
        leaves more rows than needed, never fewer."""
        prefix, batch, last = increment_prefix(version), self.database.new_batch(), None
        scan = self.database.scan(INCREMENTS, prefix + after_key, increment_prefix(version + 1))
        for key, value in itertools.islice(scan, rows_max):
            last = key[len(prefix) :] + b"\0"
            if is_covered(value, before):
                batch.delete(INCREMENTS, key)
        scan.close()
        if len(batch):
            self.database.write(batch)
        return last

    def _put_version(self, batch: Batch, version: ShardVersion) -> None:
        batch.put(META, _version_key(version.version), encode_shard_version(version))
        self.database.write(batch, sync=True)
        self._versions = dict(sorted({**self._versions, version.version: version}.items()))

    # --- checkpoint, end ---------------------------------------------------------------------------------------------

    def create_checkpoint(self, directory: Path) -> None:
        """Makes a consistent copy of everything at this moment, for builders and seals: it writes the memtables, and makes hard links. It takes
        milliseconds after a flush, 0.7 s with 40 MB in memory."""
        failpoint("before-checkpoint")
        self.database.create_checkpoint(directory)

    def recover(self) -> None:
        """Reopens the database. After a full disk every write fails until that is done. Raises Unavailable while the disk is full.

        The state is read again, because a failed write may still have taken effect.
        """
        self.database.reopen()
        self._read_state()
        self._encoders = {version: encoder for version, encoder in self._encoders.items() if version in self._versions}
        self._outbox_from = None


def _version_key(version: int) -> bytes:
    return VERSION_PREFIX + b"%019d" % version
