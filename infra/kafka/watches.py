"""Questions that are asked again and again, each over one connection: how many partitions a topic has, where its partitions end."""

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from infra.kafka.admin_client import KafkaAdmin
from infra.kafka.security import Bootstrap
from schemas.errors import Unavailable

_WATCH_S = 1.0


class PartitionWatch:
    """Asks again and again how many partitions topics have, over a connection of its own: on a consumer's, a question waits half a second for its fetch."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap, self._admin = bootstrap, KafkaAdmin(bootstrap)

    def count(self, topic: str) -> int:
        """Partitions of a topic (whole name), 0 where there is none. Raises Unavailable (`kafka_unreachable`) within a second."""
        try:
            return len(self._admin.client.list_topics(topic, timeout=_WATCH_S).topics[topic].partitions)
        except KafkaException as error:
            raise self._admin.unreachable(error.args[0], f"topic {topic}") from error


class EndReader:
    """Reads the ends of topics again and again, over one connection."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap, self._admin = bootstrap, KafkaAdmin(bootstrap)

    def read(self, topic: str, partitions: int) -> list[int]:
        """The end of each partition of a topic (whole name), before the first record of an open transaction. Raises Unavailable (`kafka_unreachable`) within
        seconds."""
        asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
        try:
            answers = self._admin.client.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_WATCH_S)
            found = {tp.partition: answer.result().offset for tp, answer in answers.items()}
        except KafkaException as error:
            raise self._admin.unreachable(error.args[0], f"topic {topic}") from error
        if missing := sorted(p for p in range(partitions) if found.get(p, -1) < 0):
            raise Unavailable(
                "kafka_unreachable", f"broker {self._bootstrap} gave no end of {topic} {missing}; is it up (`aif broker status`)?"
            )
        return [found[p] for p in range(partitions)]
