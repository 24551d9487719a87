"""How old source records were when the engine made them visible: the freshness of answers, per topic.

Here: from the watermarks of delta records to ages. Not here: the tables (tables.py), metrics (serving/engine_metrics.py).
A delta record has the time of its shard's newest source record and the shard's offsets. The age counts for each topic whose offset moved. Only a record
with a newer time than all before it gives an age; the first one of a partition after a load gives none, because its rows may be old.
Record times are the broker's, and so is `now_s`, as far as it is known (core/broker_clock.py); a time in the future counts as age 0.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from schemas.topics import SHARD_TOPICS

KEPT = 10_000  # ages that were not taken yet; the oldest are dropped


class Arrivals:
    """The ages of one resident version. `note` is called by the engine's thread, `take` by any other."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._newest_ms: dict[int, int] = {}  # by partition
        self._ages: deque[tuple[str, float]] = deque(maxlen=KEPT)

    def note(self, partition: int, before: Mapping[str, int], after: Mapping[str, int], source_ms: int) -> None:
        """Notes that a record was applied which moved a shard from the offsets `before` to `after`; `source_ms` is its newest source record's time."""
        newest_ms = self._newest_ms.get(partition)
        self._newest_ms[partition] = max(source_ms, newest_ms or 0)
        if newest_ms is None or source_ms <= newest_ms:
            return
        age_s = max(0.0, self._now_s() - source_ms / 1000)
        self._ages.extend((topic, age_s) for topic in SHARD_TOPICS if after.get(topic, 0) > before.get(topic, 0))

    def take(self) -> list[tuple[str, float]]:
        """(topic, age in seconds) of each record that became visible since the last call."""
        taken = []
        while self._ages:
            taken.append(self._ages.popleft())
        return taken
