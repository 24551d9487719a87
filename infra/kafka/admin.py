"""Topics on the broker: compared with the table, created and changed; their ids and offsets.

Invariants: what would move ids to other partitions or throw records away (another number of partitions, another cleanup policy) is done only if it is allowed
by name. No setting of an existing topic shrinks, and no topic is deleted. The number of shards is fixed for an index, so an item topic with more partitions
belongs to another index. `apply_topics` returns when every partition has a leader. No question about a topic makes one.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from infra.kafka.admin_client import KafkaAdmin
from infra.kafka.security import Bootstrap
from schemas.errors import Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, MODEL_CHECKPOINTS, NEW_ITEMS, REPORTS, TOPICS

if TYPE_CHECKING:
    from schemas.index.control import Init

CREATE, GROW, SURPLUS, CLEANUP, CONFIG, LARGER = "create", "grow", "surplus", "cleanup", "config", "larger"
LEFT = frozenset({SURPLUS, LARGER})  # differences that are shown, and never changed
# Where an operator gives a topic more than the table, it stays: taking it back would remove records, or refuse those that publishers send.
_SIZES = frozenset({"retention.ms", "retention.bytes", "max.message.bytes"})
# Offsets in manifests and control entries mean something in these very topics only, not in new ones of the same name.
IDENTITY_TOPICS = (ITEM_FEATURES, NEW_ITEMS, MODEL_CHECKPOINTS, INDEX_DELTAS)
ALL_TOPICS = tuple(topic.name for topic in TOPICS)
NEEDS_PERMISSION = frozenset({GROW, CLEANUP})
_SHARDED_TOPICS = (ITEM_FEATURES, NEW_ITEMS, INDEX_DELTAS)  # a partition is a shard
# Whoever adds partitions to another topic sends no item astray, and they are left alone: what clients put there is answered with dead letters.
_FIXED_TOPICS = (ITEM_FEATURES, NEW_ITEMS)
_FLAGS = {GROW: "--allow-growth", CLEANUP: "--allow-cleanup"}  # of `aif topics apply`

_REQUEST_S_MIN, _REQUEST_S_MAX = 0.2, 10.0
_LOOK_S_FIRST = 2.0  # a broker that refuses the login answers nothing, which is noticed between two looks
_DEADLINE_S = 30.0
_PAUSE_S = 0.05
_REPLICATION = 3  # where there are as many brokers; two of them must have a record before it is acknowledged

_log = logging.getLogger("aif.kafka.topics")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is on the broker: its number of partitions, its settings where they were asked for, and Kafka's id of it."""

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One difference: `topic` (without prefix), its kind (CREATE to CONFIG), the present and the declared value, and the settings to change."""

    topic: str
    kind: str
    before: str
    after: str
    config: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind:8} {self.topic}: {self.before} -> {self.after}"


def plan_topics(found: Mapping[str, FoundTopic], shards: int, user_partitions: int) -> list[TopicChange]:
    """What must change so that the broker has every topic of the table. `found`: the topics that are there, by name without prefix."""
    changes: list[TopicChange] = []
    for topic in TOPICS:
        wanted, config = topic.partition_count(shards, user_partitions), topic.config()
        there = found.get(topic.name)
        if there is None:
            changes.append(TopicChange(topic.name, CREATE, "missing", f"{wanted} partitions", config))
            continue
        if there.partitions != wanted:
            kind = GROW if there.partitions < wanted else SURPLUS
            changes.append(TopicChange(topic.name, kind, f"{there.partitions} partitions", f"{wanted} partitions", config))
        for name, value in config.items():
            if (current := there.config.get(name, "")) != value:
                kind = CLEANUP if name == "cleanup.policy" else LARGER if name in _SIZES and _size(current) > _size(value) else CONFIG
                changes.append(TopicChange(topic.name, kind, f"{name}={current}", f"{name}={value}", {name: value}))
    return changes


def _size(value: str) -> float:
    """A setting as a number; -1 has no bound. An unknown one counts as too small."""
    return float("inf") if value == "-1" else float(value) if value.isdigit() else -1.0


def apply_topics(bootstrap: Bootstrap, prefix: str, shards: int, user_partitions: int, *, allow: Iterable[str] = ()) -> list[TopicChange]:
    """Make the broker's topics those of the table. Returns the changes that were made. `allow` may name GROW and CLEANUP; LEFT differences stay, and are
    logged. Raises before anything is changed Incompatible (`topic_change_refused`; `other_partitions` for surplus partitions of an item topic), and
    Unavailable (`kafka_unreachable`, `kafka_timed_out`)."""
    broker = _Broker(bootstrap, _DEADLINE_S)
    found = broker.topics(prefix, settings=True, of=ALL_TOPICS)
    check_surplus(found, prefix, shards)
    planned = plan_topics(found, shards, user_partitions)
    changes = [c for c in planned if c.kind not in LEFT]
    refused = [c for c in changes if c.kind in NEEDS_PERMISSION - set(allow)]
    if refused:
        remedy = f"`aif topics apply {' '.join(sorted({_FLAGS[c.kind] for c in refused}))}`"
        raise Incompatible(
            "topic_change_refused",
            f"{'; '.join(map(str, refused))}. Use another topic prefix and index store, or allow it by name: {remedy}",
        )
    for change in planned:
        if change.kind != CREATE:
            _log.warning("topic differs from the table, left as it is: %s" if change.kind in LEFT else "topic changed: %s", change)
    for change in changes:
        broker.apply(prefix, change)
    if changes:
        broker.wait_for_leaders(prefix, shards, user_partitions)
    return changes


def fetch_topics(
    bootstrap: Bootstrap, prefix: str, *, deadline_s: float = _DEADLINE_S, settings: bool = False, of: Collection[str] = ALL_TOPICS
) -> dict[str, FoundTopic]:
    """The topics `of` the table that exist under `prefix`, by name without prefix; `settings`: with their settings, which takes the right DescribeConfigs.
    Whoever asks again and again asks for few: the client leaves 100 bytes of each topic in memory (confluent-kafka 2.16 never frees the ids).

    Raises Unavailable (`kafka_unreachable`, `kafka_login_failed`, `kafka_tls_failed`, `kafka_not_authorized`)."""
    return _Broker(bootstrap, deadline_s).topics(prefix, settings, of)


def topic_ids(bootstrap: Bootstrap, prefix: str) -> dict[str, str]:
    """Kafka's id of every topic of the table that exists, by name without prefix. A topic that was made again has another id."""
    return {name: found.topic_id for name, found in fetch_topics(bootstrap, prefix).items()}


