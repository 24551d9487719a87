"""A shard: partition p of item-features and new-items, held in one RocksDB directory with one owner (docs/PROTOCOL.md, A).

    items        index key -> both components of the item   embeddings  index key -> float32 numbers of its embedding
    increments   version (u64 big-endian) + index key -> stamp and row, of every version that receives increments
    outbox       sequence -> message still to be sent        meta        state, identity, one entry for each version

Invariants: only this directory is the truth, so a crash between any two steps is a crash before or after one WriteBatch (I1). The same log to the same
offsets gives the same components, counters and rows, whatever the batches (I4). Not thread-safe: one serial task owns it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.kafka.dead_letters import encode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database, open_database
from schemas.errors import Incompatible, Unavailable
from schemas.index.control import Init
from schemas.index.layout import WATERMARK_VERSION, DeltaHeader, encode_block, plan_delta_cuts, stack_increments
from schemas.topics import DEAD_LETTER_PREFIX
from streams.core.batching import plan_batches, plan_fresh
from streams.core.item import dependencies_of, is_covered
from streams.core.shard_state import (
    ShardState,
    ShardVersion,
    TopicCounts,
    decode_shard_state,
    decode_shard_version,
    encode_identity,
    encode_shard_state,
    encode_shard_version,
    fold_work,
)
from streams.encoder_protocol import Encoder
from streams.shard.batch_result import BatchResult
from streams.shard.decode import DecodedRecord, decode_source_record
from streams.shard.fold import EMBEDDINGS, ITEMS, FoldedBatch, fold_batch, read_embeddings
from streams.shard.outbox import OUTBOX, OutboxEntry, Outgoing, encode_outbox_key, put_outbox, read_outbox
from streams.shard.row_changes import RowChanges, encode_row_changes

INCREMENTS, META = "increments", "meta"
COLUMN_FAMILIES = (ITEMS, EMBEDDINGS, INCREMENTS, OUTBOX, META)
STATE_KEY, IDENTITY_KEY, INDEX_KEY, VERSION_PREFIX = b"state", b"identity", b"index", b"version/"
WATERMARK_EVERY_S = 0.1  # B16: at most ten a second


def increment_prefix(version: int) -> bytes:
    """Start of a version's keys in `increments`; the prefix of version + 1 is their end."""
    return version.to_bytes(8, "big")


def open_shard(directory: Path, number: int, init: Init, clock: Clock) -> "Shard":
    """Opens or creates the directory of shard `number`. Raises Incompatible (`other_shard`) if it belongs to another index or shard."""
    database = open_database(directory, COLUMN_FAMILIES)
    try:
        return Shard(database, number, init, clock)
    except BaseException:
        database.close()
        raise


