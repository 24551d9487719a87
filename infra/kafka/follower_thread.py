"""A thread that follows one topic, until it is closed or an error ends it.

Invariants:
- Nothing waits for this thread. A topic that is missing or does not answer is tried again after a pause, and logged when the reason changes. Any other fault
  is logged and counted, and the thread begins again (infra/guarded_thread.py): it never ends in silence.
- A closed follower ends with its last reference, because a server's collector hardly ever runs. So it holds no method of its own.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from infra.guarded_thread import OneThread
from infra.kafka.reader import SourceRecord, TopicFollower
from infra.kafka.security import KafkaTopics
from schemas.errors import AifError

_POLL_S = 0.1
_RECORDS_MAX = 64  # of one poll: records of index-deltas are large
_log = logging.getLogger("aif.kafka.follower")


class FollowerThread(OneThread, ABC):
    """Any thread may start and close it. `stopping` is set once it is to end; `take` may set it.

    retry_s    pause after an attempt that failed
    effect     the consequence of a failure, for the log
    name       of the thread; "" = the topic's
    topic_id   of the topic in which the offsets mean something; "" if any topic of that name will do
    """

    def __init__(self, kafka: KafkaTopics, topic: str, retry_s: float, effect: str, name: str = "", topic_id: str = "") -> None:
        self._kafka, self._topic, self._retry_s, self._effect, self._topic_id = kafka, topic, retry_s, effect, topic_id
        super().__init__(name or topic)

    @abstractmethod
    def begin(self, topic: str) -> Mapping[int, int]:
        """The first offset of each partition of the topic (whole name); called at each attempt, in this thread."""

    @abstractmethod
    def take(self, record: SourceRecord) -> None:
        """Gets each record, in this thread."""

    def ends_at(self, error: Exception) -> bool:
        """Whether an error ends the thread; the follower then keeps the reason itself."""
        return False

    def _run(self) -> None:
        said = ""
        while not self.stopping.is_set():
            try:
                self._follow()
            except Exception as error:
                if self.ends_at(error):
                    return
                if not isinstance(error, AifError):
                    raise
                if str(error) != said:
                    _log.warning(
                        "topic_not_followed topic=%s retry_in_s=%g, until then %s: %s", self._topic, self._retry_s, self._effect, error
                    )
                said = str(error)
                self.stopping.wait(self._retry_s)

    def _follow(self) -> None:
        bootstrap, prefix = self._kafka.bootstrap, self._kafka.topic_prefix
        first = self.begin(prefix + self._topic)
        with TopicFollower(bootstrap, self._topic, first, prefix=prefix, topic_id=self._topic_id) as follower:
            while not self.stopping.is_set():
                for record in follower.poll(_RECORDS_MAX, _POLL_S):
                    self.take(record)
