"""Whether a client has the rights that its role needs, asked before it starts. A consumer without them waits in silence."""

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from infra.kafka.admin_client import KafkaAdmin
from infra.kafka.security import Bootstrap, not_authorized
from schemas.errors import Unavailable

_ASK_S_MAX = 10.0


def check_rights(bootstrap: Bootstrap, reads: Iterable[str], writes: Iterable[str], group: str) -> None:
    """Raises Unavailable (`kafka_not_authorized`) that names each missing right: to read or write topics (whole names), to be a member of `group`.

    Topics that do not exist, and a broker that does not answer this question, are passed over: the clients themselves meet those.
    """
    admin = KafkaAdmin(bootstrap)
    reads, writes = set(reads), set(writes)
    topics = _topic_operations(admin, sorted(reads | writes))
    missing = [f"read topic {t}" for t in sorted(reads) if AclOperation.READ not in topics.get(t, _ALL)]
    missing += [f"write topic {t}" for t in sorted(writes) if AclOperation.WRITE not in topics.get(t, _ALL)]
    if AclOperation.READ not in _group_operations(admin, group):
        missing.append(f"read group {group}")
    if missing:
        raise not_authorized(bootstrap, f"it may not {', '.join(missing)}")


_ALL = frozenset(AclOperation)


def _topic_operations(admin: KafkaAdmin, names: list[str]) -> Mapping[str, frozenset[AclOperation]]:
    found = {}
    asked = admin.client.describe_topics(TopicCollection(names), include_authorized_operations=True, request_timeout=_ASK_S_MAX)
    for name, future in asked.items():
        try:
            found[name] = _known(future.result().authorized_operations)
        except KafkaException as error:
            if isinstance(admin.refusal(error.args[0], name), Unavailable):
                found[name] = frozenset()
    return found


def _group_operations(admin: KafkaAdmin, group: str) -> frozenset[AclOperation]:
    try:
        asked = admin.client.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=_ASK_S_MAX)
        return _known(asked[group].result().authorized_operations)
    except KafkaException as error:  # also that there is no such group yet
        return frozenset() if admin.refusal(error.args[0], group) else _ALL


def _known(operations: Iterable[AclOperation] | None) -> frozenset[AclOperation]:
    return _ALL if operations is None else frozenset(operations)
