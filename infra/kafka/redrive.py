"""Sending rejected updates again: which, at what rate, never twice.

    read_dead_letters   the letters of a dead-letter topic, one for each identity (source topic, partition, offset, index in the record,
                        checksum of the record)
    read_redriven       what the runs that ended have sent, for whoever only looks
    read_sent           what earlier runs have sent, from the audit in the index store; a dead run's is looked for
    plan_redrive        pure: the letters that a filter takes, without those sent before, at most so many
    encode_redriven     pure: the record of one update as it is sent again
    run_redrive         sends, between two audit files

Invariants:
- A dead letter holds its whole source record, and only the named update is sent again (A5). It goes to the partition of its id, which also cures a record
  that came in a wrong one.
- An identity is sent once. Before the first record a run makes `audit/redrive/<n>/begin` by exclusive create, with the number after the last run that it has
  read. So of two runs that planned at the same time one is refused. `begin` holds the ends of the target topic; `end` names the sent records. Records
  of a run without an end are found in the target topic, from those ends on, by header. A run that was taken over and had not died says so, and leaves
  `late` instead of `end`.
- Letters are read one by one. Kept are their identities, and of a redrive the letters that it sends.
"""

import getpass
import itertools
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Producer

from infra.clock import SystemClock
from infra.index.store import IndexStore
from infra.kafka.admin import end_offsets
from infra.kafka.dead_letters import (
    ATTEMPT_HEADER,
    FROM_HEADER,
    DeadLetterSource,
    Headers,
    attempt_of,
    dead_letter_topic,
    decode_dead_letter,
    is_truncated,
    source_headers,
)
from infra.kafka.producer import open_producer, produce
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.security import Bootstrap
from schemas.decoding import STATISTICS_OP, user_features_key
from schemas.errors import Corrupted, Incompatible, RejectedInput, Unavailable
from schemas.fields import corrupted_as
from schemas.ids import Id, IdKind, decode_id, partition_of
from schemas.topics import USER_FEATURES

