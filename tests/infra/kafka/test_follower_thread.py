"""A thread that follows a topic, and how it ends once it is closed."""

import threading
import weakref
from collections.abc import Mapping

from infra.garbage import collector_paused
from infra.kafka.follower_thread import FollowerThread
from infra.kafka.reader import SourceRecord
from infra.kafka.security import KafkaTopics
from schemas.errors import Unavailable

WAIT_S = 20.0


class Follower(FollowerThread):
    """Its broker never answers."""

    def __init__(self, asked: threading.Event) -> None:
        super().__init__(KafkaTopics("127.0.0.1:1", "p."), "a-topic", WAIT_S, "nothing is followed")
        self._asked = asked

    def begin(self, topic: str) -> Mapping[int, int]:
        self._asked.set()
        raise Unavailable("kafka_unreachable", topic)

    def take(self, record: SourceRecord) -> None:
        raise AssertionError(record)

    def ends_at(self, error: Exception) -> bool:
        return True  # so that no kept log record holds the error, whose frames hold the follower


def test_a_closed_follower_ends_with_its_last_reference_and_needs_no_collector() -> None:
    """A server makes one for each version. Follower and thread held each other, and so all versions since the start."""
    with collector_paused():
        asked = threading.Event()
        follower = Follower(asked)
        follower.start()
        assert asked.wait(WAIT_S)
        follower.close()
        ended = weakref.ref(follower)
        del follower
        assert ended() is None
