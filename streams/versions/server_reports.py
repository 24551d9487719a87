"""What servers report about themselves: the last hour of the topic server-reports, in memory.

Invariants:
- While the topic is missing or does not answer (infra/kafka/follower_thread.py), nothing is known, and so nothing is rolled back. A record that cannot be
  decoded is skipped, counted and logged: it holds no data.
- Ages of reports are by the broker's clock alone, whose times reports have. The clocks of this machine, of servers and of the store may be hours off.
"""

import logging

from infra.clock import Clock
from infra.kafka.admin import end_offsets, newest_time_ms, offsets_at
from infra.kafka.follower_thread import FollowerThread
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap, KafkaTopics
from schemas.decoding import decode_record
from schemas.errors import RejectedInput
from schemas.events import ServerReport
from schemas.topics import SERVER_REPORTS
from streams.core.misbehaviour import Report, ReportHistory, fold_report

KEPT_MS = 3_600_000
_RETRY_S = 15.0
_log = logging.getLogger("aif.streams.reports")


def decode_report(record: SourceRecord) -> Report:
    """The report, at the time of its record, which is the broker's. So reports of a server whose clock is wrong, or is set back, still count.

    Raises RejectedInput for a record that is not a report.
    """
    told = decode_record(ServerReport, record.value)
    at_ms = record.timestamp_ms if record.timestamp_ms >= 0 else told.at_ms
    counts = told.answers, told.not_finite, told.failed, told.parity_checked, told.parity_mismatched
    return Report(told.server_id, told.version, at_ms, *counts, told.candidates, told.processor_ms)


class ServerReports(FollowerThread):
    """One per worker. From one hour before the newest report. Any thread may ask for `history` at any time."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, clock: Clock) -> None:
        self._bootstrap, self._clock = bootstrap, clock
        self._history: ReportHistory = {}
        self._live_from: dict[int, int] = {}  # by partition: records from this offset on were written while this process listened
        self._heard: tuple[int, float] | None = None  # the broker's time of the newest of those, and the monotonic time when it came
        self.passed_over = 0
        kafka, effect = KafkaTopics(bootstrap, prefix), "no version is rolled back automatically"
        super().__init__(kafka, SERVER_REPORTS, _RETRY_S, effect)

    def history(self) -> ReportHistory:
        """Every server's reports of the last hour."""
        return self._history

    def now_ms(self) -> int | None:
        """The time by the broker's clock: that of the newest report that came while this process listens, and the time since. None before the first:
        then it is not known how old the others are."""
        if self._heard is None:
            return None
        at_ms, heard_at = self._heard
        return at_ms + int((self._clock.monotonic() - heard_at) * 1000)

    def take(self, record: SourceRecord) -> None:
        """Adds one record to the history."""
        try:
            report = decode_report(record)
            self._history = fold_report(self._history, report, report.at_ms - KEPT_MS)
            if record.offset >= self._live_from.get(record.partition, 0):
                self._heard = report.at_ms, self._clock.monotonic()
        except RejectedInput as error:
            self.passed_over += 1
            _log.warning("skipping server report at offset %d: %s", record.offset, error)

    def begin(self, topic: str) -> dict[int, int]:
        """One hour before the newest report; the end of a topic without reports."""
        ends, newest_ms = end_offsets(self._bootstrap, topic), newest_time_ms(self._bootstrap, topic)
        self._live_from = ends
        return ends if newest_ms is None else offsets_at(self._bootstrap, topic, newest_ms - KEPT_MS)
