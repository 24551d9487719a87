"""Publishing events: one at a time with low latency, or in bulk with up to 256 updates of one partition in a record.

Invariants: the producer is idempotent and waits for all replicas. The partition of every record is computed here (murmur2 of the id's Kafka key), because a
batch has no key. A single update has the key that gives the same partition, so the order of one id holds across both forms. Nothing is lost in silence:
every record has a delivery handle, which is settled when the publisher is closed at the latest. `flush` raises when any record since the last flush was not
delivered. Memory is bounded: a call waits while the queue is full. After partitions were added to an item topic, items are refused within
seconds (`other_partitions`): workers stop there, and other clients send ids astray.
"""

import contextlib
import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from infra.extras import name_missing_extra
from infra.guarded_thread import GuardedThread
from infra.kafka.admin import FoundTopic, check_surplus, fetch_topics
from infra.kafka.producer import open_producer, produce
from infra.kafka.security import Bootstrap, refusal
from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.events import (
    Behaviour,
    CheckpointRecord,
    ImpressionRecord,
    ItemFeaturesUpdate,
    NewItem,
    UserFeaturesRecord,
    encode_record,
    join_updates,
)
from schemas.ids import Id, IdKind, decode_id, encode_kafka_key, partition_of
from schemas.limits import RECORD_BYTES_MAX, UPDATES_PER_RECORD_MAX
from schemas.topics import (
    IMPRESSIONS,
    ITEM_FEATURES,
    MODEL_CHECKPOINTS,
    NEW_ITEMS,
    USER_BEHAVIOURS,
    USER_FEATURES,
    encode_headers,
)

if TYPE_CHECKING:
    from infra.index.store import IndexStore
    from infra.settings import InfraSettings

_DELIVERY_S_MAX = 30.0
_POLL_S = 0.05
_LOOK_EVERY_S, _LOOK_S_MAX = 5.0, 0.5
_PURGED_S_MAX = 1.0
_ENDS_BYTES = len(join_updates([]))

