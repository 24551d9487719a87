"""The outbox: messages that a micro-batch owes to Kafka, kept in the same WriteBatch until the broker has acknowledged them.

Here: an entry and its bytes. Not here: sending (streams/outbox_sender.py). Entries are sent in the order of their sequence; after a restart everything
left is sent again, which is harmless: rows carry orders, dead letters carry their source position.
"""

import struct
from dataclasses import dataclass

from schemas.errors import Corrupted

_SEQUENCE = struct.Struct(">Q")
_LENGTH = struct.Struct("<I")
_ABSENT = 0xFFFFFFFF
_PARTITION = struct.Struct("<iH")  # -1 = the producer's choice; number of headers

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
    """Keys sort as sequences do."""
    return _SEQUENCE.pack(sequence)


def encode_outbox_entry(entry: OutboxEntry) -> bytes:
    """Value in the column family `outbox`: partition and number of headers, then length-prefixed fields."""
    head = _PARTITION.pack(-1 if entry.partition is None else entry.partition, len(entry.headers))
    fields: list[bytes | None] = [entry.topic.encode(), entry.key, entry.value]
    for name, value in entry.headers:
        fields += [name.encode(), value]
    return head + b"".join(_LENGTH.pack(_ABSENT) if f is None else _LENGTH.pack(len(f)) + f for f in fields)


def decode_outbox_entry(key: bytes, raw: bytes) -> OutboxEntry:
    """Raises Corrupted (`bad_outbox_entry`)."""
    try:
        partition, headers = _PARTITION.unpack_from(raw)
        fields: list[bytes | None] = []
        at = _PARTITION.size
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
        raise Corrupted("bad_outbox_entry", f"an outbox entry of {len(raw)} bytes does not read: {error}") from error
