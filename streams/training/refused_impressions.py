"""Sends records of impressions that cannot be decoded to their dead-letter topic. Only training reads impressions, so only training can do this.

Here: which letters were sent before, sending, trying again. Not here: the form of a dead letter (infra/kafka/dead_letters.py), what is wrong with a
record (event_decoder.py).
Invariants: training never waits longer than `_SETTLE_S_MAX` for a dead letter and never fails because of one. A source position gets one dead letter,
however often it is read: the positions in the topic are read once, before the first letter is sent. Letters that the broker did not take are tried
again; beyond `_WAITING_BYTES_MAX` they are left to the next reading of the log, which is retained for longer than a training runs.
"""

import logging
from collections.abc import Callable
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException, Producer

from infra.kafka.dead_letters import dead_letter_topic, encode_dead_letter
from infra.kafka.producer import open_producer
from infra.kafka.reader import SourceRecord
from infra.kafka.redrive import read_dead_letters
from infra.kafka.security import Bootstrap
from schemas.decoding import Rejection
from schemas.errors import AifError, RejectedInput
from schemas.limits import MIB
from schemas.topics import IMPRESSIONS

_SETTLE_S_MAX = 5.0
_PURGED_S_MAX = 0.1
_WAITING_BYTES_MAX = 64 * MIB
_log = logging.getLogger("aif.train.refused")
Position = tuple[int, int]  # partition, offset


class RefusedImpressions:
    """`refuse` records as they are met, `settle` now and then; used by one thread at a time. `sent` counts what the broker took."""

    def __init__(self, bootstrap: Bootstrap, prefix: str) -> None:
        self._bootstrap, self._prefix = bootstrap, prefix
        self._waiting: dict[Position, tuple[SourceRecord, RejectedInput]] = {}
        self._waiting_bytes = 0
        self.sent = 0

    def refuse(self, record: SourceRecord, error: RejectedInput) -> None:
        """Makes a dead letter of a record, unless it is one. Never raises, never waits for the broker longer than to read what is there."""
        position = (record.partition, record.offset)
        size = len(record.value or b"") + len(record.key or b"")
        if position in self._known or position in self._waiting:
            return
        if self._waiting and self._waiting_bytes + size > _WAITING_BYTES_MAX:
            self.settle()
            if self._waiting_bytes + size > _WAITING_BYTES_MAX:
                _log.warning("the dead letter of impressions partition %d offset %d is left for the next run", *position)
                return
        self._waiting[position] = (record, error)
        self._waiting_bytes += size

    def settle(self) -> int:
        """Sends the waiting letters. Returns how many the broker has not taken."""
        before = len(self._waiting) + 1
        while self._waiting and len(self._waiting) < before:  # a round is as many as the client's queue holds
            before = len(self._waiting)
            self._send_waiting()
        if self._waiting:
            _log.warning("%d dead letters of impressions are not sent yet; retrying", len(self._waiting))
        return len(self._waiting)

    def _send_waiting(self) -> None:
        topic = self._prefix + dead_letter_topic(IMPRESSIONS)
        for position, (record, error) in self._waiting.items():
            rejection = Rejection(0, error.code, error.message, error.disposition)
            key, value, headers = encode_dead_letter(record, rejection)
            try:
                self._producer.produce(topic, value, key, headers=list(headers), on_delivery=self._noting(position))
            except (KafkaException, BufferError):
                break
        self._producer.flush(_SETTLE_S_MAX)
        self._producer.purge()
        self._producer.flush(_PURGED_S_MAX)

    def _noting(self, position: Position) -> Callable[[KafkaError | None, object], None]:
        def note(error: KafkaError | None, _: object) -> None:
            if error is None and position in self._waiting:
                record, _reason = self._waiting.pop(position)
                self._waiting_bytes -= len(record.value or b"") + len(record.key or b"")
                self._known.add(position)
                self.sent += 1

        return note

    @cached_property
    def _known(self) -> set[Position]:
        """Positions that have a dead letter. If they cannot be read, a second letter for a position is harmless."""
        try:
            letters = read_dead_letters(self._bootstrap, self._prefix, IMPRESSIONS)
            return {(letter.source.partition, letter.source.offset) for letter in letters if letter.source.topic == IMPRESSIONS}
        except AifError as error:
            _log.warning("cannot read earlier dead letters of impressions: %s", error.message)
            return set()

    @cached_property
    def _producer(self) -> Producer:
        return open_producer(self._bootstrap, _SETTLE_S_MAX)
