"""The outbox of a shard: messages that a micro-batch has to send to Kafka. They are stored in its WriteBatch until the broker has acknowledged them.

Entries are sent in the order of their sequence. After a restart everything left is sent again. That is harmless: rows carry stamps, dead letters carry their
source position.
Invariants (I8): a page is bounded in bytes, whatever the sizes of the entries. The dead letters of one record share its bytes: only the last of them holds
the value, because entries are removed in order. Otherwise 256 rejected updates of a record of 4 MiB would be a write of 1 GiB.
"""

import dataclasses
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from infra.rocks import Batch, Database
from schemas.errors import Corrupted
from streams.core.shard_state import SHARD_REPAIR

OUTBOX = "outbox"  # the column family
OUTBOX_PAGE_BYTES = 16 << 20
_SEQUENCE = struct.Struct(">Q")
_LENGTH = struct.Struct("<I")
_ABSENT = 0xFFFFFFFF
# Partition, -1 = the producer's choice; number of headers; sequence + 1 of the entry with its value, 0 = this one.
_HEAD = struct.Struct("<iHQ")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One message to send. `topic` is without the deployment's prefix; partition None lets the producer choose."""

    sequence: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_outbox_key(sequence: int) -> bytes:
    """The key of an entry: keys sort as sequences do."""
    return _SEQUENCE.pack(sequence)


def plan_shared_values(entries: Sequence[OutboxEntry]) -> list[int | None]:
    """For each entry the sequence of a later one that has the very same value, None = it keeps its own."""
    shared: list[int | None] = []
    owner: OutboxEntry | None = None
    for entry in reversed(entries):
        if owner is not None and entry.value is not None and entry.value is owner.value:
            shared.append(owner.sequence)
        else:
            shared.append(None)
            owner = entry
    return shared[::-1]


def encode_outbox_entry(entry: OutboxEntry, value_at: int | None = None) -> bytes:
    """Value in the column family `outbox`: a fixed head, then length-prefixed fields. `value_at`: the entry that holds the value."""
    head = _HEAD.pack(-1 if entry.partition is None else entry.partition, len(entry.headers), 0 if value_at is None else value_at + 1)
    fields: list[bytes | None] = [entry.topic.encode(), entry.key, entry.value if value_at is None else None]
    for name, value in entry.headers:
        fields += [name.encode(), value]
    return head + b"".join(_LENGTH.pack(_ABSENT) if f is None else _LENGTH.pack(len(f)) + f for f in fields)


def decode_value_at(raw: bytes) -> int | None:
    """The sequence of the entry that holds this one's value; None: it is in this entry."""
    value_at = int(_HEAD.unpack_from(raw)[2]) if len(raw) >= _HEAD.size else 0
    return value_at - 1 if value_at else None


def decode_outbox_entry(key: bytes, raw: bytes) -> OutboxEntry:
    """Its value is None where another entry holds it (`decode_value_at`). Raises Corrupted (`bad_outbox_entry`)."""
    try:
        partition, headers, _ = _HEAD.unpack_from(raw)
        fields: list[bytes | None] = []
        at = _HEAD.size
        for _ in range(3 + 2 * headers):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size
            if length == _ABSENT:
                fields.append(None)
                continue
            fields.append(raw[at : at + length])
            at += length
        if at != len(raw):
            raise ValueError(f"{len(raw)} bytes, its fields end at {at}")
        topic, message_key, value, *pairs = fields
        named = tuple(((name or b"").decode(), content) for name, content in zip(pairs[::2], pairs[1::2], strict=True))
        chosen = None if partition < 0 else partition
        return OutboxEntry(_SEQUENCE.unpack(key)[0], (topic or b"").decode(), chosen, message_key, value, named)
    except (struct.error, ValueError) as error:
        raise Corrupted("bad_outbox_entry", f"an outbox entry of {len(raw)} bytes does not read: {error}; {SHARD_REPAIR}") from error


class Outgoing:
    """The outbox entries of one WriteBatch, with their numbers. `next_delta`: the sequence of the next delta record among them."""

    def __init__(self, next_sequence: int, next_delta: int) -> None:
        self.next_sequence, self.next_delta = next_sequence, next_delta
        self.entries: list[OutboxEntry] = []

    def add(self, topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """One more message; partition None lets the producer choose."""
        self.entries.append(OutboxEntry(self.next_sequence, topic, partition, key, value, headers))
        self.next_sequence += 1


class OutboxOwner:
    """A database with an outbox, as a serial task sends it: a shard, or the counters of streams/statistics."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._outbox_from: int | None = None  # the first entry that may be left; None after opening

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

    def close(self) -> None:
        """Frees the directory."""
        self.database.close()


def put_outbox(batch: Batch, entries: Sequence[OutboxEntry]) -> None:
    """Puts the entries into their WriteBatch. A value that several of them share is stored once."""
    for entry, value_at in zip(entries, plan_shared_values(entries), strict=True):
        batch.put(OUTBOX, encode_outbox_key(entry.sequence), encode_outbox_entry(entry, value_at))


def read_outbox(database: Database, entries_max: int, after: int) -> list[OutboxEntry]:
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


def _read_value(database: Database, sequence: int) -> bytes | None:
    key = encode_outbox_key(sequence)
    raw = database.get(OUTBOX, key)
    if raw is None:
        raise Corrupted(
            "outbox_value_missing", f"{database.path}: outbox entry {sequence} is gone before those that share its value; {SHARD_REPAIR}"
        )
    return decode_outbox_entry(key, raw).value
