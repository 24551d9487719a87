"""Follows the reports of `aif statistics`, so that a server knows how old the statistics of items are that its version reads.

Here: the thread and the ages. Not here: what answers say about it (serving/status_view.py).
A report says that the statistics it names had every event of a moment before, so their age is the time since the last report that named them.
"""

import threading
import time
from collections.abc import Iterable

import structlog

from infra.guarded_thread import GuardedThread
from infra.kafka.admin import end_offsets
from infra.kafka.reader import TopicFollower
from infra.kafka.security import KafkaTopics
from schemas.decoding import decode_record
from schemas.errors import AifError, RejectedInput
from schemas.events import StatisticsReport
from schemas.topics import STATISTICS_REPORTS

_RETRY_S, _POLL_S = 2.0, 0.5

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.statistics")


class StatisticsWatch:
    """The thread. The other methods may be called from any thread, before `start` too."""

    def __init__(self, kafka: KafkaTopics) -> None:
        self._kafka, self._began_s = kafka, time.monotonic()
        self._named_at_s: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = GuardedThread(self._run, "statistics-reports", self._stopped)

    def start(self) -> None:
        """Begins to follow the reports."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._thread.stop()

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

    def _run(self) -> None:
        said = ""
        while not self._stopped.is_set():
            try:
                self._follow()
            except AifError as error:
                if str(error) != said:
                    logger.warning("reports_not_read", error=str(error), retry_s=_RETRY_S)
                said = str(error)
                self._stopped.wait(_RETRY_S)

    def _follow(self) -> None:
        bootstrap, prefix = self._kafka.bootstrap, self._kafka.topic_prefix
        ends = end_offsets(bootstrap, prefix + STATISTICS_REPORTS)
        with TopicFollower(bootstrap, STATISTICS_REPORTS, ends, prefix=prefix) as follower:
            while not self._stopped.is_set():
                for record in follower.poll(timeout_s=_POLL_S):
                    self.take(record.value)
