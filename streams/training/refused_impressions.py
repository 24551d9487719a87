"""Sends records of impressions that cannot be decoded to their dead-letter topic. Only training reads impressions, so only training can do this.

Here: the letters that wait in memory. Not here: sending (infra/kafka/dead_letter_sender.py), the faults of a record (event_decoder.py). Invariants: training
waits a few seconds for dead letters at most, and never fails because of one. Letters that the broker did not take are tried again. Beyond
`_WAITING_BYTES_MAX` they are left to the next reading of the log, whose retention is longer than a training.
"""

import logging

from infra.kafka.dead_letter_sender import DeadLetterSender, Letter
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from schemas.decoding import Rejection
from schemas.errors import RejectedInput
from schemas.limits import MIB

_SETTLE_S_MAX = 5.0
_WAITING_BYTES_MAX = 64 * MIB
_log = logging.getLogger("aif.train.refused")


class RefusedImpressions:
    """`refuse` records as they are met, `settle` now and then; used by one thread at a time. `sent` counts letters that the broker took."""

    def __init__(self, bootstrap: Bootstrap, prefix: str) -> None:
        self._sender = DeadLetterSender(bootstrap, prefix, _SETTLE_S_MAX, self._count)
        self._waiting: list[Letter] = []
        self._waiting_bytes = self.sent = 0

    def refuse(self, record: SourceRecord, error: RejectedInput) -> None:
        """Keeps the dead letter of a record until the next `settle`, or sends it now where too many wait. Never raises."""
        size = _size(record)
        if not self._has_room(size):
            self.settle()
            if not self._has_room(size):
                _log.warning(
                    "the dead letter of impressions partition %d offset %d is left for the next run", record.partition, record.offset
                )
                return
        self._waiting.append(Letter(record, Rejection(0, error.code, error.message, error.disposition)))
        self._waiting_bytes += size

    def settle(self) -> int:
        """Sends the waiting letters. Returns how many the broker has not taken."""
        are_there = self._sender.send(self._waiting)
        self._waiting = [letter for letter, is_there in zip(self._waiting, are_there, strict=True) if not is_there]
        self._waiting_bytes = sum(_size(letter.record) for letter in self._waiting)
        if self._waiting:
            _log.warning("%d dead letters of impressions are not sent yet; retrying", len(self._waiting))
        return len(self._waiting)

    def _has_room(self, size: int) -> bool:
        return not self._waiting or self._waiting_bytes + size <= _WAITING_BYTES_MAX

    def _count(self, _: Letter) -> None:
        self.sent += 1


def _size(record: SourceRecord) -> int:
    return len(record.value or b"") + len(record.key or b"")
