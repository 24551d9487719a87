"""A shard: partition p of item-features and new-items, held in one RocksDB directory with one owner (docs/PROTOCOL.md, A).

Here: a micro-batch, from records to one WriteBatch. The directory itself, with its versions and its outbox, is in directory.py.

Invariants: only the directory is the truth, so a crash between any two steps is a crash before or after one WriteBatch (I1). The same log to the same
offsets gives the same components, counters and rows, whatever the batches (I4). A row is rewritten without the network only from a stored row whose input
hash is that of the components before the batch. Every other row is encoded. Both ways give the same bits.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.kafka.dead_letters import encode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database, open_database
from schemas.errors import Unavailable
from schemas.index.control import Init
from schemas.index.layout import (
    DEAD_AT,
    STAMP,
    WATERMARK_VERSION,
    DeltaHeader,
    RowLayout,
    decode_increment,
    encode_block,
    encode_delta,
    plan_delta_cuts,
    stack_increments,
)
from schemas.index.manifest import ENCODED, REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES
from schemas.topics import DEAD_LETTER_PREFIX, INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS
from streams.core.batching import plan_batches, plan_fresh
from streams.core.item import (
    NOT_STORED,
    NOTHING,
    SIGNATURE,
    VECTOR,
    FeaturesUpdate,
    ItemChange,
    decode_item,
    dependencies_of,
    encode_item,
    encode_stamp,
    input_hash_of,
)
from streams.core.shard_state import ShardState, TopicCounts, encode_shard_state, fold_work
from streams.encoder_protocol import Encoder
from streams.shard.batch_result import BatchResult
from streams.shard.decode import DecodedRecord, decode_source_record
from streams.shard.directory import (
    COLUMN_FAMILIES,
    EMBEDDINGS,
    INCREMENTS,
    ITEMS,
    META,
    STATE_KEY,
    ShardDirectory,
    embedding_missing,
    increment_prefix,
)
from streams.shard.outbox import OutboxEntry, Outgoing, put_outbox

WATERMARK_EVERY_S = 0.1  # B16: at most ten a second
REMOVED = "rows_removed"  # a cause of work, as those in schemas/index/manifest.py
_HASH_AT = int(STAMP.fields["input_hash"][1]) if STAMP.fields else 0


@dataclass(slots=True)
class RowChanges:
    """New rows of a version, as (index key, increment value), and the work that they took."""

    changes: list[tuple[bytes, bytes]] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)


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
        """Writes records in one WriteBatch: items, rows of every version that receives increments, outbox and state. Returns the new entries of the outbox."""
        items, counts = self._fold(decoded)
        for one in decoded:
            if not one.record.skipped:
                result.record_times_ms.setdefault(one.record.topic, []).append(one.record.timestamp_ms)
        batch = self.database.new_batch()
        outgoing = Outgoing(self.state.next_outbox, self.state.next_delta)
        self._add_dead_letters(decoded, outgoing, result)
        after = self._advanced(decoded, counts)
        result.lap("fold", self._clock.monotonic())
        rows, after = self._encode_rows(items, after, outgoing, result)
        result.lap("rows", self._clock.monotonic())
        batch.put_all(ITEMS, sorted([(item.key, encode_item(item.features, item.embedding)) for item in items if item.is_changed]))
        batch.put_all(EMBEDDINGS, [(item.key, item.embedding_values) for item in items if item.embedding_values is not None])
        batch.put_all(INCREMENTS, rows)
        self._commit(batch, after, outgoing)
        result.lap("write", self._clock.monotonic())
        for topic, count in counts.items():
            result.counts[topic] = result.counts.get(topic, TopicCounts()) + count
        return outgoing.entries

    def _fold(self, decoded: Sequence[DecodedRecord]) -> tuple[list[ItemChange], dict[str, TopicCounts]]:
        """Every item of the records, once, with their updates folded in; and what became of the updates, by topic."""
        updates = [update for one in decoded for update in one.updates]
        keys = list(dict.fromkeys([update.key for update in updates]))
        stored = self.database.multi_get(ITEMS, keys)
        items = {key: ItemChange(key, NOT_STORED if raw is None else decode_item(raw)) for key, raw in zip(keys, stored, strict=True)}
        applied = Counter[str]()
        for update in updates:
            if items[update.key].take(update):
                applied[ITEM_FEATURES if isinstance(update, FeaturesUpdate) else NEW_ITEMS] += 1
        counts = {}
        for topic in (ITEM_FEATURES, NEW_ITEMS):
            some = [one for one in decoded if one.record.topic == topic]
            consumed, rejected = sum(map(len, some)), sum([len(one.rejected) for one in some])
            counts[topic] = TopicCounts(consumed, applied[topic], consumed - applied[topic] - rejected, rejected)  # the rest is superseded
        return list(items.values()), counts

    def _add_dead_letters(self, decoded: Sequence[DecodedRecord], outgoing: Outgoing, result: BatchResult) -> None:
        for one in decoded:
            for rejection in one.rejected:
                key, value, headers = encode_dead_letter(one.record, rejection)
                outgoing.add(DEAD_LETTER_PREFIX + one.record.topic, None, key, value, tuple(headers))
                result.dead_letters[one.record.topic, rejection.disposition] += 1

    def _advanced(self, decoded: Sequence[DecodedRecord], counts: Mapping[str, TopicCounts]) -> ShardState:
        next_offsets = {**self.state.next_offsets, **{d.record.topic: d.record.offset + 1 for d in decoded}}
        source_ms = max([self.state.source_ms, *(d.record.timestamp_ms for d in decoded)])
        counters = {topic: self.state.counters[topic] + count for topic, count in counts.items()}
        return dataclasses.replace(self.state, next_offsets=next_offsets, counters=counters, source_ms=source_ms)

    def _encode_rows(
        self, items: Sequence[ItemChange], after: ShardState, outgoing: Outgoing, result: BatchResult
    ) -> tuple[list[tuple[bytes, bytes]], ShardState]:
        """(rows of the family `increments`, the state with the work that was done) for EVERY version that receives increments; adds their deltas."""
        stored: list[tuple[bytes, bytes]] = []
        done: dict[int, Mapping[str, int]] = {}
        for version, encoder in sorted(self._encoders.items()):
            rows = self._rows_of_version(encoder, items)
            if rows.changes:
                rows.changes.sort()  # a delta's rows ascend, and RocksDB takes ascending keys in half the time
                prefix = increment_prefix(version)
                stored += [(prefix + key, value) for key, value in rows.changes]
                self._add_deltas(encoder, rows, after, outgoing)
            result.work += rows.work
            done[version] = rows.work
        self._add_watermark_if_due(after, outgoing)
        return stored, fold_work(after, done)

    def _rows_of_version(self, encoder: Encoder, items: Sequence[ItemChange]) -> RowChanges:
        """The rows of one version: which to encode, which to rewrite without the network, which items are gone."""
        result, dependencies = RowChanges(), dependencies_of(encoder.spec.schema)
        to_encode: list[ItemChange] = []
        to_rewrite: list[tuple[ItemChange, int]] = []
        for item in items:
            if not item.is_live:
                _remove(item, result)
                continue
            stale = item.stale(dependencies)
            if stale == NOTHING:
                result.work[SKIPPED_IDENTICAL] += 1
            elif stale & VECTOR:
                to_encode.append(item)
            else:
                to_rewrite.append((item, stale))
        to_encode += self._rewrite(encoder, to_rewrite, result)
        if to_encode:
            _add(to_encode, encoder.encode([item.values() for item in to_encode], self._embeddings_of(to_encode)), result)
            result.work[ENCODED] += len(to_encode)
        return result

    def _rewrite(self, encoder: Encoder, items: Sequence[tuple[ItemChange, int]], result: RowChanges) -> list[ItemChange]:
        """Rewrites the items that have a usable old row. Returns the others, which are to be encoded."""
        prefix = increment_prefix(encoder.version)
        values = self.database.multi_get(INCREMENTS, [prefix + item.key for item, _ in items]) if items else []
        rows = [None if raw is None else _usable_row(encoder.layout, item, raw) for (item, _), raw in zip(items, values, strict=True)]
        kept = [(*one, row) for one, row in zip(items, rows, strict=True) if row is not None]
        if kept:
            old = np.frombuffer(b"".join([row for *_, row in kept]), encoder.layout.dtype)
            signature_stale = np.array([stale & SIGNATURE != 0 for _, stale, _ in kept])
            # A signature is stale only where the batch brought the embedding, so none is read here.
            embeddings, some = [item.embedding_values for item, *_ in kept], [item for item, *_ in kept]
            _add(some, encoder.rewrite(old, [item.values() for item in some], embeddings, signature_stale), result)
            result.work[REWRITTEN] += len(kept)
        return [item for (item, _), row in zip(items, rows, strict=True) if row is None]

    def _embeddings_of(self, items: Sequence[ItemChange]) -> list[bytes | None]:
        """The embeddings of some items after the batch: float32 bytes, or None. Only those that the batch did not bring are read.

        Raises Corrupted (`embedding_missing`) where an item names an embedding that is not stored.
        """
        asked = [item.key for item in items if item.embedding_values is None and item.embedding is not None]
        found = dict(zip(asked, self.database.multi_get(EMBEDDINGS, asked), strict=True))
        for key, values in found.items():
            if values is None:
                raise embedding_missing(key)
        return [found.get(item.key) if item.embedding_values is None else item.embedding_values for item in items]

    def _add_deltas(self, encoder: Encoder, rows: RowChanges, after: ShardState, outgoing: Outgoing) -> None:
        """Only the last delta record of a batch names the offsets after the batch, because the earlier ones do not hold all of its rows."""
        cuts = plan_delta_cuts(encoder.layout, [key for key, _ in rows.changes])
        for cut in cuts:
            offsets = after.delta_offsets if cut is cuts[-1] else self.state.delta_offsets
            block = encode_block(encoder.layout, stack_increments(encoder.layout, rows.changes[cut]))
            self._add_delta(encoder.version, offsets, after.source_ms, block, outgoing)

    def _add_watermark_if_due(self, after: ShardState, outgoing: Outgoing) -> None:
        """One for each version that receives rows. So nothing is claimed of a frozen version, also to a server that has not heard of the freeze."""
        now = self._clock.monotonic()
        if now - self._watermark_at >= WATERMARK_EVERY_S:
            for version in [v.version for v in self._versions.values() if not v.behind] or [WATERMARK_VERSION]:
                self._add_delta(version, after.delta_offsets, after.source_ms, b"", outgoing)
            self._watermark_at, self._watermarked = now, after

    def _add_delta(self, version: int, offsets: tuple[int, int], source_ms: int, block: bytes, outgoing: Outgoing) -> None:
        header = DeltaHeader(version, self.number, outgoing.next_delta, offsets, source_ms)
        outgoing.add(INDEX_DELTAS, self.number, None, encode_delta(header, block), ())
        outgoing.next_delta += 1

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


def _remove(item: ItemChange, result: RowChanges) -> None:
    if item.is_tombstone:
        assert item.features is not None
        result.changes.append((item.key, encode_stamp(item.features, item.embedding)))
        result.work[REMOVED] += 1
    else:
        result.work[SKIPPED_NO_FEATURES if item.features is None else SKIPPED_IDENTICAL] += 1


def _usable_row(layout: RowLayout, item: ItemChange, value: bytes) -> bytes | None:
    """The bytes of the stored row if it was made from the components as they were before this batch. Raises Corrupted (`bad_increment`)."""
    if len(value) != STAMP.itemsize + layout.row_bytes or value[DEAD_AT]:
        decode_increment(layout, value)  # a tombstone, or damaged
        return None
    if item.before.features is None:
        return None
    hashed = input_hash_of(item.before.features, item.before.embedding)
    return value[STAMP.itemsize :] if int.from_bytes(value[_HASH_AT:DEAD_AT], "little") == hashed else None


def _add(items: Sequence[ItemChange], rows: np.ndarray, result: RowChanges) -> None:
    assert rows.shape == (len(items),), f"encoder gave {rows.shape} rows for {len(items)} items"
    whole, size = rows.tobytes(), rows.dtype.itemsize
    for at, item in zip(range(0, len(whole), size), items, strict=True):
        assert item.features is not None
        result.changes.append((item.key, encode_stamp(item.features, item.embedding) + whole[at : at + size]))
