"""Sends the dead letters of the user topics, for the refused records that the view stores (user_store.py).

Every server follows all partitions, so every server stores every refused record and any of them may send its letters. The servers do not know each other.
Each waits for a random time of its own, looks whether the letter is already in its topic, and sends it if not. So normally the server with the shortest
wait sends. A server with an empty view finds the letters of earlier ones, and if one dies, another sends. Two servers may still send the same letter:
infra/kafka/redrive.py counts a place once.
Invariants:
- A refused record is stored in the same batch as the offset after it. It is deleted only after the broker acknowledged its letters, or they were found
  in their topic. So a kill in between may send a letter twice, but never loses one.
- Neither rankings nor the view wait for this. If the broker does not take letters, the records stay on disk, up to DEAD_LETTERS_WAITING_BYTES_MAX; then
  the view stops and says why. Memory: one page and the client's queue.
"""

import random
from collections.abc import Mapping, Sequence

from confluent_kafka import Producer

from infra.guarded_thread import OneThread
from infra.kafka.dead_letter_sender import DeadLetterSender, Letter
from infra.kafka.security import Bootstrap
from infra.kafka.sent_letters import SentLetters
from infra.metrics import Metrics
from schemas.errors import AifError, Unavailable
from schemas.limits import MIB
from serving.users.user_batch import decode_refused
from serving.users.user_store import UserStore

_ROUND_S = 0.5
_TURN_S_MAX = 1.0  # other servers see a letter about 20 ms after it was sent
_SETTLE_S_MAX = 10.0
_RETRY_S = 5.0
CLOSE_S_MAX = 2.0
_PAGE_BYTES = 8 * MIB
Row = tuple[bytes, bytes]


class UserDeadLetters(OneThread):
    """One thread that sends. `last_error` says why letters wait; empty if none do."""

    close_s_max = CLOSE_S_MAX  # records whose letters were not sent stay in the view

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        store: UserStore,
        metrics: Metrics,
        producer: Producer | None = None,
        sent: Mapping[str, SentLetters] | None = None,
    ) -> None:
        self._store, self._metrics = store, metrics
        self._sender = DeadLetterSender(bootstrap, prefix, _SETTLE_S_MAX, self._count, producer=producer, sent=sent)
        self._turn_s = random.uniform(0, _TURN_S_MAX)
        super().__init__("user-dead-letters")
        self.last_error = ""

    def _run(self) -> None:
        while not self.stopping.wait(_ROUND_S):
            if not self._store.refused_bytes:
                continue
            self.stopping.wait(self._turn_s)
            try:
                self.settle()
                self.last_error = ""
            except Exception as error:  # the records stay, rankings go on, and /v1/status shows the reason
                self.last_error = str(error) if isinstance(error, AifError) else f"unexpected: {error!r}"
                self.stopping.wait(_RETRY_S)

    def settle(self) -> None:
        """Sends everything that waits. Raises Unavailable (`dead_letters_waiting`) at the first page that the broker does not take completely."""
        after = b""  # continues from the last key: a scan from the start would pass all deleted keys under the view's lock
        while not self.stopping.is_set() and (page := self._store.read_refused(_PAGE_BYTES, after)):
            taken, after = self._send(page), page[-1][0]
            self._store.forget_refused(taken)
            if len(taken) < len(page) and not self.stopping.is_set():
                raise Unavailable(
                    "dead_letters_waiting",
                    f"{self._store.refused_bytes} bytes of refused records of the user topics wait for their dead-letter topics; "
                    "they are tried again; is the broker up, and does `aif topics plan` find them?",
                )

    def _send(self, page: Sequence[Row]) -> list[Row]:
        """Sends the letters of these rows that are not in their topic yet. Returns the rows whose letters all are there now."""
        refused = [decode_refused(raw) for _, raw in page]
        letters = [(row, Letter(one.record, rejection)) for row, one in enumerate(refused) for rejection in one.rejections]
        are_there = self._sender.send([letter for _, letter in letters], self.stopping.is_set)
        missing = {row for (row, _), is_there in zip(letters, are_there, strict=True) if not is_there}
        return [row for number, row in enumerate(page) if number not in missing]

    def _count(self, letter: Letter) -> None:
        self._metrics.counter("dead_letters").labels(letter.record.topic, letter.rejection.disposition).inc()
