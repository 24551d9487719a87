"""A record of the user topics with refused updates, as the view stores it until its dead letters are in their topic.

    key    topic / partition / offset
    value  length of the head, head as JSON (place, rejections, lengths), then the record's key, value and header values byte for byte

A record is stored once, however many of its updates were refused: its dead letters (up to 256 of 4 MiB each) are made sequentially when sent. An oversized
record is stored as its dead letters keep it: truncated.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from infra.kafka.dead_letters import truncate_oversized
from infra.kafka.reader import SourceRecord
from schemas.decoding import Rejection
from schemas.errors import Corrupted

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record and its rejections; each rejection becomes one dead letter."""

    record: SourceRecord
    rejections: Sequence[Rejection]


def refused_key(record: SourceRecord) -> bytes:
    """The key under which it is stored; sorts by topic, partition and offset."""
    return f"{record.topic}/{record.partition}/{record.offset:020d}".encode()


def encode_refused(refused: RefusedRecord) -> bytes:
    """The bytes to store."""
    record = truncate_oversized(refused.record)
    head = {
        "at": [record.topic, record.partition, record.offset, record.timestamp_ms],
        "rejections": [astuple(one) for one in refused.rejections],
        "names": [name for name, _ in record.headers],
        "lengths": [None if part is None else len(part) for part in (record.key, record.value, *(value for _, value in record.headers))],
    }
    raw = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(raw)), raw, *_parts(record)])


def decode_refused(raw: bytes) -> RefusedRecord:
    """The inverse of `encode_refused`. Raises Corrupted (`bad_refused_record`)."""
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
        head = json.loads(raw[_LENGTH.size : end])
        parts: list[bytes | None] = []
        for length in head["lengths"]:
            parts.append(None if length is None else raw[end : end + length])
            end += length or 0
        if end != len(raw):
            raise ValueError(f"it ends at {len(raw)}, its head says {end}")
        topic, partition, offset, timestamp_ms = head["at"]
        key, value, *values = parts
        record = SourceRecord(topic, partition, offset, key, value, tuple(zip(head["names"], values, strict=True)), timestamp_ms)
        return RefusedRecord(record, [Rejection(*one) for one in head["rejections"]])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupted(
            "bad_refused_record",
            f"a refused record of {len(raw)} bytes in the view of users does not read: {error}; remove the view's folder",
        ) from error


def _parts(record: SourceRecord) -> list[bytes]:
    return [record.key or b"", record.value or b"", *(value or b"" for _, value in record.headers)]
