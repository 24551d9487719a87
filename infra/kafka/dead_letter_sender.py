"""Sends dead letters and waits for the broker, for every process that refuses records. Only a shard does not use it: its letters are in its outbox.

Invariants: a letter counts as there when the broker has acknowledged it, or when its topic had it already. Whoever refused a record keeps it until then. So a
kill in between may send a second letter, which every reader counts once (redrive.py), and loses none.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from infra.kafka.dead_letters import dead_letter_topic, encode_dead_letter
from infra.kafka.producer import open_producer
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from infra.kafka.sent_letters import SentLetters
from schemas.decoding import Rejection
from schemas.errors import AifError

_POLL_S = 0.1


class Letter(NamedTuple):
    """One rejected update of a record."""

    record: SourceRecord
    rejection: Rejection


class DeadLetterSender:
    """For one thread at a time. The client is opened with the first letter, because most processes never send one.

    within_s  limit of one `send`
    on_sent   called for each letter that the broker has acknowledged
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        within_s: float,
        on_sent: Callable[[Letter], None] = lambda _: None,
        *,
        stage: str = "DECODE",
        producer: Producer | None = None,
        sent: Mapping[str, SentLetters] | None = None,
    ) -> None:
        self._bootstrap, self._prefix, self._within_s, self._on_sent, self._stage = bootstrap, prefix, within_s, on_sent, stage
        self._given, self._sent = producer, dict(sent or {})
        self.last_error = ""  # why a letter of the last `send` is not there, where the broker said so

    @cached_property
    def _producer(self) -> Producer:
        return self._given or open_producer(self._bootstrap, self._within_s)

    def send(self, letters: Sequence[Letter], is_stopping: Callable[[], bool] = lambda: False) -> list[bool]:
        """Sends the letters that are not in their topics yet. Returns which letters are there now. Never raises for a broker that does not answer."""
        for topic in {letter.record.topic for letter in letters}:
            with contextlib.suppress(AifError):  # a topic that does not read has no letter that is known: a second one is harmless
                self._sent.setdefault(topic, SentLetters(self._bootstrap, self._prefix, topic)).look()
        are_there = [self._sent[record.topic].has(record, rejection.index) for record, rejection in letters]
        if all(are_there):
            return are_there
        end_s, self.last_error = time.monotonic() + self._within_s, ""

        def may_wait() -> bool:
            return time.monotonic() < end_s and not is_stopping()

        for place, letter in enumerate(letters):
            if not are_there[place]:
                self._produce(letter, partial(self._note, are_there, place, letter), may_wait)
        while self._producer.flush(_POLL_S) and may_wait():
            pass
        self._producer.purge()
        self._producer.flush(_POLL_S)
        return are_there

    def _note(self, are_there: list[bool], place: int, letter: Letter, error: KafkaError | None, _: object) -> None:
        if error is None:
            are_there[place] = True
            self._on_sent(letter)
        elif error.code() != KafkaError._PURGE_QUEUE:
            self.last_error = error.str()

    def _produce(self, letter: Letter, on_delivery: Callable[..., None], may_wait: Callable[[], bool]) -> None:
        """Gives one letter to the client, and waits for room in its queue."""
        key, value, headers = encode_dead_letter(*letter, stage=self._stage)
        while True:
            try:
                topic = self._prefix + dead_letter_topic(letter.record.topic)
                self._producer.produce(topic, value, key, headers=list(headers), on_delivery=on_delivery)
                return
            except BufferError:
                if not may_wait():
                    return
                self._producer.poll(_POLL_S)
            except KafkaException as error:  # the letter stays missing
                self.last_error = error.args[0].str()
                return
