"""What a rejected record becomes in its dead-letter topic. Pure.

Invariants: key, value and headers are kept byte for byte; the reason is in further headers, with the names that existing consoles show. An oversized record
is larger than input topics take by their settings, or has more than 64 KiB of key and headers, which each of its letters would hold. Its letter has the
beginning of its key and value, and a header with the size of the value; the record itself is at its source position. One dead letter is one rejected update
with the identity (topic, partition, offset, `aif.index`). So a redrive sends that update alone, and a checker counts distinct identities (A5).
"""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import Corrupted
from schemas.limits import KIB, RECORD_BYTES_MAX
from schemas.topics import DEAD_LETTER_PREFIX

if TYPE_CHECKING:
    from infra.kafka.reader import SourceRecord
    from schemas.decoding import Rejection  # it would load pydantic

Headers = list[tuple[str, bytes | None]]

_ERRORS = "__connect.errors."
INDEX_HEADER = "aif.index"
ATTEMPT_HEADER = "aif.attempt"  # of a record that is sent again
FROM_HEADER = "aif.redriven_from"
TRUNCATED_HEADER = "aif.truncated"  # bytes of the whole value
_ADDED = 11  # headers of `encode_dead_letter`, after those of the record
_ATTEMPT_DIGITS_MAX = 6
_REASON_CHARS_MAX = 1_000
_KEPT_BYTES_MAX = RECORD_BYTES_MAX + 64 * KIB  # as much as an input topic takes; the dead-letter topics take 64 KiB more
_KEY_AND_HEADERS_BYTES_MAX, _HEADERS_MAX = 64 * KIB, 1_000  # a record has up to 256 letters
_TRUNCATED_KEY_BYTES, _TRUNCATED_VALUE_BYTES = 1 * KIB, 64 * KIB


@dataclass(frozen=True, slots=True)
class DeadLetterSource:
    """Where a dead letter came from, which is its identity (topic to index), and why it was rejected."""

    topic: str
    partition: int
    offset: int
    index: int
    code: str
    reason: str
    disposition: str


def dead_letter_topic(topic: str) -> str:
    """The dead-letter topic of an input topic, both without prefix."""
    return DEAD_LETTER_PREFIX + topic


@functools.cache
def _code_version() -> str:
    """The version of this code, as dead letters name it."""
    return importlib.metadata.version("aif")


def encode_dead_letter(
    record: "SourceRecord", rejection: "Rejection", *, stage: str = "DECODE"
) -> tuple[bytes | None, bytes | None, Headers]:
    """(key, value, headers) of the dead letter of one rejected update. The same input gives the same bytes.

    A record that was sent again says which attempt it is, and is dead-lettered as that one. An oversized record is truncated.
    """
    kept = truncate_oversized(record)
    added = {
        f"{_ERRORS}topic": record.topic,
        f"{_ERRORS}partition": str(record.partition),
        f"{_ERRORS}offset": str(record.offset),
        f"{_ERRORS}stage": stage,
        f"{_ERRORS}exception.class.name": rejection.code,
        f"{_ERRORS}exception.message": rejection.reason[:_REASON_CHARS_MAX],
        "disposition": rejection.disposition,
        "attempt": str(attempt_of(record.headers)),
        "first_seen": str(record.timestamp_ms),
        "code_version": _code_version(),
        INDEX_HEADER: str(rejection.index),
    }
    assert len(added) == _ADDED
    return kept.key, kept.value, [*kept.headers, *((name, value.encode(errors="replace")) for name, value in added.items())]


def truncate_oversized(record: "SourceRecord") -> "SourceRecord":
    """The record as its dead letters keep it. A truncated one stays as it is."""
    key, value = record.key or b"", record.value or b""
    beside = len(key) + sum(len(name.encode(errors="replace")) + len(content or b"") for name, content in record.headers)
    if beside <= _KEY_AND_HEADERS_BYTES_MAX and len(record.headers) <= _HEADERS_MAX and beside + len(value) <= _KEPT_BYTES_MAX:
        return record
    return dataclasses.replace(
        record,
        key=record.key and key[:_TRUNCATED_KEY_BYTES],
        value=record.value and value[:_TRUNCATED_VALUE_BYTES],
        headers=((TRUNCATED_HEADER, str(len(value)).encode()),),
    )


def is_truncated(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether a dead letter with these headers holds only the beginning of its record."""
    return len(headers) == 1 + _ADDED and headers[0][0] == TRUNCATED_HEADER


def decode_dead_letter(headers: Headers) -> DeadLetterSource:
    """Where a dead letter with these headers came from. Of several headers with a name the last counts, because the record may have been a dead letter before.
    Raises Corrupted (`bad_dead_letter`) for headers that this system did not write."""
    found = {name: value or b"" for name, value in headers}
    try:
        return DeadLetterSource(
            found[f"{_ERRORS}topic"].decode(),
            int(found[f"{_ERRORS}partition"]),
            int(found[f"{_ERRORS}offset"]),
            int(found[INDEX_HEADER]),
            found[f"{_ERRORS}exception.class.name"].decode(),
            found[f"{_ERRORS}exception.message"].decode(errors="replace"),
            found["disposition"].decode(),
        )
    except (KeyError, ValueError) as error:
        raise Corrupted("bad_dead_letter", f"dead letter without its headers ({error}); it was not written by this system") from error


def attempt_of(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Which attempt a record is: 1, or the number in the header of a redrive."""
    said = next((value for name, value in reversed(headers) if name == ATTEMPT_HEADER and value), b"")
    return int(said) if said.isdigit() and len(said) <= _ATTEMPT_DIGITS_MAX else 1


def source_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Of the headers of a dead letter those that the sender gave its record: without ours, and without those of an earlier redrive."""
    return [(name, value) for name, value in headers[:-_ADDED] if name not in (ATTEMPT_HEADER, FROM_HEADER)]
