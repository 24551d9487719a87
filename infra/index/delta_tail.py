"""The end of index-deltas, seen from outside: what the shards told their readers last.

Here: the headers of the last records of each partition, and of what follows. Not here: servers, which read all of it (serving/versions).
"""

import time
from collections.abc import Iterator, Mapping

from infra.closeable import Closeable
from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import TopicFollower
from infra.kafka.security import Bootstrap
from schemas.index.layout import DeltaHeader, find_delta
from schemas.topics import INDEX_DELTAS


class DeltaTail(Closeable):
    """At first the last `records` records of each partition, then what is new. For one thread, which closes it."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, records: int, deadline_s: float) -> None:
        self._bootstrap, self._prefix, self._records, self._deadline_s = bootstrap, prefix, records, deadline_s
        self._follower: TopicFollower | None = None
        self._newest: dict[int, DeltaHeader] = {}

    def read(self) -> Iterator[DeltaHeader]:
        """The headers up to where the topic ends now, or of what comes within the deadline. A record that no shard wrote is passed over: servers name it.

        Raises Unavailable (`unknown_topic`, `kafka_unreachable`).
        """
        name = self._prefix + INDEX_DELTAS
        ends = end_offsets(self._bootstrap, name, deadline_s=self._deadline_s)
        if self._follower is None:
            starts = start_offsets(self._bootstrap, name, deadline_s=self._deadline_s)
            tail = {p: max(starts[p], end - self._records) for p, end in ends.items()}
            self._follower = TopicFollower(self._bootstrap, INDEX_DELTAS, tail, prefix=self._prefix)
        give_up = time.monotonic() + self._deadline_s
        while not self._follower.has_reached(ends) and time.monotonic() < give_up:
            for record in self._follower.poll(1_000, 0.1):
                if (delta := find_delta({}, record.partition, record.value or b"")) is not None:
                    yield delta.header

    def newest(self) -> Mapping[int, DeltaHeader]:
        """By shard the header with the furthest offsets so far, after reading on. Raises as `read`."""
        for header in self.read():
            self._newest[header.shard] = max(header, self._newest.get(header.shard, header), key=lambda one: sum(one.next_offsets))
        return self._newest

    def close(self) -> None:
        """Closes its client."""
        if self._follower is not None:
            self._follower.close()
