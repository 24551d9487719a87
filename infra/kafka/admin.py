"""Topics on the broker: compare with the table, create and change, ask for ids and offsets.

Here: `plan_topics` (pure) and what carries it out, offsets at both ends of a log. Not here: the table itself (schemas/topics.py).
Invariants: what would move ids to other partitions or throw records away (another number of partitions, another cleanup policy) is done
only when it was allowed by name; N is fixed per index, so a grown item topic belongs to a new index. `apply_topics` returns when every
partition has a leader.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from schemas.errors import Incompatible, Unavailable
from schemas.topics import TOPICS

CREATE, GROW, SHRINK, CLEANUP, CONFIG = "create", "grow", "shrink", "cleanup", "config"
NEEDS_PERMISSION = frozenset({GROW, SHRINK, CLEANUP})

_REQUEST_S = 10.0
_DEADLINE_S = 30.0
_PAUSE_S = 0.05
_REPLICATION = 3  # where there are as many brokers; two of them must have a record before it is acknowledged
_PERMANENT = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.INVALID_CONFIG})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is on the broker; `config` holds every setting that the broker reports."""

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One difference: `topic` (without prefix), kind, what is there, what the table says."""

    topic: str
    kind: str
    before: str
    after: str
    config: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind:8} {self.topic}: {self.before} -> {self.after}"


def plan_topics(found: Mapping[str, FoundTopic], shards: int, user_partitions: int) -> list[TopicChange]:
    """What must change so that the broker has every topic of the table. `found` by name without prefix."""
    changes: list[TopicChange] = []
    for topic in TOPICS:
        wanted, config = topic.partition_count(shards, user_partitions), topic.config()
        there = found.get(topic.name)
        if there is None:
            changes.append(TopicChange(topic.name, CREATE, "missing", f"{wanted} partitions", config))
            continue
        if there.partitions != wanted:
            kind = GROW if there.partitions < wanted else SHRINK
            changes.append(TopicChange(topic.name, kind, f"{there.partitions} partitions", f"{wanted} partitions", config))
        for name, value in config.items():
            if (current := there.config.get(name, "")) != value:
                kind = CLEANUP if name == "cleanup.policy" else CONFIG
                changes.append(TopicChange(topic.name, kind, f"{name}={current}", f"{name}={value}", {name: value}))
    return changes


def apply_topics(
    bootstrap: str, prefix: str, shards: int, user_partitions: int, *, allow: Iterable[str] = (), deadline_s: float = _DEADLINE_S
) -> list[TopicChange]:
    """Make the broker's topics those of the table; the changes that were made.

    `allow` may name grow, cleanup, and shrink (which deletes the topic with its records and makes it again). Raises Incompatible
    (`topic_change_refused`) before anything is changed, Unavailable (`kafka_unreachable`).
    """
    changes = plan_topics(fetch_topics(bootstrap, prefix, deadline_s), shards, user_partitions)
    refused = [c for c in changes if c.kind in NEEDS_PERMISSION - set(allow)]
    if refused:
        raise Incompatible(
            "topic_change_refused",
            "; ".join(map(str, refused))
            + ". Use another topic prefix and index store, or allow it by name: "
            + ", ".join({c.kind for c in refused}),
        )
    admin = _open_admin(bootstrap)
    brokers = len(_retry(lambda: admin.list_topics(timeout=_REQUEST_S).brokers, bootstrap, deadline_s))
    for change in changes:
        _retry(lambda c=change: _apply_change(admin, prefix, c, brokers), bootstrap, deadline_s)  # type: ignore[misc]
    _wait_for_leaders(admin, bootstrap, prefix, shards, user_partitions, deadline_s)
    return changes


def fetch_topics(bootstrap: str, prefix: str, deadline_s: float = _DEADLINE_S) -> dict[str, FoundTopic]:
    """The topics of the table that exist under `prefix`, by name without prefix."""
    admin = _open_admin(bootstrap)
    metadata = _retry(lambda: admin.list_topics(timeout=_REQUEST_S), bootstrap, deadline_s)
    names = [t.name for t in TOPICS if prefix + t.name in metadata.topics]
    if not names:
        return {}
    full = [prefix + name for name in names]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in full]
    described = _retry(lambda: _results(admin.describe_topics(TopicCollection(full), request_timeout=_REQUEST_S)), bootstrap, deadline_s)
    configs = _retry(lambda: _results(admin.describe_configs(resources, request_timeout=_REQUEST_S)), bootstrap, deadline_s)
    by_name = {resource.name: {k: entry.value for k, entry in values.items()} for resource, values in configs.items()}
    return {
        name: FoundTopic(len(described[prefix + name].partitions), by_name[prefix + name], str(described[prefix + name].topic_id))
        for name in names
    }


def topic_ids(bootstrap: str, prefix: str) -> dict[str, str]:
    """Kafka's id of every topic of the table that exists, by name without prefix: another id is another topic of the same name."""
    return {name: found.topic_id for name, found in fetch_topics(bootstrap, prefix).items()}