def check_topic_id(bootstrap: Bootstrap, topic: str, topic_id: str, *, deadline_s: float = _DEADLINE_S) -> None:
    """Raises Incompatible (`other_topic`) unless `topic`, the whole name, has that id; Unavailable (`unknown_topic`, `kafka_unreachable`). With
    `topic_id` "" any id will do, and the broker is not asked."""
    if topic_id:
        broker = _Broker(bootstrap, deadline_s)
        found = str(broker.ask(f"topic {topic}", broker.admin.describe_topics, TopicCollection([topic]))[topic].topic_id)
        if found != topic_id:
            raise other_topic(topic, topic_id, found)


def check_topic_ids(known: Mapping[str, str], found: Mapping[str, str], prefix: str) -> None:
    """Raises Incompatible (`other_topic`) unless the topics that are there have the ids that are known. Names are without prefix."""
    for topic, topic_id in known.items():
        if found.get(topic, topic_id) != topic_id:
            raise other_topic(prefix + topic, topic_id, found[topic])


def topic_gone(prefix: str, gone: Iterable[str]) -> Incompatible:
    """The error for topics of an index (without prefix) that the broker does not have. `aif topics apply` is no remedy: it makes other topics."""
    return Incompatible(
        "topic_gone",
        f"the broker has no {', '.join(prefix + name for name in sorted(gone))} any more; a topic that is made again is another one: publish the "
        "catalogue again into a new index, with another AIF_KAFKA__TOPIC_PREFIX and AIF_INDEX__STORE",
    )


