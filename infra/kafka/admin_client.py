"""The client behind every question about the cluster, two questions that are asked again and again, and whether a client has the rights of its role."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, OffsetSpec

from infra.kafka.security import Bootstrap, client_config, not_authorized, refusal
from schemas.errors import AifError, Unavailable

REOPEN_S = 30.0  # without an answer; librdkafka takes as long at most to set up one connection
_WATCH_S, _RIGHTS_S_MAX = 1.0, 10.0
_MOVED = frozenset({KafkaError._NOENT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH})
_ALL = frozenset(AclOperation)


class KafkaAdmin:
    """`client`, and the last refusal of its connections. Raises Misconfigured as `client_config`.

    No cycle of references leads back to `client`: its threads, sockets and pipes end with its last reference, because a worker's collector rarely runs.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._heard = deque[KafkaError](maxlen=1)
        self.client = AdminClient(
            {
                **client_config(bootstrap, partial(_note, self._heard)),
                "reconnect.backoff.max.ms": 1_000,
                "allow.auto.create.topics": False,  # or a question about a missing topic would make one where a broker allows it
            }
        )

    def refusal(self, error: KafkaError, what: str) -> AifError | None:
        """The error where the broker, or TLS, refuses this client; None for any other. A request behind a refused login only times out, so the reason is that
        of the connection."""
        self.client.poll(0)
        return refusal(self._bootstrap, error, what) or (refusal(self._bootstrap, self._heard[0], what) if self._heard else None)

    def unreachable(self, error: KafkaError, what: str) -> AifError:
        """The error for a question about `what` without an answer."""
        step = "is it up (`aif broker status`)?"
        return self.refusal(error, what) or Unavailable("kafka_unreachable", f"broker {self._bootstrap}: {error.str()}; {step}")


def _note(heard: deque[KafkaError], error: Any) -> None:
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
        heard.append(error)


class PartitionWatch:
    """Asks again and again how many partitions topics have, over a connection of its own: on a consumer's, a question waits half a second for its fetch."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap, self._admin = bootstrap, KafkaAdmin(bootstrap)

    def count(self, topic: str) -> int:
        """Partitions of a topic (whole name), 0 for a missing topic. Raises Unavailable (`kafka_unreachable`) within a second."""
        try:
            return len(self._admin.client.list_topics(topic, timeout=_WATCH_S).topics[topic].partitions)
        except KafkaException as error:
            raise self._admin.unreachable(error.args[0], f"topic {topic}") from error


class EndReader:
    """Reads the ends of topics again and again, over one connection.

    It opens a new client once leaders have moved, as they do when a broker restarts. The broker refuses the old client for good.
    It also does so after `REOPEN_S` without an answer, because a client can lose its last broker for good (infra/kafka/reader.py).
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._open()

    def _open(self) -> None:
        self._admin, self._answered_s = KafkaAdmin(self._bootstrap), time.monotonic()

    def read(self, topic: str, partitions: int) -> list[int]:
        """The end of each partition of a topic (whole name), before the first record of an open transaction. Raises Unavailable (`kafka_unreachable`) within
        seconds."""
        asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
        try:
            answers = self._admin.client.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_WATCH_S)
            found = {tp.partition: answer.result().offset for tp, answer in answers.items()}
        except KafkaException as error:
            unreachable = self._admin.unreachable(error.args[0], f"topic {topic}")
            if error.args[0].code() in _MOVED or time.monotonic() - self._answered_s > REOPEN_S:
                self._open()
            raise unreachable from error
        self._answered_s = time.monotonic()
        if missing := sorted(p for p in range(partitions) if found.get(p, -1) < 0):
            raise Unavailable(
                "kafka_unreachable", f"broker {self._bootstrap} gave no end of {topic} {missing}; is it up (`aif broker status`)?"
            )
        return [found[p] for p in range(partitions)]


def check_rights(bootstrap: Bootstrap, reads: Iterable[str], writes: Iterable[str], group: str = "") -> None:
    """Raises Unavailable (`kafka_not_authorized`) that names each missing right: to read or write topics (whole names), to be a member of `group`, if any. A
    consumer without them waits in silence. Which rights a role needs is in docs/how-to/kafka-security.md.

    Topics that do not exist, and a broker that does not answer this question, are passed over: the clients themselves meet those.
    """
    admin = KafkaAdmin(bootstrap)
    reads, writes = set(reads), set(writes)
    topics = _topic_operations(admin, sorted(reads | writes))
    missing = [f"read topic {t}" for t in sorted(reads) if AclOperation.READ not in topics.get(t, _ALL)]
    missing += [f"write topic {t}" for t in sorted(writes) if AclOperation.WRITE not in topics.get(t, _ALL)]
    if group and AclOperation.READ not in _group_operations(admin, group):
        missing.append(f"read group {group}")
    if missing:
        raise not_authorized(bootstrap, f"it may not {', '.join(missing)}")


def _topic_operations(admin: KafkaAdmin, names: list[str]) -> Mapping[str, frozenset[AclOperation]]:
    found = {}
    asked = admin.client.describe_topics(TopicCollection(names), include_authorized_operations=True, request_timeout=_RIGHTS_S_MAX)
    for name, future in asked.items():
        try:
            found[name] = _known(future.result().authorized_operations)
        except KafkaException as error:
            if isinstance(admin.refusal(error.args[0], name), Unavailable):
                found[name] = frozenset()
    return found


def _group_operations(admin: KafkaAdmin, group: str) -> frozenset[AclOperation]:
    try:
        asked = admin.client.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=_RIGHTS_S_MAX)
        return _known(asked[group].result().authorized_operations)
    except KafkaException as error:  # also that there is no such group yet
        return frozenset() if admin.refusal(error.args[0], group) else _ALL


def _known(operations: Iterable[AclOperation] | None) -> frozenset[AclOperation]:
    return _ALL if operations is None else frozenset(operations)