U = TypeVar("U", ItemFeaturesUpdate, NewItem, Behaviour)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Where a record is in the log; topic without prefix."""

    topic: str
    partition: int
    offset: int


Delivery = Future[Delivered]  # `.result(timeout)`; raises Unavailable (`not_delivered`)


class Publisher:
    """Publishes every kind of event of one index. Use as a context manager: leaving it flushes. Safe to share by threads.

    `source` names the sender in the CloudEvents headers. Events with an id of another kind raise RejectedInput (`bad_id`); items raise Incompatible
    (`other_partitions`) where their topic has more partitions than the index has shards.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        source: str,
        shards: int,
        user_partitions: int,
        id_kind: IdKind | str,
        *,
        delivery_s_max: float = _DELIVERY_S_MAX,
    ) -> None:
        self._bootstrap = bootstrap
        self._fatal: KafkaError | None = None  # after which the client sends nothing
        self._prefix, self._source, self._kind = prefix, source, IdKind(id_kind)
        self._shards, self._user_partitions = shards, user_partitions
        self._surplus: Incompatible | None = None  # added partitions
        self._failed, self._first_failure, self._noting = 0, "", threading.Lock()
        self._producer = open_producer(bootstrap, delivery_s_max)
        self._ended = threading.Event()
        self._poller = GuardedThread(self._serve_callbacks, "publisher-callbacks", self._ended)
        self._poller.start()

    # --- one event ---

    def publish_item(self, item_id: Id, version: int, features: Mapping[str, Any]) -> Delivery:
        """Publish all features of an item. They replace the stored ones, unless those have a higher event version."""
        return self.publish_update(ItemFeaturesUpdate(item_id=item_id, version=version, features=dict(features)))

    def publish_delete(self, item_id: Id, version: int) -> Delivery:
        """Delete an item, unless its stored event version is higher."""
        return self.publish_update(ItemFeaturesUpdate(op="delete", item_id=item_id, version=version))

    def publish_update(self, update: ItemFeaturesUpdate) -> Delivery:
        """Publish one update of item-features."""
        item = decode_id(update.item_id, self._kind)
        return self._send(ITEM_FEATURES, partition_of(item, self._shards), item, join_updates([encode_record(update)]))

    def publish_new_item(
        self, item_id: Id, embedding: Sequence[float], features: Mapping[str, Any] | None = None, version: int = 0
    ) -> tuple[Delivery, ...]:
        """Publish the embedding of an item, and its features at `version` where they are given; one record each."""
        new = NewItem(item_id=item_id, embedding=[float(x) for x in embedding])
        item = decode_id(item_id, self._kind)
        sent = (self._send(NEW_ITEMS, partition_of(item, self._shards), item, join_updates([encode_record(new)])),)
        return sent if features is None else (*sent, self.publish_item(item_id, version, features))

    def publish_behaviour(self, behaviour: Behaviour) -> Delivery:
        """Publish one behaviour of a user."""
        user = self._checked(behaviour).user_id
        return self._send(USER_BEHAVIOURS, partition_of(user, self._user_partitions), user, join_updates([encode_record(behaviour)]))

    def publish_user(self, user_id: Id, features: Mapping[str, Any] | None, time_ms: int | None = None) -> Delivery:
        """Publish a user's profile; None deletes it, and leaves the behaviours. `time_ms`: since when it holds, for training; None: always."""
        user = decode_id(user_id, self._kind)
        value = None if features is None else encode_record(UserFeaturesRecord(user_id=user_id, features=dict(features), time_ms=time_ms))
        return self._send(USER_FEATURES, partition_of(user, self._user_partitions), user, value)

    def publish_impression(self, record: ImpressionRecord) -> Delivery:
        """Publish the items that one request showed, and the outcome."""
        user = decode_id(record.user_id, self._kind)
        return self._send(IMPRESSIONS, partition_of(user, self._user_partitions), user, encode_record(record))

    def publish_checkpoint(self, record: CheckpointRecord) -> Delivery:
        """Announce a checkpoint. The offset of its delivery is the version number."""
        return self._send(MODEL_CHECKPOINTS, 0, record.model_id, encode_record(record))

    def publish_checkpoint_file(self, store: "IndexStore", path: Path, label: str | None = None) -> Delivered:
        """Upload the checkpoint file at `path` to the index store, announce it, and wait until that is delivered; `.offset` is the version number.

        Raises what `upload_checkpoint` raises, and Misconfigured (`extra_missing`): the base install can send all other events.
        """
        try:
            from infra.index.checkpoint_upload import upload_checkpoint
        except ModuleNotFoundError as error:
            raise name_missing_extra(error, "publish_checkpoint_file", "train") from error
        return self.publish_checkpoint(upload_checkpoint(store, path, label)).result(_DELIVERY_S_MAX + 5.0)

    # --- many events ---

    def publish_items(self, updates: Iterable[ItemFeaturesUpdate]) -> int:
        """Publish all; how many. Order of one item is kept. Call `flush` to know that they arrived."""
        return self._send_packed(ITEM_FEATURES, updates, lambda u: partition_of(self._id(u.item_id), self._shards))

    def publish_new_items(self, updates: Iterable[NewItem]) -> int:
        """Publish all; how many."""
        return self._send_packed(NEW_ITEMS, updates, lambda u: partition_of(self._id(u.item_id), self._shards))

    def publish_behaviours(self, behaviours: Iterable[Behaviour]) -> int:
        """Publish all; how many. Order of one user is kept."""
        return self._send_packed(USER_BEHAVIOURS, behaviours, lambda b: partition_of(self._checked(b).user_id, self._user_partitions))

    def publish_users(self, records: Iterable[UserFeaturesRecord]) -> int:
        """Publish all, one record each (the topic is compacted by user); how many."""
        return _count(self.publish_user(r.user_id, r.features, r.time_ms) for r in records)

    def publish_impressions(self, records: Iterable[ImpressionRecord]) -> int:
        """Publish all, one record each; how many."""
        return _count(self.publish_impression(r) for r in records)

    # --- delivery ---

    def flush(self, timeout_s: float = _DELIVERY_S_MAX + 5.0) -> None:
        """Wait until everything published is delivered. Raises Unavailable (`not_delivered`) with the number of the others and the first reason."""
        left = self._producer.flush(timeout_s)
        with self._noting:
            failed, reason = self._failed, self._first_failure or "the broker did not answer in time"
            self._failed, self._first_failure = 0, ""
        if failed or left:
            raise Unavailable(
                "not_delivered", f"{failed} records failed and {left} are still waiting after {timeout_s:g} s; first reason: {reason}"
            )

    def close(self, timeout_s: float = _DELIVERY_S_MAX + 5.0) -> None:
        """Flush and end. Raises what `flush` raises."""
        try:
            self.flush(timeout_s)
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Unavailable):  # the first error is the one to be seen
            self.flush(_POLL_S)
        self._end()

    def _end(self) -> None:
        """Give up undelivered records, so that every handle is settled, and close the client."""
        self._ended.set()
        self._poller.join()
        self._producer.purge()
        self._producer.flush(_PURGED_S_MAX)
        self._producer.close()

    def _serve_callbacks(self) -> None:
        looked_s = float("-inf")
        while not self._ended.is_set():
            try:
                self._producer.poll(_POLL_S)
            except KafkaException as error:  # it is fatal: the client then gives its records back as purged
                self._fatal = error.args[0]
            if time.monotonic() > looked_s + _LOOK_EVERY_S:
                self._look_at_partitions()
                looked_s = time.monotonic()

    def _look_at_partitions(self) -> None:
        try:
            found = {
                t: FoundTopic(len(self._producer.list_topics(self._prefix + t, timeout=_LOOK_S_MAX).topics[self._prefix + t].partitions))
                for t in (ITEM_FEATURES, NEW_ITEMS)
            }
            check_surplus(found, self._prefix, self._shards)
            self._surplus = None
        except KafkaException:  # a broker that is away says nothing about its topics
            return
        except Incompatible as error:
            self._surplus = error

    def _id(self, item: Id) -> Id:
        return decode_id(item, self._kind)

    def _checked(self, behaviour: Behaviour) -> Behaviour:
        """The behaviour with both ids in the catalogue's kind."""
        user, item = self._id(behaviour.user_id), self._id(behaviour.item_id)
        if user is behaviour.user_id and item is behaviour.item_id:
            return behaviour
        return behaviour.model_copy(update={"user_id": user, "item_id": item})

    def _send_packed(self, topic: str, updates: Iterable[U], partition_of_update: Callable[[U], int]) -> int:
        sent = 0
        for partition, batch in _pack(updates, partition_of_update):
            self._send(topic, partition, None, join_updates(batch))
            sent += len(batch)
        return sent

    def _send(self, topic: str, partition: int, key: Id | None, value: bytes | None) -> Delivery:
        """Hand one record to the producer; waits while its queue is full. Raises RejectedInput (`record_too_large`), Incompatible (`other_partitions`),
        Unavailable (`not_delivered`)."""
        if self._surplus is not None and topic in (ITEM_FEATURES, NEW_ITEMS):
            raise self._surplus
        if value is not None and len(value) > RECORD_BYTES_MAX:
            raise RejectedInput("record_too_large", f"the event has {len(value)} bytes as JSON, a record holds at most {RECORD_BYTES_MAX}")
        delivery: Delivery = Future()
        delivery.set_running_or_notify_cancel()  # a record that was handed over cannot be taken back
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        headers = encode_headers(f"aif.{topic}", uuid.uuid4().hex, self._source, now)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                # confluent_kafka: a record that was delivered has both
                delivery.set_result(Delivered(topic, message.partition(), message.offset()))  # type: ignore[arg-type]
            else:
                delivery.set_exception(Unavailable("not_delivered", self._note_failure(topic, partition, error)))

        encoded_key = b"" if key is None else encode_kafka_key(key)
        try:
            produce(self._producer, self._prefix + topic, value, encoded_key, partition, on_delivery=delivered, headers=list(headers))
        except KafkaException as error:  # a fatal error of the idempotent producer, an unknown partition
            reason = self._note_failure(topic, partition, error.args[0])
            raise Unavailable("not_delivered", f"{reason}; open a new Publisher when the broker answers") from error
        return delivery

    def _note_failure(self, topic: str, partition: int, error: KafkaError) -> str:
        """Counts a record that was not delivered, for the next `flush`; the reason in words."""
        error = self._fatal or error
        refused = refusal(self._bootstrap, error, f"topic {self._prefix}{topic}")
        reason = refused.message if refused else f"{topic} partition {partition}: {error.str()}"
        with self._noting:
            self._failed, self._first_failure = self._failed + 1, self._first_failure or reason
        return reason


