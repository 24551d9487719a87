"""A thread that follows one topic, until it is closed or an error ends it.

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

_POLL_S = 0.1
_RECORDS_MAX = 64  # of one poll: records of index-deltas are large
_log = logging.getLogger("aif.kafka.follower")


class FollowerThread:
    """Any thread may start and close it. `stopping` is set once it is to end; `take` may set it.

    begin      the topic's whole name -> the first offset of each partition; called at each attempt
    take       gets each record, in this thread
    retry_s    pause after an attempt that failed
    effect     the consequence of a failure, for the log
    name       of the thread; "" = the topic's
    topic_id   of the topic in which the offsets mean something; "" if any topic of that name will do
    ends_at    whether an error ends the thread; it then keeps the reason itself
    """

    def __init__(
        self,
        kafka: KafkaTopics,
        topic: str,
        begin: Callable[[str], Mapping[int, int]],
        take: Callable[[SourceRecord], None],
        retry_s: float,
        effect: str,
        name: str = "",
        topic_id: str = "",
        ends_at: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self._kafka, self._topic, self._first_offsets, self._handle, self._retry_s = kafka, topic, begin, take, retry_s
        self._effect, self._topic_id, self._ends_at = effect, topic_id, ends_at
        self.stopping = threading.Event()
        self._thread = GuardedThread(self._run, name or topic, self.stopping)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._thread.stop()

    def _run(self) -> None:
        said = ""
        while not self.stopping.is_set():
            try:
                self._follow()
            except Exception as error:
                if self._ends_at(error):
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
        first = self._first_offsets(prefix + self._topic)
        with TopicFollower(bootstrap, self._topic, first, prefix=prefix, topic_id=self._topic_id) as follower:
            while not self.stopping.is_set():
                for record in follower.poll(_RECORDS_MAX, _POLL_S):
                    self._handle(record)
