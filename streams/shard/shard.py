"""A shard: partition p of item-features and new-items, held in one RocksDB directory with one owner (docs/PROTOCOL.md, A).

Here: a micro-batch, from records to one WriteBatch. The directory itself, with its versions and its outbox, is in directory.py.

Invariants: only the directory is the truth, so a crash between any two steps is a crash before or after one WriteBatch (I1). The same log to the same
offsets gives the same components, counters and rows, whatever the batches (I4).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.kafka.dead_letters import encode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database, open_database
from schemas.errors import Unavailable
from schemas.index.control import Init
from schemas.index.layout import WATERMARK_VERSION, DeltaHeader, encode_block, plan_delta_cuts, stack_increments
from schemas.topics import DEAD_LETTER_PREFIX
from streams.core.batching import plan_batches, plan_fresh
from streams.core.item import dependencies_of
from streams.core.shard_state import ShardState, TopicCounts, encode_shard_state, fold_work
from streams.encoder_protocol import Encoder
from streams.shard.batch_result import BatchResult
from streams.shard.decode import DecodedRecord, decode_source_record
from streams.shard.directory import COLUMN_FAMILIES, EMBEDDINGS, INCREMENTS, ITEMS, META, STATE_KEY, ShardDirectory, increment_prefix
from streams.shard.fold import FoldedBatch, fold_batch, read_embeddings
from streams.shard.outbox import OutboxEntry, Outgoing, put_outbox
from streams.shard.row_changes import RowChanges, encode_row_changes

WATERMARK_EVERY_S = 0.1  # B16: at most ten a second


def open_shard(directory: Path, number: int, init: Init, clock: Clock) -> "Shard":
    """Opens or creates the directory of shard `number`. Raises Incompatible (`other_shard`) if it belongs to another index or shard."""
    database = open_database(directory, COLUMN_FAMILIES)
    try:
        return Shard(database, number, init, clock)
    except BaseException:
        database.close()
        raise


class Shard(ShardDirectory):
    """See the module."""

    def __init__(self, database: Database, number: int, init: Init, clock: Clock) -> None:
        super().__init__(database, number, init, clock)
        self._watermark_at = float("-inf")
        self._watermarked: ShardState | None = None

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

    def recover(self) -> None:
        """Reopens the database. The last watermark is forgotten, because readers may not have got it. Raises Unavailable while the disk is full."""
        super().recover()
        self._watermark_at, self._watermarked = float("-inf"), None
