"""Looks at the ends of the item topics twice a second, so that the ages of rows are known.

Without a broker there are no looks, and ages grow: the server does not know what it has not seen.
"""

import threading
import time

from infra.guarded_thread import GuardedThread
from infra.kafka.admin_client import EndReader
from infra.kafka.security import KafkaTopics
from schemas.errors import Unavailable
from schemas.topics import SHARD_TOPICS
from serving.core.row_ages import Offsets as Watermark
from serving.core.row_ages import RowAges, SourceEnds

LOOK_S = 0.5


class EndWatch:
    """The thread. `ages` may be called from any thread, before `start` too."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self._kafka, self._ends, self._shards = kafka, SourceEnds(), 0
        self._stopped = threading.Event()
        self._thread = GuardedThread(self._run, "source-ends", self._stopped)

    def start(self, shards: int) -> None:
        """Begins to look at the topics of an index with so many shards."""
        self._shards = shards
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._thread.stop()

    def ages(self, watermark: Watermark) -> RowAges:
        """How old the rows of an answer or a version with this watermark are now."""
        return self._ends.ages(watermark, time.monotonic())

    def _run(self) -> None:
        reader, prefix = EndReader(self._kafka.bootstrap), self._kafka.topic_prefix
        while not self._stopped.is_set():
            at_s = time.monotonic()  # before the question: what comes later than it may be missing in the answer
            try:
                found = {topic: reader.read(prefix + topic, self._shards) for topic in SHARD_TOPICS}
            except Unavailable:  # the follower of index-deltas says so
                self._stopped.wait(LOOK_S)
                continue
            self._ends.note(at_s, [{topic: ends[shard] for topic, ends in found.items()} for shard in range(self._shards)])
            self._stopped.wait(LOOK_S)