def require_topics(found: Iterable[str], prefix: str, needed: Iterable[str], of_index: Iterable[str] = ()) -> None:
    """Raises Incompatible where a needed topic is not among the found ones: `topic_gone` for one of the index, else `topic_missing`. Names are without
    prefix. For processes that only look at topics."""
    missing = set(needed) - set(found)
    if gone := missing & set(of_index):
        raise topic_gone(prefix, gone)
    if missing:
        names = ", ".join(prefix + name for name in sorted(missing))
        raise Incompatible("topic_missing", f"the broker has no {names}; make the missing topics with `aif topics apply`")


def other_topic(topic: str, known: str, found: str) -> Incompatible:
    """The error for a topic that has another id than the one whose offsets are known."""
    return Incompatible(
        "other_topic",
        f"{topic} has id {found or 'none'}, expected {known}: another cluster answers at this address, or the topic was deleted and made again. Use the "
        "broker and prefix that it was read from; after a new start of the topic, publish the catalogue again into a new index, with another "
        "AIF_KAFKA__TOPIC_PREFIX and AIF_INDEX__STORE",
    )


def find_coordinator(bootstrap: Bootstrap, group: str, *, deadline_s: float = _DEADLINE_S) -> int:
    """Return the number of members of a consumer group, when the broker has a coordinator for it. A new cluster makes the topic of the groups' offsets
    when it is first asked for one. Raises Unavailable (`kafka_unreachable`)."""
    broker = _Broker(bootstrap, deadline_s)
    return len(broker.ask(f"describe group {group}", broker.admin.describe_consumer_groups, [group])[group].members)


def describe_index(
    bootstrap: Bootstrap, prefix: str, shards: int, user_partitions: int, id_kind: IdKind | str, *, deadline_s: float = _DEADLINE_S
) -> "Init":
    """The identity of the index that these settings and the topics on this broker make (A1). Raises Incompatible (`other_partitions`)."""
    from schemas.index.control import Init  # needs numpy, which a publisher does without

    found = fetch_topics(bootstrap, prefix, deadline_s=deadline_s, of=IDENTITY_TOPICS)
    check_partitions(found, prefix, shards)
    ids = {name: found[name].topic_id for name in IDENTITY_TOPICS if name in found}
    # Reports and outcomes are no part of an index.
    topics = {topic.name: prefix + topic.name for topic in TOPICS if topic.name not in REPORTS}
    return Init(shards, user_partitions, IdKind(id_kind), topics, ids)


def check_partitions(found: Mapping[str, FoundTopic], prefix: str, shards: int) -> None:
    """Raises Incompatible (`other_partitions`) unless a partition is a shard. Index-deltas may have more: only workers write there, each for its shards.
    `found`: topics by name without prefix."""
    check_surplus(found, prefix, shards)
    _refuse_partitions(
        {name: t.partitions for name, t in found.items() if name in _SHARDED_TOPICS and t.partitions < shards}, prefix, shards
    )


def check_surplus(found: Mapping[str, FoundTopic], prefix: str, shards: int) -> None:
    """Raises Incompatible (`other_partitions`) where an item topic has more partitions than the index has shards."""
    _refuse_partitions({name: t.partitions for name, t in found.items() if name in _FIXED_TOPICS and t.partitions > shards}, prefix, shards)


def _refuse_partitions(others: Mapping[str, int], prefix: str, shards: int) -> None:
    if others:
        raise Incompatible(
            "other_partitions",
            f"{', '.join(f'{prefix}{name} has {n}' for name, n in others.items())} partitions, the index has {shards} shards: whoever computes a "
            "partition from their number sends ids to where no shard looks for them. Kafka takes no partition back, so publish the catalogue into a new "
            "index, with another AIF_KAFKA__TOPIC_PREFIX and AIF_INDEX__STORE, and AIF_INDEX__SHARDS as you want it",
        )


