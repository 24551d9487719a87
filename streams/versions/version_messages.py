"""Messages to Kafka about versions: dead letters of checkpoint records, and index-events as hints for people and metrics.

Invariants: `send_dead_letter` returns only when the broker has the letter, because the record is decided right after it. An event may be lost: nothing
depends on it.
"""

import logging

from confluent_kafka import KafkaException

from infra.closeable import Closeable
from infra.kafka.dead_letter_sender import DeadLetterSender, Letter
from infra.kafka.producer import open_producer
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from schemas.decoding import Rejection
from schemas.errors import Unavailable
from schemas.events import IndexEvent, encode_record
from schemas.topics import INDEX_EVENTS

_ACKNOWLEDGED_S_MAX = 10.0
_CLOSE_S_MAX = 2.0
_log = logging.getLogger("aif.streams.versions")


class VersionMessages(Closeable):
    """Sends both. One thread sends dead letters; any thread may announce."""

    def __init__(self, bootstrap: Bootstrap, prefix: str) -> None:
        self._prefix = prefix
        self._producer = open_producer(bootstrap, _ACKNOWLEDGED_S_MAX)
        self._letters = DeadLetterSender(bootstrap, prefix, _ACKNOWLEDGED_S_MAX, stage="VALIDATE")

    def send_dead_letter(self, record: SourceRecord, rejection: Rejection) -> None:
        """Sends and waits for the acknowledgement. Raises Unavailable (`dead_letter_not_sent`)."""
        if self._letters.send([Letter(record, rejection)]) != [True]:
            why = self._letters.last_error
            raise Unavailable(
                "dead_letter_not_sent",
                f"the broker has not acknowledged the dead letter of {record.topic} offset {record.offset} within {_ACKNOWLEDGED_S_MAX:g} s"
                f"{why and f': {why}'}; see `aif doctor`",
            )

    def announce(self, event: IndexEvent) -> None:
        """Logs the event and sends it without waiting."""
        where = "" if event.shard is None else f" shard={event.shard}"
        _log.info("%s version=%d.%d%s %s", event.kind, event.version, event.revision, where, event.reason)
        try:
            self._producer.produce(self._prefix + INDEX_EVENTS, encode_record(event), str(event.version), partition=0)
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            _log.warning("index event %s of version %d was not sent: %s", event.kind, event.version, error)

    def close(self) -> None:
        """Wait a moment for queued messages."""
        self._producer.flush(_CLOSE_S_MAX)