AUDIT = "audit/redrive/"
_AUDIT_BYTES_MAX = 64 << 20
_FLUSH_S_MAX = 60.0
# Codes of records whose updates were not judged alone.
_WHOLE_RECORD = frozenset({"not_json", "record_too_large", "empty_record", "bad_record"})
Identity = str  # "topic/partition/offset/index/checksum"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: where it came from and why, its record as it was, and its place in the dead-letter topic."""

    source: DeadLetterSource
    record: SourceRecord

    @property
    def place(self) -> str:
        """The source position."""
        s = self.source
        return f"{s.topic}/{s.partition}/{s.offset}/{s.index}"

    @property
    def identity(self) -> Identity:
        """The source position and a checksum of the record, because the same place is another record after a topic was made again."""
        return f"{self.place}/{zlib.crc32(self.record.value or b''):08x}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters; None takes all. `contains` is looked for in the reason and in the record's bytes."""

    disposition: str | None = None
    code: str | None = None
    partition: int | None = None
    since_ms: int | None = None
    contains: str | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether the letter passes every condition."""
        source, record = letter.source, letter.record
        return (
            self.disposition in (None, source.disposition)
            and self.code in (None, source.code)
            and self.partition in (None, source.partition)
            and (self.since_ms is None or record.timestamp_ms >= self.since_ms)
            and (self.contains is None or self.contains in source.reason or self.contains.encode() in (record.value or b""))
        )


@dataclass(frozen=True, slots=True)
class Redriven:
    """The record of one update that is to be sent again, and the partition that it goes to."""

    identity: Identity
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers


def read_dead_letters(bootstrap: Bootstrap, prefix: str, topic: str) -> Iterator[DeadLetter]:
    """Yields the dead letters of an input topic in the order in which they came, each identity once: a letter may have been sent again after a crash.

    Raises what `read_topic` raises.
    """
    seen: set[Identity] = set()
    for record in read_topic(bootstrap, dead_letter_topic(topic), prefix=prefix):
        try:
            letter = DeadLetter(decode_dead_letter(list(record.headers)), record)
        except Corrupted as error:
            # Another program put it into the dead-letter topic: it is shown, and never redriven.
            source = DeadLetterSource(f"dlq.{topic}", record.partition, record.offset, 0, error.code, error.message, "malformed")
            letter = DeadLetter(source, record)
        if letter.identity not in seen:
            seen.add(letter.identity)
            yield letter


def plan_redrive(
    letters: Iterable[DeadLetter], topic: str, chosen: Filter, sent: AbstractSet[Identity], records_max: int
) -> list[DeadLetter]:
    """The letters of `topic` that pass the filter and were not sent before, the oldest first, at most `records_max`. A truncated letter is left out: its
    publisher has to send the update again, in smaller records."""

    def is_fitting(letter: DeadLetter) -> bool:
        whole = letter.source.topic == topic and not is_truncated(letter.record.headers)
        return whole and letter.identity not in sent and chosen.takes(letter)

    return list(itertools.islice(filter(is_fitting, letters), records_max))


def encode_redriven(letter: DeadLetter, partitions: int, id_kind: IdKind, owner: str) -> Redriven:
    """The update alone where its record reads, the record as it was where not. `owner`: the field whose hash is the partition."""
    attempt = attempt_of(letter.record.headers) + 1
    headers = [*source_headers(letter.record.headers), (FROM_HEADER, letter.identity.encode()), (ATTEMPT_HEADER, str(attempt).encode())]
    update, value = _update_of(letter), letter.record.value
    if update is not None:
        value = json.dumps({"schema": 1, "updates": [update]}, separators=(",", ":")).encode()
    partition, key = _place(_fields_of(letter, owner) if update is None else update, letter, partitions, id_kind, owner)
    return Redriven(letter.identity, partition, key, value, headers)


def _update_of(letter: DeadLetter) -> Any | None:
    """The rejected update, None if the record was rejected as a whole: it may hold others, which have no letter of their own."""
    if letter.source.code in _WHOLE_RECORD:
        return None
    try:
        decoded = json.loads(letter.record.value or b"")
        update = decoded["updates"][letter.source.index]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return update if isinstance(update, dict) else None


def _fields_of(letter: DeadLetter, owner: str) -> Mapping[str, Any]:
    """Of a record that is no list of updates: its fields, or those that its key says where it has no value; empty where it does not read."""
    try:
        fields = {owner: (letter.record.key or b"").decode()} if letter.record.value is None else json.loads(letter.record.value)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _place(update: Mapping[str, Any], letter: DeadLetter, partitions: int, id_kind: IdKind, owner: str) -> tuple[int, bytes]:
    try:
        found: Id = decode_id(update[owner], id_kind)
        is_statistics = letter.source.topic == USER_FEATURES and update.get("op") == STATISTICS_OP
        return partition_of(found, partitions), user_features_key(found, is_statistics)
    except (KeyError, TypeError, RejectedInput):  # it is sent where it came from, and will come back, unless only that partition was wrong
        return min(letter.source.partition, partitions - 1), letter.record.key or b""


# --- audit -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """The identities of a topic that earlier runs have sent, and the number of the next run, of whatever topic."""

    identities: AbstractSet[Identity]
    next_run: int


def read_redriven(store: IndexStore) -> tuple[set[Identity], list[str]]:
    """What the runs that ended have sent, of all topics, and the `begin` of each run without an end. Raises Corrupted (`bad_audit`)."""
    runs = _list_runs(store)
    sent = {identity for ends in runs.values() for end in ends for identity in _read_audit(store, end, "sent")["sent"]}
    return sent, [begin for begin, ends in runs.items() if not ends]


def _list_runs(store: IndexStore) -> dict[str, list[str]]:
    """The `begin` of each run, with the files that name its sent records: none while it runs, two if it was taken over and had not died."""
    paths = dict.fromkeys(store.list(AUDIT))
    folders = [path.removesuffix("begin") for path in paths if path.endswith("/begin")]
    return {f"{folder}begin": [end for name in ("end", "late") if (end := folder + name) in paths] for folder in folders}


def read_sent(store: IndexStore, bootstrap: Bootstrap, prefix: str, topic: str, take_over: bool) -> Sent:
    """What earlier runs have sent of `topic`, a run without an end included.

    Raises Unavailable (`redrive_running`) when there is such a run and `take_over` does not say that it is dead, Corrupted (`bad_audit`).
    """
    sent: set[Identity] = set()
    runs = _list_runs(store)
    for begin, ends in runs.items():
        run = _read_audit(store, begin, "topic", "ends", "by")
        if run["topic"] != topic:
            continue
        for end in ends:
            sent.update(_read_audit(store, end, "sent")["sent"])
        if ends:
            continue
        if take_over:
            found = _find_sent(bootstrap, prefix, topic, {int(p): offset for p, offset in run["ends"].items()}, begin)
            store.put_exclusive(begin.removesuffix("begin") + "end", _json({"sent": sorted(found), "taken_over_by": _user()}))
            sent |= found
        else:
            raise Unavailable(
                "redrive_running",
                f"{begin} by {run['by']} has no end: that redrive still runs, or it died; wait for it, or say --take-over if it is dead",
            )
    numbers = [int(name) for begin in runs if (name := begin.removeprefix(AUDIT).partition("/")[0]).isdigit()]
    return Sent(sent, 1 + max(numbers, default=-1))


def _read_audit(store: IndexStore, path: str, *names: str) -> Mapping[str, Any]:
    """These fields of an audit file. Raises Corrupted (`bad_audit`)."""
    remedy = "restore it from a copy of the store, or remove its folder if those updates may be sent again"
    with corrupted_as("bad_audit", f"{path} of {store.url} lists the sent updates, and is unreadable", remedy):
        fields = json.loads(store.get(path, _AUDIT_BYTES_MAX))
        return {name: fields[name] for name in names}


def _find_sent(bootstrap: Bootstrap, prefix: str, topic: str, ends: Mapping[int, int], begin: str) -> set[Identity]:
    """What a dead run had sent: the records after its begin that say so. Raises Incompatible (`redrive_unknown`) if retention removed some of them."""
    try:
        records = read_topic(bootstrap, topic, start=ends, prefix=prefix)
        return {value.decode() for record in records for name, value in record.headers if name == FROM_HEADER and value}
    except Incompatible as error:
        if error.code != "offset_gone":
            raise
        raise Incompatible(
            "redrive_unknown",
            f"{begin} has no end, and {prefix}{topic} no longer holds all that came after it, so what that redrive sent is not known; remove its folder from "
            "the index store if its updates may be sent again",
        ) from error


def _begin(store: IndexStore, number: int, fields: Mapping[str, Any]) -> str:
    """Makes the first audit file of run `number`; the folder of its audit. Raises Unavailable (`redrive_running`) where another run has that number."""
    folder = f"{AUDIT}{number:09d}/"
    if not store.put_exclusive(f"{folder}begin", _json(fields)):
        raise Unavailable(
            "redrive_running",
            f"another redrive began as {folder} while this one was planned; nothing was sent, run it again when that one has ended",
        )
    return folder


def _user() -> str:
    """Who runs this; the number of an account without a name, as containers have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