class Shard:
    """See the module. `versions` are those that this shard keeps rows for. After the shard is opened, their encoders have to be attached."""

    def __init__(self, database: Database, number: int, init: Init, clock: Clock) -> None:
        self.number, self.init = number, init
        self.database, self._clock = database, clock
        self._encoders: dict[int, Encoder] = {}
        self._watermark_at = float("-inf")
        self._watermarked: ShardState | None = None
        self._outbox_from: int | None = None  # the first entry that may be left; None after opening
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

    @property
    def versions(self) -> Mapping[int, ShardVersion]:
        """The versions of this shard, by number, ascending."""
        return dict(self._versions)

    def needs_encoders(self) -> list[ShardVersion]:
        """Versions that receive increments and have no encoder yet. Nothing can be applied before they have one."""
        return [v for v in self._versions.values() if not v.behind and v.version not in self._encoders]

    # --- a micro-batch ---------------------------------------------------------------------------------------------

    def apply(self, records: Sequence[SourceRecord], on_written: Callable[[Sequence[OutboxEntry]], None] = lambda _: None) -> BatchResult:
        """Applies records, each topic's in offset order: one WriteBatch, or several where there are more than WRITE_BATCH_UPDATES_MAX updates.

        on_written: gets what each WriteBatch put into the outbox as soon as it is written, so that readers do not wait for the last one.
        Records below the next offset are dropped as duplicates. Raises Incompatible (`offset_gap`) and Unavailable (`encoder_missing`) before it
        writes anything.
        """
        missing = self.needs_encoders()
        if missing:
            raise Unavailable("encoder_missing", f"shard {self.number} has no encoder for versions {[v.version for v in missing]} yet")
        result = BatchResult(self._clock.monotonic())
        fresh = plan_fresh(self.number, self.state.next_offsets, [(r.topic, r.offset) for r in records])
        decoded = [decode_source_record(records[i], self.init.id_kind, self.init.shards) for i in fresh]
        result.lap("decode", self._clock.monotonic())
        for cut in plan_batches([len(d) for d in decoded]):
            entries = self._write_micro_batch(decoded[cut], result)
            if entries:
                on_written(entries)
            result.outbox += entries
        return result

    def _write_micro_batch(self, decoded: Sequence[DecodedRecord], result: BatchResult) -> list[OutboxEntry]:
        folded = fold_batch(decoded, self.database)
        for one in decoded:
            if not one.record.skipped:
                result.record_times_ms.setdefault(one.record.topic, []).append(one.record.timestamp_ms)
        batch = self.database.new_batch()
        outgoing = Outgoing(self.state.next_outbox, self.state.next_delta)
        self._add_dead_letters(decoded, outgoing, result)
        after = self._advanced(decoded, folded.counts)
        result.lap("fold", self._clock.monotonic())
        rows, after = self._encode_rows(folded, after, outgoing, result)
        result.lap("rows", self._clock.monotonic())
        batch.put_all(ITEMS, sorted(folded.stored_items()))
        batch.put_all(EMBEDDINGS, folded.stored_embeddings())
        batch.put_all(INCREMENTS, rows)
        self._commit(batch, after, outgoing)
        result.lap("write", self._clock.monotonic())
        for topic, count in folded.counts.items():
            result.counts[topic] = result.counts.get(topic, TopicCounts()) + count
        return outgoing.entries

    def _advanced(self, decoded: Sequence[DecodedRecord], counts: Mapping[str, TopicCounts]) -> ShardState:
        next_offsets = {**self.state.next_offsets, **{d.record.topic: d.record.offset + 1 for d in decoded}}
        source_ms = max([self.state.source_ms, *(d.record.timestamp_ms for d in decoded)])
        counters = {topic: self.state.counters[topic] + count for topic, count in counts.items()}
        return dataclasses.replace(self.state, next_offsets=next_offsets, counters=counters, source_ms=source_ms)

    def _add_dead_letters(self, decoded: Sequence[DecodedRecord], outgoing: Outgoing, result: BatchResult) -> None:
        for one in decoded:
            for rejection in one.rejected:
                key, value, headers = encode_dead_letter(one.record, rejection)
                outgoing.add(DEAD_LETTER_PREFIX + one.record.topic, None, key, value, tuple(headers))
                result.dead_letters[one.record.topic, rejection.disposition] += 1

    def _encode_rows(
        self, folded: FoldedBatch, after: ShardState, outgoing: Outgoing, result: BatchResult
    ) -> tuple[list[tuple[bytes, bytes]], ShardState]:
        """(rows of the family `increments`, the state with the work that was done) for EVERY version that receives increments; adds their deltas."""
        stored: list[tuple[bytes, bytes]] = []
        done: dict[int, Mapping[str, int]] = {}
        for version, encoder in sorted(self._encoders.items()):
            prefix, dependencies = increment_prefix(version), dependencies_of(encoder.spec.schema)

            def old_rows(keys: Sequence[bytes], prefix: bytes = prefix) -> list[bytes | None]:
                return self.database.multi_get(INCREMENTS, [prefix + key for key in keys])

            rows = encode_row_changes(encoder, dependencies, folded.items, old_rows, lambda items: read_embeddings(self.database, items))
            if rows.changes:
                rows.changes.sort()  # a delta's rows ascend, and RocksDB takes ascending keys in half the time
                stored += [(prefix + key, value) for key, value in rows.changes]
                self._add_deltas(encoder, rows, after, outgoing)
            result.work += rows.work
            done[version] = rows.work
        self._add_watermark_if_due(after, outgoing)
        return stored, fold_work(after, done)

    def _add_deltas(self, encoder: Encoder, rows: RowChanges, after: ShardState, outgoing: Outgoing) -> None:
        """Only the last delta record of a batch names the offsets after the batch, because the earlier ones do not hold all of its rows."""
        cuts = plan_delta_cuts(encoder.layout, [key for key, _ in rows.changes])
        for cut in cuts:
            offsets = after.delta_offsets if cut is cuts[-1] else self.state.delta_offsets
            header = DeltaHeader(encoder.version, self.number, outgoing.next_delta, offsets, after.source_ms)
            outgoing.add_delta(header, encode_block(encoder.layout, stack_increments(encoder.layout, rows.changes[cut])))

    def _add_watermark_if_due(self, after: ShardState, outgoing: Outgoing) -> None:
        """One for each version that receives rows. So nothing is claimed of a frozen version, also to a server that has not heard of the freeze."""
        now = self._clock.monotonic()
        if now - self._watermark_at >= WATERMARK_EVERY_S:
            for version in [v.version for v in self._versions.values() if not v.behind] or [WATERMARK_VERSION]:
                header = DeltaHeader(version, self.number, outgoing.next_delta, after.delta_offsets, after.source_ms)
                outgoing.add_delta(header)
            self._watermark_at, self._watermarked = now, after

    def _commit(self, batch: Batch, after: ShardState, outgoing: Outgoing, sync: bool = False) -> None:
        """The one place where the shard moves on: outbox and state are added to the batch, which is then written as a whole."""
        put_outbox(batch, outgoing.entries)
        after = dataclasses.replace(after, next_outbox=outgoing.next_sequence, next_delta=outgoing.next_delta)
        batch.put(META, STATE_KEY, encode_shard_state(after))
        failpoint("before-write")
        self.database.write(batch, sync=sync)
        failpoint("after-write")
        self.state = after

    def write_due(self) -> list[OutboxEntry]:
        """Puts the source offsets into the outbox if readers lack them and the last watermark is long enough ago (B16). Returns the new entries."""
        outgoing = Outgoing(self.state.next_outbox, self.state.next_delta)
        if self._watermarked is None or self._watermarked.next_offsets != self.state.next_offsets:
            self._add_watermark_if_due(self.state, outgoing)
        if outgoing.entries:
            self._commit(self.database.new_batch(), self.state, outgoing)
        return outgoing.entries

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

    # --- outbox, checkpoint, end -------------------------------------------------------------------------------------

    def pending_outbox(self, entries_max: int, after: int = -1) -> list[OutboxEntry]:
        """The oldest entries with a sequence above `after` that are not confirmed, at most `entries_max` and about OUTBOX_PAGE_BYTES."""
        return read_outbox(self.database, entries_max, after)

    def confirm_outbox(self, up_to_sequence: int) -> None:
        """Removes entries up to and with `up_to_sequence`: the broker has them."""
        batch = self.database.new_batch()
        if self._outbox_from is None:
            batch.delete_range(OUTBOX, encode_outbox_key(0), encode_outbox_key(up_to_sequence + 1))
        else:  # one by one: every new iterator would look at each range that was ever deleted in the memtable (2,000 of them: 25 ms)
            for sequence in range(self._outbox_from, up_to_sequence + 1):
                batch.delete(OUTBOX, encode_outbox_key(sequence))
        self.database.write(batch)
        self._outbox_from = up_to_sequence + 1

    def create_checkpoint(self, directory: Path) -> None:
        """Makes a consistent copy of everything at this moment, for builders and seals: it writes the memtables, and makes hard links. It takes
        milliseconds after a flush, 0.7 s with 40 MB in memory."""
        failpoint("before-checkpoint")
        self.database.create_checkpoint(directory)

    def recover(self) -> None:
        """Reopens the database. After a full disk every write fails until that is done. Raises Unavailable while the disk is full.

        The state is read again, because a failed write may still have taken effect. The last watermark is forgotten, because readers may not have got it.
        """
        self.database.reopen()
        self._read_state()
        self._encoders = {version: encoder for version, encoder in self._encoders.items() if version in self._versions}
        self._watermark_at, self._watermarked, self._outbox_from = float("-inf"), None, None

    def close(self) -> None:
        """Frees the directory."""
        self.database.close()


def _version_key(version: int) -> bytes:
    return VERSION_PREFIX + b"%019d" % version