def open_publisher(settings: "InfraSettings", client: str) -> Publisher:
    """A publisher for the broker and the topics that the settings name; `client` is the sender that its records name. Raises as `count_partitions`, and
    Misconfigured (`no_broker`)."""
    bootstrap, prefix = settings.connection(), settings.kafka.topic_prefix
    shards, user_partitions = count_partitions(bootstrap, prefix)
    return Publisher(bootstrap, prefix, client, shards, user_partitions, settings.index.id_kind)


def count_partitions(bootstrap: Bootstrap, prefix: str) -> tuple[int, int]:
    """Partitions of the item topics and of the user topics, as the broker has them: a wrong number would send ids to other shards.

    Raises Unavailable (`unknown_topic`, `kafka_unreachable`).
    """
    found = fetch_topics(bootstrap, prefix)
    if ITEM_FEATURES not in found or USER_FEATURES not in found:
        raise Unavailable(
            "unknown_topic",
            f"{prefix}{ITEM_FEATURES} is not on {bootstrap}; a new index gets its topics when `aif worker` starts or from `aif topics apply`. For an index "
            "that exists, correct the broker or the prefix. If its topic was deleted, ask `aif doctor` before you make another",
        )
    return found[ITEM_FEATURES].partitions, found[USER_FEATURES].partitions


def _pack(updates: Iterable[U], partition_of_update: Callable[[U], int]) -> Iterator[tuple[int, list[bytes]]]:
    """Batches of one partition, encoded one by one: as many updates as a record may hold, by number and by size."""
    waiting: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    for update in updates:
        partition, encoded = partition_of_update(update), encode_record(update)
        batch = waiting.setdefault(partition, [])
        if batch and sizes[partition] + len(encoded) + 1 > RECORD_BYTES_MAX:
            yield partition, batch
            batch = waiting[partition] = []
        sizes[partition] = (sizes[partition] if batch else _ENDS_BYTES) + len(encoded) + 1
        batch.append(encoded)
        if len(batch) == UPDATES_PER_RECORD_MAX:
            yield partition, batch
            waiting[partition] = []
    yield from ((partition, batch) for partition, batch in waiting.items() if batch)


def _count(sent: Iterable[object]) -> int:
    return sum(1 for _ in sent)