# --- sending -----------------------------------------------------------------------------------------------------------------


def run_redrive(
    store: IndexStore,
    bootstrap: Bootstrap,
    prefix: str,
    topic: str,
    before: Sent,
    records: Sequence[Redriven],
    chosen: Filter,
    per_s: float,
) -> str:
    """Sends `records` at `per_s` updates a second and writes the audit. `before`: the `read_sent` with which they were planned. Returns the audit's folder.

    The audit gets its `end` only if every record that was handed to the producer is known to be in the topic. A record that was given up may be there too.
    Raises Unavailable: `redrive_running` before anything is sent, `not_delivered` where not all of it is known to have arrived. Raises Incompatible
    (`redrive_taken_over`) where another run took this one for dead.
    """
    ends = end_offsets(bootstrap, prefix + topic)
    about = {"topic": topic, "filter": asdict(chosen), "records": len(records), "per_s": per_s}
    folder = _begin(
        store, before.next_run, {**about, "by": _user(), "at_ms": SystemClock().now_ms(), "ends": {str(p): e for p, e in ends.items()}}
    )
    sent: list[Identity] = []
    failed: list[str] = []
    handed_over, alone = 0, True
    producer = open_producer(bootstrap, _FLUSH_S_MAX)
    try:
        for record, _ in zip(records, _paced(per_s), strict=False):
            handed_over += 1
            _send(producer, prefix + topic, record, sent, failed)
    finally:
        producer.flush(_FLUSH_S_MAX)
        if len(sent) == handed_over:
            end = _json({"sent": sorted(sent), "at_ms": SystemClock().now_ms()})
            alone = store.put_exclusive(f"{folder}end", end) or not store.put_exclusive(f"{folder}late", end)
    if len(sent) < len(records):
        why = failed[0] if failed else f"no answer from {bootstrap} within {_FLUSH_S_MAX:g} s"
        raise Unavailable(
            "not_delivered",
            f"{len(records) - len(sent)} of {len(records)} may not have arrived ({why}); run it again with --take-over, which finds what did",
        )
    if not alone:
        raise Incompatible(
            "redrive_taken_over",
            f"while this redrive sent {len(sent)} updates, another took it for dead and went on, so some may have been sent twice; {folder}late names "
            "those of this one: compare it with what later runs sent",
        )
    return folder


def _send(producer: Producer, topic: str, record: Redriven, sent: list[Identity], failed: list[str]) -> None:
    def delivered(error: Any, _: Any) -> None:
        if error is None:
            sent.append(record.identity)
        else:
            failed.append(f"{record.identity}: {error}")

    produce(producer, topic, record.value, record.key, record.partition, on_delivery=delivered, headers=list(record.headers))
    producer.poll(0)


def _paced(per_s: float) -> Iterator[int]:
    """Counts up, at most `per_s` a second."""
    began, number = time.monotonic(), 0
    while True:
        yield number
        number += 1
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