def end_offsets(bootstrap: Bootstrap, topic: str, *, deadline_s: float = _DEADLINE_S, open_too: bool = False) -> dict[int, int]:
    """By partition the offset up to which readers can read: after the newest record, but before an open transaction.

        topic     the whole name, prefix included
        open_too  count records of open transactions too

    Raises Unavailable (`unknown_topic`, `kafka_unreachable`).
    """
    isolation = IsolationLevel.READ_UNCOMMITTED if open_too else IsolationLevel.READ_COMMITTED
    return _Broker(bootstrap, deadline_s).offsets(topic, OffsetSpec.latest(), isolation)


def start_offsets(bootstrap: Bootstrap, topic: str, *, deadline_s: float = _DEADLINE_S) -> dict[int, int]:
    """The offset of the oldest retained record, by partition. `topic` is the whole name. Raises as `end_offsets`."""
    return _Broker(bootstrap, deadline_s).offsets(topic, OffsetSpec.earliest())


def offsets_at(bootstrap: Bootstrap, topic: str, time_ms: int) -> dict[int, int]:
    """The offset of the first record of `time_ms` or later, by partition; the end where no record is that new. `topic` is the whole name. Raises as
    `end_offsets`."""
    found = _Broker(bootstrap, _DEADLINE_S).offsets(topic, OffsetSpec.for_timestamp(time_ms))
    ends = end_offsets(bootstrap, topic)
    return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}


def newest_time_ms(bootstrap: Bootstrap, topic: str) -> int | None:
    """The time of the newest record of a topic, by its records; None where it has none. `topic` is the whole name. Raises as `end_offsets`."""
    broker = _Broker(bootstrap, _DEADLINE_S)
    asked = {TopicPartition(topic, p): OffsetSpec.max_timestamp() for p in broker.offsets(topic, OffsetSpec.latest())}
    times = [found.timestamp for found in broker.ask(f"topic {topic}", broker.admin.list_offsets, asked).values()]
    return max((time_ms for time_ms in times if time_ms >= 0), default=None)


