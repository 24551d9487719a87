"""Identifiers of items and users: their kinds, their Kafka keys, their index keys, their partitions, their hash buckets.

A catalogue has one kind of id, int64 or text. Three byte forms exist and must not be confused:

    Kafka key    text, always: b"42" or the UTF-8 bytes of a text id (readable in any console)
    index key    ordered bytes: big-endian int64 with the sign bit flipped, or the UTF-8 bytes
    wire form    int64 number in JSON (a decimal string beyond 2**53), or the string

Partition = murmur2(Kafka key) mod N, the same function as librdkafka's `murmur2_random` and aiokafka's default partitioner.
"""

import enum
import functools
import hashlib
import struct

from schemas.errors import RejectedInput
from schemas.limits import TEXT_ID_BYTES_MAX

Id = int | str

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_SIGN_BIT = 1 << 63
_EXACT_IN_JSON = 1 << 53
_BIG_ENDIAN_U64 = struct.Struct(">Q")


class IdKind(enum.StrEnum):
    """The one kind of id of a catalogue. Fixed in the index's init entry."""

    INT64 = "int64"
    TEXT = "text"


def decode_id(value: Id, kind: IdKind) -> Id:
    """An id as it came from JSON, checked against the catalogue's kind. A decimal string is accepted for int64 (ids beyond 2**53).

    Raises RejectedInput (`bad_id`).
    """
    if kind is IdKind.INT64:
        if isinstance(value, str):
            if not value.removeprefix("-").isascii() or not value.removeprefix("-").isdigit():
                raise RejectedInput("bad_id", f"id {value[:80]!r} is not an int64; this catalogue's ids are int64 numbers")
            number = int(value) if len(value) <= 20 else INT64_MAX + 1
            if len(value) <= 20 and str(number) != value:
                raise RejectedInput("bad_id", f"id {value!r} is not written as int64 ids are; send {number}, so that one id has one form")
            value = number
        if isinstance(value, bool) or not INT64_MIN <= value <= INT64_MAX:
            raise RejectedInput("bad_id", f"id {value} is outside int64")
        return value
    if not isinstance(value, str):
        raise RejectedInput("bad_id", f"id {value!r} is a number; this catalogue's ids are text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise RejectedInput("bad_id", f"id {value[:80]!r} is not valid Unicode text; send UTF-8 without lone surrogates") from error
    if not 1 <= size <= TEXT_ID_BYTES_MAX:
        raise RejectedInput("bad_id", f"id {value[:80]!r} has {size} bytes, expected 1 to {TEXT_ID_BYTES_MAX}")
    return value


def encode_kafka_key(item: Id) -> bytes:
    """The Kafka key of an id: always text."""
    return str(item).encode()


def encode_index_key(item: Id) -> bytes:
    """The ordered key of an id in every index table: int64 sorts as numbers, text sorts bytewise."""
    if isinstance(item, str):
        return item.encode()
    return _BIG_ENDIAN_U64.pack(item + _SIGN_BIT)


def decode_index_key(key: bytes, kind: IdKind) -> Id:
    """The inverse of `encode_index_key`."""
    if kind is IdKind.TEXT:
        return key.decode()
    return int(_BIG_ENDIAN_U64.unpack(key)[0]) - _SIGN_BIT


def encode_wire_id(item: Id) -> Id:
    """The JSON form of an id: a number, or a string beyond 2**53 where other JSON readers lose digits."""
    return str(item) if isinstance(item, int) and abs(item) > _EXACT_IN_JSON else item


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 (32 bit, seed 0x9747b28c), as an unsigned number. Source: org.apache.kafka.common.utils.Utils."""
    length, m = len(data), 0x5BD1E995
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = (k * m) & 0xFFFFFFFF
        k ^= k >> 24
        h = ((h * m) & 0xFFFFFFFF) ^ ((k * m) & 0xFFFFFFFF)
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * m) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * m) & 0xFFFFFFFF
    return h ^ (h >> 15)


@functools.lru_cache(1 << 17)  # murmur2 in Python costs microseconds, and the same ids come again
def partition_of(item: Id, partitions: int) -> int:
    """The partition, and so the shard, of an id: murmur2 of its Kafka key, sign bit cleared, modulo the number of partitions."""
    return (murmur2(encode_kafka_key(item)) & 0x7FFFFFFF) % partitions


def check_partition(owner: Id, partition: int, partitions: int) -> None:
    """Raise RejectedInput (`wrong_partition`) unless records of this id belong to the partition."""
    expected = partition_of(owner, partitions)
    if expected != partition:
        raise RejectedInput(
            "wrong_partition",
            f"id {owner!r} belongs to partition {expected} of {partitions}, the record came in {partition}; partition by murmur2 of the id as text",
        )


def hash_bucket(value: Id, buckets: int, salt: bytes) -> int:
    """The row of an embedding table for a categorical value: 1 to buckets - 1; row 0 means "missing".

    Stable across processes and machines (BLAKE2b of the value's text, salt of at most 16 bytes), so a value that training never saw still has a row.
    """
    digest = hashlib.blake2b(str(value).encode(), digest_size=8, salt=salt).digest()
    return 1 + int.from_bytes(digest, "little") % (buckets - 1)
