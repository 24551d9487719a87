"""Records that retention has removed from the beginning of a topic. A command that reads a topic to its end says so, because its result lacks them."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.kafka.admin import start_offsets
from infra.kafka.reader import read_topic
from infra.kafka.security import Bootstrap


@dataclass(frozen=True, slots=True)
class RemovedRecords:
    """The records that a topic lacks: `records` is their number by offsets. From `complete_from_ms`, by the records' own times, it lacks none.

    complete_from_ms  None: no record is left
    """

    topic: str
    records: int
    complete_from_ms: int | None

    def __str__(self) -> str:
        if self.complete_from_ms is None:
            return f"{self.topic}: retention removed all {self.records} records"
        complete_from = dt.datetime.fromtimestamp(self.complete_from_ms / 1000, dt.UTC).isoformat(timespec="seconds")
        return f"{self.topic}: retention removed the first {self.records} records; it is complete from {complete_from}"


def complete_from(begins: Mapping[int, int], oldest_ms: Mapping[int, int]) -> int | None:
    """From when on a topic is complete. `begins`: first offset by partition; `oldest_ms`: time of the oldest record by partition."""
    return max((oldest_ms[p] for p, begin in begins.items() if begin and p in oldest_ms), default=None)


def find_removed(bootstrap: Bootstrap, topics: Iterable[str], *, prefix: str) -> list[RemovedRecords]:
    """What retention has removed from each of the topics; whole topics are left out. Raises as `read_topic`."""
    found = []
    for topic in topics:
        begins = {p: begin for p, begin in start_offsets(bootstrap, prefix + topic).items() if begin}
        oldest_ms: dict[int, int] = {}
        for p, begin in begins.items():
            oldest = next(read_topic(bootstrap, topic, start={p: begin}, prefix=prefix), None)
            oldest_ms |= {} if oldest is None else {p: oldest.timestamp_ms}
        if begins:
            found.append(RemovedRecords(topic, sum(begins.values()), complete_from(begins, oldest_ms)))
    return found
