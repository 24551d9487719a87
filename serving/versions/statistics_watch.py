"""Follows the reports of `aif statistics`, so that a server knows how old the statistics of items are that its version reads.

Here: the ages. Not here: the thread (infra/kafka/follower_thread.py), what answers say about it (serving/status_view.py).
A report says that the statistics it names had every event of a moment before, so their age is the time since the last report that named them.
"""

import time
from collections.abc import Iterable
from functools import partial

import structlog

from infra.kafka.admin import end_offsets
from infra.kafka.follower_thread import FollowerThread
from infra.kafka.reader import SourceRecord
from infra.kafka.security import KafkaTopics
from schemas.decoding import decode_record
from schemas.errors import RejectedInput
from schemas.events import StatisticsReport
from schemas.topics import STATISTICS_REPORTS

_RETRY_S = 2.0

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.statistics")


class StatisticsWatch:
    """The thread. The other methods may be called from any thread, before `start` too."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self._began_s = time.monotonic()
        self._named_at_s: dict[str, float] = {}
        begin = partial(end_offsets, kafka.bootstrap)
        self._thread = FollowerThread(kafka, STATISTICS_REPORTS, begin, self._take_record, _RETRY_S, "the ages of statistics grow")

    def start(self) -> None:
        """Begins to follow the reports."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._thread.close()

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

    def take(self, value: bytes | None) -> None:
        """One report; one that does not read counts as none."""
        try:
            names = decode_record(StatisticsReport, value).names
        except RejectedInput as error:
            logger.warning("report_skipped", error=str(error))
            return
        self._named_at_s = {**self._named_at_s, **dict.fromkeys(names, time.monotonic())}

    def _take_record(self, record: SourceRecord) -> None:
        self.take(record.value)