def end_offsets(bootstrap: str, topic: str, *, deadline_s: float = _DEADLINE_S) -> dict[int, int]:
    """The offset after the newest record of every partition. `topic` is the whole name, prefix included."""
    return _list_offsets(bootstrap, topic, OffsetSpec.latest(), deadline_s)


def start_offsets(bootstrap: str, topic: str, *, deadline_s: float = _DEADLINE_S) -> dict[int, int]:
    """The offset of the oldest retained record of every partition. `topic` is the whole name, prefix included."""
    return _list_offsets(bootstrap, topic, OffsetSpec.earliest(), deadline_s)


def delete_topics(bootstrap: str, names: Iterable[str], *, deadline_s: float = _DEADLINE_S) -> None:
    """Remove topics (whole names) with their records; those that do not exist are fine. Returns when they are gone."""
    admin = _open_admin(bootstrap)
    wanted = set(names)
    end = time.monotonic() + deadline_s
    while there := sorted(wanted & set(_retry(lambda: admin.list_topics(timeout=_REQUEST_S).topics, bootstrap, deadline_s))):
        for future in admin.delete_topics(there, request_timeout=_REQUEST_S).values():
            future.exception()  # what is still there is asked for again
        _pause(end, f"{there} to be deleted")


def _list_offsets(bootstrap: str, topic: str, spec: OffsetSpec, deadline_s: float) -> dict[int, int]:
    admin = _open_admin(bootstrap)

    def ask() -> dict[int, int]:
        found = admin.list_topics(topic, timeout=_REQUEST_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        asked = {TopicPartition(topic, p): spec for p in found.partitions}
        answers = _results(admin.list_offsets(asked, request_timeout=_REQUEST_S))
        return {tp.partition: result.offset for tp, result in answers.items()}

    return _retry(ask, bootstrap, deadline_s)


def _apply_change(admin: AdminClient, prefix: str, change: TopicChange, brokers: int) -> None:
    name = prefix + change.topic
    if change.kind == SHRINK:
        _results(admin.delete_topics([name], request_timeout=_REQUEST_S))
    if change.kind in (CREATE, SHRINK):
        replication = min(_REPLICATION, brokers)
        config = {**change.config, "min.insync.replicas": str(max(1, replication - 1))}
        new = NewTopic(name, num_partitions=int(change.after.split()[0]), replication_factor=replication, config=config)
        try:
            _results(admin.create_topics([new], request_timeout=_REQUEST_S))
        except KafkaException as error:
            # Another process made it in the meantime. A topic that is still being deleted is not there yet: ask again.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or change.kind == SHRINK:
                raise
    elif change.kind == GROW:
        _results(admin.create_partitions([NewPartitions(name, int(change.after.split()[0]))], request_timeout=_REQUEST_S))
    else:
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in change.config.items()]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        _results(admin.incremental_alter_configs([resource], request_timeout=_REQUEST_S))


def _wait_for_leaders(admin: AdminClient, bootstrap: str, prefix: str, shards: int, user_partitions: int, deadline_s: float) -> None:
    """A topic that was just created answers nothing until its partitions have leaders."""
    end = time.monotonic() + deadline_s
    while True:
        topics = _retry(lambda: admin.list_topics(timeout=_REQUEST_S).topics, bootstrap, deadline_s)
        waiting = [
            t.name
            for t in TOPICS
            if (found := topics.get(prefix + t.name)) is None
            or len(found.partitions) < t.partition_count(shards, user_partitions)
            or any(p.leader < 0 for p in found.partitions.values())
        ]
        if not waiting:
            return
        _pause(end, f"leaders of {waiting}")


def _open_admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2, "reconnect.backoff.max.ms": 1_000})


def _results(futures: Mapping[Any, Future[T]]) -> dict[Any, T]:
    return {key: future.result() for key, future in futures.items()}


def _retry(ask: Callable[[], T], bootstrap: str, deadline_s: float) -> T:
    """Ask again until the deadline: a broker that starts, and a topic that was just created, answer with errors at first."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            code = error.args[0].code()
            if code in _PERMANENT or time.monotonic() > end:
                unknown = code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
                raise Unavailable(
                    "unknown_topic" if unknown else "kafka_unreachable",
                    f"{bootstrap}: {error.args[0].str()} after {deadline_s:g} s; "
                    + ("run `aif topics apply`" if unknown else "is the broker up (`aif broker status`)?"),
                ) from error
        time.sleep(_PAUSE_S)


def _pause(end: float, what: str) -> None:
    if time.monotonic() > end:
        raise Unavailable("kafka_timed_out", f"waited in vain for {what}; look at the broker's log")
    time.sleep(_PAUSE_S)
