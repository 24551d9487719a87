"""Reads the log for training: every event of the input topics up to now.

Here: topics to `Events`, and what a checkpoint's card says of them. Not here: decoding (event_decoder.py), joining (impressions.py), following the log
(following/). Reading stops at the end offsets that were read at the start, so it also ends on a busy log.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from typing import Any

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.removed_records import RemovedRecords, find_removed
from infra.kafka.security import Bootstrap
from infra.processes import wait_until
from infra.settings import ProcessSettings
from schemas.ids import IdKind
from schemas.topics import IMPRESSIONS
from streams.training.event_decoder import TRAINING_TOPICS, EventDecoder, Offsets, Refuse
from streams.training.impressions import Events

_WAIT_S_MAX = 900.0
_POLL_S = 0.2
FAR = 20  # widths of the middle eight tenths: a time that lies further outside of them is taken for a wrong clock
_TENTHS = 10  # of fewer impressions nothing is left out


@dataclass(frozen=True)
class LogRange:
    """A range of the log: offsets by topic and partition, from `begins` to before `ends`."""

    begins: Offsets
    ends: Offsets


@dataclass(frozen=True)
class DataRange:
    """What a checkpoint's card says of the data: where in the log it ended, and the times of its first and last impression."""

    offsets: Offsets
    from_ms: int | None
    until_ms: int | None

    def to_dict(self) -> dict[str, Any]:
        """For a card: a follower continues from `offsets`."""
        return {"offsets": {topic: dict(of) for topic, of in self.offsets.items()}, "from_ms": self.from_ms, "until_ms": self.until_ms}


def find_span(times_ms: Sequence[int]) -> tuple[int | None, int | None]:
    """(first, last) of times in ms, without those that lie far from most; (None, None) of no times.

    The time of an impression is set by its publisher: one client whose clock stands at 1970 or in the next century would make the span decades long."""
    if not times_ms:
        return None, None
    ordered = sorted(times_ms)
    low, high = ordered[len(ordered) // _TENTHS], ordered[-1 - len(ordered) // _TENTHS]
    reach = FAR * (high - low) if len(ordered) >= _TENTHS else ordered[-1] - ordered[0]
    return next(t for t in ordered if t >= low - reach), next(t for t in reversed(ordered) if t <= high + reach)


class TopicEvents:
    """Reads the topics of one index, whose identity says how. `decoder` counts refused records, and calls `refuse` for impressions."""

    def __init__(
        self, bootstrap: Bootstrap, prefix: str, shards: int, user_partitions: int, kind: IdKind, refuse: Refuse | None = None
    ) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.identity = {"shards": shards, "user_partitions": user_partitions, "id_kind": str(kind)}
        self.decoder = EventDecoder(shards, user_partitions, kind, refuse)

    @classmethod
    def of(cls, settings: ProcessSettings, refuse: Refuse | None = None) -> "TopicEvents":
        """Those that the settings of a process name."""
        index, prefix = settings.index, settings.kafka.topic_prefix
        return cls(settings.connection(), prefix, index.shards, index.user_partitions, IdKind(index.id_kind), refuse)

    def range_now(self) -> LogRange:
        """Everything that the log holds now."""
        ends = self.ends()
        return LogRange({t: as_text(start_offsets(self.bootstrap, self.prefix + t)) for t in TRAINING_TOPICS}, ends)

    def removed(self) -> list[RemovedRecords]:
        """What retention has removed from the topics; whole topics are left out."""
        return find_removed(self.bootstrap, TRAINING_TOPICS, prefix=self.prefix)

    def wait_for_impressions(self, records: int) -> None:
        """Returns once the impressions topic holds at least `records`. Raises Unavailable (`timed_out`) after a quarter of an hour.

        A publisher that sends impressions last can start training early: their items and users are in the log when the last impression is.
        """
        topic = self.prefix + IMPRESSIONS

        def held() -> int:
            return sum(end_offsets(self.bootstrap, topic).values()) - sum(start_offsets(self.bootstrap, topic).values())

        if records:
            wait_until(lambda: held() >= records, _WAIT_S_MAX, f"{records} records in {topic}", poll_s=_POLL_S)

    def ends(self) -> Offsets:
        """Where each topic ends now: what `read` goes up to."""
        return fetch_ends(self.bootstrap, self.prefix)

    def read(self, until: Offsets) -> Events:
        """All five topics side by side, up to given ends. Raises Incompatible (`offset_gone`)."""
        given_up = Event()
        with ThreadPoolExecutor(len(TRAINING_TOPICS)) as pool:
            found = {topic: pool.submit(self._read, topic, until, given_up) for topic in TRAINING_TOPICS}
            try:
                return Events(*(events.result() for events in found.values()))
            except BaseException:  # Ctrl-C, too: the pool waits for its threads, and their records are of no use now
                given_up.set()
                raise

    def _read(self, topic: str, until: Offsets, given_up: Event) -> list[Any]:
        """One partition after the other, each in log order: how the broker interleaves them must not change the result."""
        records = read_topic(self.bootstrap, topic, end=partitions_of(until, topic), prefix=self.prefix)
        ordered = in_log_order(takewhile(lambda _: not given_up.is_set(), records))
        return self.decoder.decode(topic, takewhile(lambda _: not given_up.is_set(), ordered))


def fetch_ends(bootstrap: Bootstrap, prefix: str, topics: tuple[str, ...] = TRAINING_TOPICS) -> Offsets:
    """Where each topic ends now."""
    return {topic: as_text(end_offsets(bootstrap, prefix + topic)) for topic in topics}


def in_log_order(records: Any) -> list[SourceRecord]:
    """Partition by partition, each by offset."""
    return sorted(records, key=lambda r: (r.partition, r.offset))


def partitions_of(offsets: Offsets, topic: str) -> dict[int, int]:
    """The offsets of one topic by partition number."""
    return {int(p): offset for p, offset in offsets.get(topic, {}).items()}


def as_text(offsets: Mapping[int, int]) -> dict[str, int]:
    """The inverse for one topic: partitions as text, because JSON has no other keys."""
    return {str(p): offset for p, offset in sorted(offsets.items())}
