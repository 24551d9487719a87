"""How old the data of answers is: rows, by looks at the ends of the item topics twice a second; statistics, by the reports of `aif statistics`.

Here: the ages. Not here: what answers say about them (serving/status_view.py).
Without a broker there are no looks, and ages grow: the server does not know what the topics hold. A report says that the statistics it names had every
event of a moment before. So their age is the time since the last report that named them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from infra.guarded_thread import GuardedThread
from infra.kafka.admin import end_offsets
from infra.kafka.admin_client import EndReader
from infra.kafka.follower_thread import FollowerThread
from infra.kafka.reader import SourceRecord
from infra.kafka.security import KafkaTopics
from infra.logs import Seldom
from schemas.decoding import decode_record
from schemas.errors import RejectedInput, Unavailable
from schemas.events import StatisticsReport
from schemas.limits import FEATURES_PER_SCHEMA_MAX
from schemas.statistics import OF_USER
from schemas.topics import SHARD_TOPICS, STATISTICS_REPORTS
from serving.core.row_ages import Offsets as Watermark
from serving.core.row_ages import RowAges, SourceEnds

LOOK_S = 0.5
_RETRY_S = 2.0
_NAMES_MAX = 8 * FEATURES_PER_SCHEMA_MAX

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.statistics")


class EndWatch:
    """The thread. `ages` may be called from any thread, before `start` too."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self._kafka, self._ends, self._shards = kafka, SourceEnds(), 0
        self.is_lost: Callable[[], bool] = lambda: False  # whether the topics there are not those of the index: their ends say nothing
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
        if self.is_lost():
            return RowAges([None] * len(watermark))
        return self._ends.ages(watermark, time.monotonic())

    def _run(self) -> None:
        reader, prefix = EndReader(self._kafka.bootstrap), self._kafka.topic_prefix
        while not self._stopped.is_set():
            at_s = time.monotonic()  # before the question: the answer may lack later records
            try:
                found = {topic: reader.read(prefix + topic, self._shards) for topic in SHARD_TOPICS}
            except Unavailable:  # the follower of index-deltas says so
                self._stopped.wait(LOOK_S)
                continue
            self._ends.note(at_s, [{topic: ends[shard] for topic, ends in found.items()} for shard in range(self._shards)])
            self._stopped.wait(LOOK_S)


class StatisticsWatch(FollowerThread):
    """The thread. Its methods may be called from any thread, before `start` too."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self._began_s = time.monotonic()
        self._named_at_s: dict[str, float] = {}
        self._skipped = Seldom()
        super().__init__(kafka, STATISTICS_REPORTS, _RETRY_S, "the ages of statistics grow")

    def begin(self, topic: str) -> Mapping[int, int]:
        """The ends."""
        return end_offsets(self._kafka.bootstrap, topic)

    def ages_s(self, names: Iterable[str]) -> dict[str, float | None]:
        """Seconds since each statistic was last reported current; None: not since this server began."""
        now_s, told = time.monotonic(), self._named_at_s
        return {name: now_s - told[name] if name in told else None for name in names}

    def why_old(self, names: Iterable[str], age_s_max: float) -> str:
        """Which statistics are older than the limit; empty if none is, or if there is no limit (0)."""
        old = sorted(name for name in names if self.oldest_s([name]) > age_s_max > 0)
        return f"not kept current: {', '.join(old)}; does `aif statistics` run, and is one of them in AIF_STATISTICS__OFF?" if old else ""

    def oldest_s(self, names: Iterable[str]) -> float:
        """The largest of these ages, 0 without any; that of one without a report counts from the start of this server."""
        waited_s = time.monotonic() - self._began_s
        return max((waited_s if age_s is None else age_s for age_s in self.ages_s(names).values()), default=0.0)

    def take(self, record: SourceRecord) -> None:
        """One report; one that does not read counts as none."""
        try:
            report = decode_record(StatisticsReport, record.value)
        except RejectedInput as error:
            if self._skipped.happened():
                logger.warning("report_skipped", error=str(error), count=self._skipped.count)
            return
        names = [*report.names, *(OF_USER + name for name in report.user_names)]
        held = self._named_at_s if len(self._named_at_s) < _NAMES_MAX else {}  # names of no statistic must not fill the memory
        self._named_at_s = {**held, **dict.fromkeys(names, time.monotonic())}
