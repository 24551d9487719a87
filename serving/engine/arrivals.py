"""How old source records were when the engine made them visible: the freshness that a reader of answers sees, topic by topic.

Here: from the watermarks of delta records to ages. Not here: the tables (tables.py), metrics (serving/engine_metrics.py).
A delta record names the newest source record of its shard and the offsets it stands at, so an age belongs to the topics whose offset it moved; where both
moved, to both. Only a record that is newer than all before it says an age. The first one of a partition after a load says none: its rows may be old.
The publishers' clocks against ours; one from the future counts as 0 old.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from schemas.topics import SHARD_TOPICS

KEPT = 10_000  # ages nobody has asked for yet; the oldest give way


class Arrivals:
    """Of one resident version. The engine's thread notes, any other takes."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._newest_ms: dict[int, int] = {}  # by partition
        self._ages: deque[tuple[str, float]] = deque(maxlen=KEPT)

    def note(self, partition: int, before: Mapping[str, int], after: Mapping[str, int], source_ms: int) -> None:
        """A record that moves a shard from its offsets `before` to `after` was applied."""
        newest_ms = self._newest_ms.get(partition)
        self._newest_ms[partition] = max(source_ms, newest_ms or 0)
        if newest_ms is None or source_ms <= newest_ms:
            return
        age_s = max(0.0, self._now_s() - source_ms / 1000)
        self._ages.extend((topic, age_s) for topic in SHARD_TOPICS if after.get(topic, 0) > before.get(topic, 0))

    def take(self) -> list[tuple[str, float]]:
        """(topic, age in seconds) of what became visible since the last call."""
        taken = []
        while self._ages:
            taken.append(self._ages.popleft())
        return taken
