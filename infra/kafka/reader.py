"""Reading topics outside any consumer group: to an end (`read_topic`), or for as long as a process lives (`TopicFollower`).

Invariants:
- A read begins at the given offset, or says why it cannot. An offset outside the log raises Incompatible (`offset_gone`), and is never silently replaced by
  the earliest or the latest.
- Only committed records are given: none of an aborted transaction, and none behind the first record of an open one.
- A bounded read ends exactly at its end offsets, also if the last records are transaction markers or were compacted away. The end is a position, not a
  record.
- A record whose header names are not UTF-8 is read without its headers.
- A follower that was given the topic's id gives no record of another topic of that name, be it a topic that was made again or that of another cluster. It
  asks for the id before the first record and again after each lost connection, without which neither can come.
- A follower whose client has no broker opens a new client. The client can lose its last broker for good, because it forgets each broker that an answer does
  not name. A broker that is stopping may name none (librdkafka issue 5301). A broker that is only slow is waited for.

Everywhere `topic` is the name without the deployment's prefix, which `prefix` gives, and the records carry that name.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from infra.closeable import Closeable
from infra.kafka.admin import check_topic_id, end_offsets, start_offsets
from infra.kafka.admin_client import REOPEN_S
from infra.kafka.security import Bootstrap, client_config, refusal
from schemas.errors import AifError, Incompatible, Unavailable

_BATCH_RECORDS = 1_000
_POLL_S = 0.5
_IDENTITY_S_MAX = 5.0  # each try opens a connection, which takes a second to a far or busy broker; without an answer there are no records
_TOPIC_MISSING_S_MAX = 2.0
_SILENT_S_MAX = 5.0  # of an idle topic; then the follower asks for it
_QUEUE_KIB_MAX = 64 * 1024  # of one consumer, all partitions together
# The broker is away for the moment: librdkafka reconnects, so a follower just has nothing to give.
_TRANSIENT = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,  # librdkafka asks about the group that the client names and never joins; readers need no right on groups
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One Kafka record as the rest of the system sees it. `topic` is without the deployment's prefix; `timestamp_ms` is milliseconds since 1970, -1 if it has
    none.

    `skipped`: the offset has no record for readers; it is a transaction's marker, or a record of an aborted transaction.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = -1
    skipped: bool = False


class TopicFollower(Closeable):
    """Follows partitions of one topic from given offsets, also over restarts of the broker. For one thread, which closes it.

    `positions`: the next offset of every partition. Every offset before it was given by `poll`, or is a marker, or was compacted away.
    `topic_id`: Kafka's id of the topic in which the offsets mean something; "" if any topic of that name will do.
    """

    def __init__(self, bootstrap: Bootstrap, topic: str, positions: Mapping[int, int], *, prefix: str = "", topic_id: str = "") -> None:
        self.topic = topic
        self.positions: dict[int, int] = dict(positions)
        self._bootstrap, self._full_name, self._topic_id = bootstrap, prefix + topic, topic_id
        self._unsure = bool(topic_id)  # whether the cluster may be another than when the id was last compared
        self._waiting: list[Message] = []  # for the answer
        self._heard = False  # whether the broker answered for the topic since the connection was last lost
        self._heard_s = time.monotonic()  # when it last answered, or the client was opened
        self._missing_since: float | None = None
        self._error: AifError | None = None
        self._consumer = self._open()

    def poll(self, records_max: int = _BATCH_RECORDS, timeout_s: float = 0.0) -> list[SourceRecord]:
        """At most `records_max` records. Returns as soon as there is one, and after `timeout_s` without any.

        Raises Incompatible (`other_topic`, `offset_gone`, `topic_gone`), Unavailable (`kafka_failed`) for errors from which librdkafka cannot recover.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        messages = self._waiting or self._fetch(records_max, timeout_s)
        if messages and self._unsure and not self._is_same():
            self._waiting = messages
            return []
        self._waiting = []
        return self._take_all(messages)

    def has_reached(self, offsets: Mapping[int, int]) -> bool:
        """Whether every partition of `offsets` was read up to there."""
        return all(self.positions[p] >= offset for p, offset in offsets.items())

    def seek(self, partition: int, offset: int) -> None:
        """Go on with `partition` at `offset`."""
        self._consumer.incremental_unassign([TopicPartition(self._full_name, partition)])
        self._consumer.incremental_assign([TopicPartition(self._full_name, partition, offset)])
        self.positions[partition] = offset

    def close(self) -> None:
        """Close the client. Nothing is committed."""
        self._consumer.close()

    def _open(self) -> Consumer:
        consumer = _open_consumer(self._bootstrap, self._note_error)
        consumer.assign([TopicPartition(self._full_name, p, offset) for p, offset in self.positions.items()])
        return consumer

    def _reopen(self) -> None:
        self._consumer.close()
        self._unsure, self._heard_s = bool(self._topic_id), time.monotonic()
        self._consumer = self._open()

    def _fetch(self, records_max: int, timeout_s: float) -> list[Message]:
        first = self._consumer.poll(timeout_s)
        if first is None:
            if not self._heard or time.monotonic() - self._heard_s > _SILENT_S_MAX:
                self._check_exists()
            return []
        return [first, *(self._consumer.consume(records_max - 1, 0) if records_max > 1 else [])]

    def _note_error(self, _: KafkaError) -> None:
        """Called by the client within `poll`, also at the end of each connection."""
        self._unsure, self._heard = bool(self._topic_id), False

    def _is_same(self) -> bool:
        """False without an answer yet. Raises Incompatible (`other_topic`, `topic_gone`)."""
        try:
            check_topic_id(self._bootstrap, self._full_name, self._topic_id, deadline_s=_IDENTITY_S_MAX)
        except Unavailable as error:
            if error.code == "unknown_topic":
                self._miss(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            return False
        self._unsure, self._missing_since = False, None
        return True

    def _take_all(self, messages: Iterable[Message]) -> list[SourceRecord]:
        """The records of some messages. An error that stands behind records is kept for the next poll: they count as given."""
        records: list[SourceRecord] = []
        for message in messages:
            try:
                record = self._take(message)
            except AifError as error:
                if not records:
                    raise
                self._error = error
                break
            if record is not None:
                records.append(record)
        return records

    def _take(self, message: Message) -> SourceRecord | None:
        error = message.error()
        if error is None:
            self._hear()
            record = _source_record(self.topic, message)
            self.positions[record.partition] = record.offset + 1
            return record
        if error.code() == KafkaError._PARTITION_EOF:  # its offset is the position, past markers and compacted records
            self._hear()
            partition, offset = _place(message)
            self.positions[partition] = max(self.positions[partition], offset)
        elif error.code() not in _TRANSIENT:
            raise self._failure(error)
        return None

    def _failure(self, error: KafkaError) -> AifError:
        return refusal(self._bootstrap, error, f"topic {self._full_name}") or _read_error(error, self.topic, self.positions)

    def _hear(self) -> None:
        self._heard, self._heard_s = True, time.monotonic()

    def _check_exists(self) -> None:
        """librdkafka waits for a topic that does not exist without a word; we say so once it is missing for a while."""
        try:
            found = self._consumer.list_topics(self._full_name, timeout=_POLL_S).topics[self._full_name]
        except KafkaException as error:  # the broker is away or slow: nothing to say about its topics
            if error.args[0].code() == KafkaError._TRANSPORT and time.monotonic() - self._heard_s > REOPEN_S:
                self._reopen()
            return
        self._heard_s = time.monotonic()
        if found.error is None:
            self._heard, self._missing_since = True, None
        else:
            self._miss(found.error)

    def _miss(self, error: KafkaError) -> None:
        """The broker says that it has no such topic; one that is just starting says so for a moment. Raises Incompatible (`topic_gone`)."""
        self._missing_since = self._missing_since or time.monotonic()
        if time.monotonic() - self._missing_since > _TOPIC_MISSING_S_MAX:
            raise self._failure(error)


def read_topic(
    bootstrap: Bootstrap,
    topic: str,
    *,
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    prefix: str,
    stall_s_max: float = 30.0,
) -> Iterator[SourceRecord]:
    """Yields every record from `start` (None: the oldest retained) to before `end` (None: the end of the log now), in order within a partition.

    If `end` is given, its partitions are read, otherwise those of `start`, otherwise all. Before the first record it raises Incompatible (`offset_gone`) if
    the range is not in the log, and Unavailable (`unknown_topic`, `kafka_unreachable`). Later it raises Unavailable (`read_stalled`) after `stall_s_max`
    without progress, and the errors of `TopicFollower.poll`.
    """
    begins, ends = _plan_range(bootstrap, prefix + topic, start, end)
    open_partitions = {p for p in ends if begins[p] < ends[p]}
    if not open_partitions:
        return
    with TopicFollower(bootstrap, topic, {p: begins[p] for p in sorted(open_partitions)}, prefix=prefix) as follower:
        progress_at, before = time.monotonic(), dict(follower.positions)
        while not follower.has_reached({p: ends[p] for p in open_partitions}):
            yield from (r for r in follower.poll(_BATCH_RECORDS, _POLL_S) if r.offset < ends[r.partition])
            if follower.positions != before:
                progress_at, before = time.monotonic(), dict(follower.positions)
            elif time.monotonic() - progress_at > stall_s_max:
                raise Unavailable(
                    "read_stalled",
                    f"{prefix}{topic} stands at {before}, wanted {dict(ends)}, no progress for {stall_s_max:g} s; is the broker up?",
                )


def read_newest(bootstrap: Bootstrap, topic: str, records_max: int, *, prefix: str, deadline_s: float) -> Iterator[SourceRecord]:
    """Yields the newest `records_max` records of each partition; none where the topic does not exist. Raises as `read_topic`."""
    try:
        starts, ends = (offsets(bootstrap, prefix + topic, deadline_s=deadline_s) for offsets in (start_offsets, end_offsets))
    except Unavailable as error:
        if error.code != "unknown_topic":
            raise
        return
    begins = {p: max(starts[p], end - records_max) for p, end in ends.items()}
    yield from read_topic(bootstrap, topic, start=begins, end=ends, prefix=prefix, stall_s_max=deadline_s)


def _plan_range(
    bootstrap: Bootstrap, topic: str, start: Mapping[int, int] | None, end: Mapping[int, int] | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Start and end offset of every partition to read, checked against the log."""
    oldest, newest = start_offsets(bootstrap, topic), end_offsets(bootstrap, topic)
    partitions = sorted((end if end is not None else start if start is not None else newest).keys())
    ends = {p: newest[p] if end is None else end[p] for p in partitions if p in newest}
    begins = {p: oldest[p] if start is None else start.get(p, oldest[p]) for p in ends}
    for p in partitions:
        if p not in newest or ends[p] > newest[p] or (begins[p] < oldest[p] and begins[p] < ends[p]):
            wanted = f"{begins.get(p)} to {ends.get(p)}"
            raise Incompatible(
                "offset_gone",
                f"{topic} partition {p}: wanted {wanted}, the log holds {oldest.get(p)} to {newest.get(p)}; start from a snapshot",
            )
    return begins, ends


def _open_consumer(bootstrap: Bootstrap, on_error: Callable[[KafkaError], None]) -> Consumer:
    return Consumer(
        {
            **client_config(bootstrap, on_error),
            "group.id": f"aif-reader-{uuid.uuid4().hex}",  # the client wants one; it never joins a group
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "fetch.error.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "queued.max.messages.kbytes": _QUEUE_KIB_MAX,
        }
    )


def _place(message: Message) -> tuple[int, int]:
    """(partition, offset): a message of an assigned partition always has both."""
    return cast(int, message.partition()), cast(int, message.offset())


# The client leaves a list with a hole and a pending exception where a name is not UTF-8; called from C, the exception is looked for.
_read_headers = methodcaller("headers")


def _source_record(topic: str, message: Message) -> SourceRecord:
    kind, timestamp_ms = message.timestamp()
    try:
        headers = cast("list[tuple[str, bytes | None]] | None", _read_headers(message))
    except (SystemError, UnicodeDecodeError):  # the record is worth more than its headers
        headers = None
    return SourceRecord(topic, *_place(message), message.key(), message.value(), tuple(headers or ()), timestamp_ms if kind else -1)


def _read_error(error: KafkaError, topic: str, positions: Mapping[int, int]) -> AifError:
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return Incompatible(
            "offset_gone", f"{topic}: a position of {dict(positions)} is outside the log ({error.str()}); start from a snapshot"
        )
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return Incompatible("topic_gone", f"{topic} does not exist as expected ({error.str()}); `aif doctor` says what to do")
    return Unavailable("kafka_failed", f"{topic}: {error.str()}")