class _Broker:
    """The admin client of one call. Every request is repeated until the call's deadline, because a broker that starts, and a topic that was just made, answer
    with errors at first."""

    def __init__(self, bootstrap: Bootstrap, deadline_s: float) -> None:
        self._bootstrap, self._deadline_s = bootstrap, deadline_s
        self._request_s = min(_REQUEST_S_MAX, max(deadline_s, _REQUEST_S_MIN))
        self._look_s = min(self._request_s, _LOOK_S_FIRST)
        self._end = time.monotonic() + deadline_s
        self._told = KafkaAdmin(bootstrap)
        self.admin = self._told.client

    def topics(self, prefix: str, settings: bool, of: Collection[str]) -> dict[str, FoundTopic]:
        """Topics under `prefix`, by name without prefix."""
        there = self._metadata().topics
        names = [name for name in of if prefix + name in there]
        self._check_visible([prefix + name for name in of if name not in names])
        if not names:
            return {}
        full = [prefix + name for name in names]
        described = self.ask(f"topics {full}", self.admin.describe_topics, TopicCollection(full))
        configs: dict[str, dict[str, str]] = {}
        if settings:
            asked = [ConfigResource(ResourceType.TOPIC, name) for name in full]
            answers = self.ask(f"the settings of topics {full}", self.admin.describe_configs, asked)
            configs = {resource.name: {k: entry.value for k, entry in values.items()} for resource, values in answers.items()}
        found = {name: described[prefix + name] for name in names}
        return {name: FoundTopic(len(t.partitions), configs.get(prefix + name, {}), str(t.topic_id)) for name, t in found.items()}

    def _check_visible(self, missing: list[str]) -> None:
        """A topic that this client may not describe looks as one that does not exist, and must not be taken for a deleted one."""
        asked = self.admin.describe_topics(TopicCollection(missing), request_timeout=self._request_s) if missing else {}
        for topic, future in asked.items():
            try:
                future.result()
            except KafkaException as error:
                if refused := self._told.refusal(error.args[0], f"topic {topic}"):
                    raise refused from error

    def offsets(self, topic: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[int, int]:
        """Offset of every partition of a topic."""

        def offsets() -> dict[int, int]:
            found = self._look(topic).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            asked = {TopicPartition(topic, p): spec for p in found.partitions}
            answers = self.admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._request_s)
            offsets = {tp.partition: answer.result().offset for tp, answer in answers.items()}
            # A broker that starts may leave a partition out: the client then gives the offset -1001, and no error.
            if missing := sorted(p for p, offset in offsets.items() if offset < OFFSET_END):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no offset of {topic} {missing}"))
            return offsets

        return self._retry(offsets, f"topic {topic}")

    def apply(self, prefix: str, change: TopicChange) -> None:
        """Carry out one change."""
        name = prefix + change.topic
        if change.kind == CREATE:
            self._create(name, change)
        elif change.kind == GROW:
            self.ask(f"more partitions of topic {name}", self.admin.create_partitions, [NewPartitions(name, int(change.after.split()[0]))])
        else:
            entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in change.config.items()]
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
            self.ask(f"new settings of topic {name}", self.admin.incremental_alter_configs, [resource])

    def _create(self, name: str, change: TopicChange) -> None:
        """Another process may make it at the same time; `apply_topics` of both sees the same table."""
        replication = min(_REPLICATION, len(self._metadata().brokers))
        config = {**change.config, "min.insync.replicas": str(max(1, replication - 1))}
        new = NewTopic(name, num_partitions=int(change.after.split()[0]), replication_factor=replication, config=config)
        self.ask(f"creating topic {name}", self.admin.create_topics, [new], fine=KafkaError.TOPIC_ALREADY_EXISTS)

    def wait_for_leaders(self, prefix: str, shards: int, user_partitions: int) -> None:
        """A topic that was just created answers nothing until its partitions have leaders."""
        while waiting := _without_leader(self._metadata(), prefix, shards, user_partitions):
            if time.monotonic() > self._end:
                raise Unavailable(
                    "kafka_timed_out", f"timed out after {self._deadline_s:g} s waiting for leaders of {waiting}; look at the broker's log"
                )
            time.sleep(_PAUSE_S)

    def _metadata(self) -> ClusterMetadata:
        return self._retry(self._look, "the list of topics")

    def _look(self, *topic: str) -> ClusterMetadata:
        """Each look waits twice as long as the one before: the answer to one that timed out is dropped when it comes, also that of a slow broker."""
        wait_s, self._look_s = self._look_s, min(2 * self._look_s, self._request_s)
        return self.admin.list_topics(*topic, timeout=wait_s)

    def ask(self, what: str, request: Callable[..., Mapping[Any, Future[T]]], asked: Any, fine: int | None = None) -> dict[Any, T]:
        """The results of a request's futures; `fine` is an error code that counts as done."""

        def results() -> dict[Any, T]:
            try:
                return {key: future.result() for key, future in request(asked, request_timeout=self._request_s).items()}
            except KafkaException as error:
                if error.args[0].code() == fine:
                    return {}
                raise

        return self._retry(results, what)

    def _retry(self, ask: Callable[[], T], what: str) -> T:
        while True:
            try:
                return ask()
            except KafkaException as error:
                code, text = error.args[0].code(), error.args[0].str()
                if refused := self._told.refusal(error.args[0], what):
                    raise refused from error
                if code == KafkaError.INVALID_CONFIG or time.monotonic() > self._end:
                    kind, step = "kafka_unreachable", "is it up (`aif broker status`)?"
                    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                        kind, step = "unknown_topic", "`aif doctor` says whether `aif topics apply` may make it"
                    raise Unavailable(kind, f"broker {self._bootstrap}: {text} after {self._deadline_s:g} s; {step}") from error
            time.sleep(_PAUSE_S)


def _without_leader(metadata: ClusterMetadata, prefix: str, shards: int, user_partitions: int) -> list[str]:
    return [
        t.name
        for t in TOPICS
        if (found := metadata.topics.get(prefix + t.name)) is None
        or len(found.partitions) < t.partition_count(shards, user_partitions)
        or any(p.leader < 0 for p in found.partitions.values())
    ]
