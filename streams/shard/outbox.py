"""The outbox of a shard in its database: entries for a WriteBatch, and pages of the entries that are still to be sent.

Here: numbering, writing and reading. Not here: the bytes of an entry (core/outbox.py), when it is sent (task.py).
Invariant: a page is bounded in bytes, whatever the sizes of the entries (I8).
"""

import dataclasses
from collections.abc import Sequence

from infra.journaled_rocks import JournaledBatch, JournaledDatabase
from schemas.errors import Corrupted
from schemas.ids import IdKind
from schemas.index.layout import DeltaHeader, encode_packed_delta
from schemas.topics import INDEX_DELTAS
from streams.core.outbox import (
    OutboxEntry,
    decode_outbox_entry,
    decode_value_at,
    encode_outbox_entry,
    encode_outbox_key,
    plan_shared_values,
)

OUTBOX = "outbox"  # the column family
OUTBOX_PAGE_BYTES = 16 << 20


class Outgoing:
    """The outbox entries of one WriteBatch, with their numbers."""

    def __init__(self, next_sequence: int, next_delta: int) -> None:
        self.next_sequence, self.next_delta = next_sequence, next_delta
        self.entries: list[OutboxEntry] = []

    def add(
        self, topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
    ) -> None:
        """One more message; partition None lets the producer choose."""
        self.entries.append(OutboxEntry(self.next_sequence, topic, partition, key, value, headers))
        self.next_sequence += 1

    def add_delta(self, kind: IdKind, header: DeltaHeader, rows: int = 0, packed: bytes = b"") -> None:
        """One more delta record, with `rows` packed changes; the sequence in its header is `next_delta`."""
        self.add(INDEX_DELTAS, header.shard, None, encode_packed_delta(kind, header, rows, packed), ())
        self.next_delta += 1


def put_outbox(batch: JournaledBatch, entries: Sequence[OutboxEntry]) -> None:
    """Puts the entries into their WriteBatch. A value that several of them share is stored once."""
    for entry, value_at in zip(entries, plan_shared_values(entries), strict=True):
        batch.put(OUTBOX, encode_outbox_key(entry.sequence), encode_outbox_entry(entry, value_at))


def read_outbox(database: JournaledDatabase, entries_max: int, after: int) -> list[OutboxEntry]:
    """The oldest entries with a sequence above `after`, at most `entries_max` and about OUTBOX_PAGE_BYTES, with their values."""
    scan = database.scan(OUTBOX, encode_outbox_key(after + 1))
    entries: list[OutboxEntry] = []
    values: dict[int, bytes | None] = {}  # shared by several entries
    size = 0
    try:
        for key, raw in scan:
            entry, value_at = decode_outbox_entry(key, raw), decode_value_at(raw)
            if value_at is not None:
                if value_at not in values:
                    values[value_at] = _read_value(database, value_at)
                    size += len(values[value_at] or b"")
                entry = dataclasses.replace(entry, value=values[value_at])
            entries.append(entry)
            size += len(raw)
            if len(entries) >= entries_max or size >= OUTBOX_PAGE_BYTES:
                break
    finally:
        scan.close()
    return entries


def _read_value(database: JournaledDatabase, sequence: int) -> bytes | None:
    key = encode_outbox_key(sequence)
    raw = database.get(OUTBOX, key)
    if raw is None:
        raise Corrupted(
            "outbox_value_missing",
            f"{database.path}: outbox entry {sequence} is gone before those that share its value; set the directory aside and rebuild it",
        )
    return decode_outbox_entry(key, raw).value
