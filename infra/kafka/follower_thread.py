"""A thread that follows one topic of reports for as long as its process lives.

Invariants: nothing waits for this thread. A topic that is missing or does not answer is tried again after a pause, and logged when the reason changes. Any
other fault is logged and counted, and the thread begins again (infra/guarded_thread.py): it never ends in silence.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from infra.guarded_thread import GuardedThread
from infra.kafka.reader import SourceRecord, TopicFollower
from infra.kafka.security import KafkaTopics
from schemas.errors import AifError

_POLL_S = 0.5
_log = logging.getLogger("aif.kafka.follower")


class FollowerThread:
    """Any thread may start and close it.

    begin      gives the first offset of each partition for the topic's whole name, at each attempt
    take       gets each record, in this thread
    retry_s    pause after an attempt that failed
    effect     the consequence of a failure, for the log
    """

    def __init__(
        self,
        kafka: KafkaTopics,
        topic: str,
        begin: Callable[[str], Mapping[int, int]],
        take: Callable[[SourceRecord], None],
        retry_s: float,
        effect: str,
    ) -> None:
        self._kafka, self._topic, self._begin, self._take, self._retry_s = kafka, topic, begin, take, retry_s
        self._effect = effect
        self._stopping = threading.Event()
        self._thread = GuardedThread(self._run, topic, self._stopping)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._thread.stop()

    def _run(self) -> None:
        said = ""
        while not self._stopping.is_set():
            try:
                self._follow()
            except AifError as error:
                if str(error) != said:
                    _log.warning(
                        "topic_not_followed topic=%s retry_in_s=%g, until then %s: %s", self._topic, self._retry_s, self._effect, error
                    )
                said = str(error)
                self._stopping.wait(self._retry_s)

    def _follow(self) -> None:
        bootstrap, prefix = self._kafka.bootstrap, self._kafka.topic_prefix
        with TopicFollower(bootstrap, self._topic, self._begin(prefix + self._topic), prefix=prefix) as follower:
            while not self._stopping.is_set():
                for record in follower.poll(timeout_s=_POLL_S):
                    self._take(record)
