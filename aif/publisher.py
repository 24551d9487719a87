"""The publisher as a program outside this project opens it: with an address, without settings."""

from infra.kafka import publisher
from infra.kafka.security import Bootstrap
from schemas.ids import IdKind


class Publisher(publisher.Publisher):
    """Publishes every kind of event of one index. Use as a context manager: leaving it flushes. Safe to share by threads.

    The numbers of partitions come from the broker. Raises Unavailable (`unknown_topic`, `kafka_unreachable`) where it has no topics, or does not answer.
    """

    def __init__(self, bootstrap: Bootstrap, *, source: str, prefix: str = "aif.", id_kind: IdKind | str = IdKind.INT64) -> None:
        """`bootstrap`: the broker, HOST:PORT, or a KafkaConnection with TLS and a login. `source`: the sender's name, in the records' headers. `prefix`,
        `id_kind`: those of the index (AIF_KAFKA__TOPIC_PREFIX, AIF_INDEX__ID_KIND)."""
        shards, user_partitions = publisher.count_partitions(bootstrap, prefix)
        super().__init__(bootstrap, prefix, source, shards, user_partitions, id_kind)
