"""Sends the outbox of a shard with one idempotent producer, in the order of the sequence, and reports the entries that the broker has acknowledged.

Invariants: an entry is confirmed only when the index's own cluster has acknowledged it and every entry before it. After a lost connection another cluster may
answer at the address, so the topics are compared before anything more is confirmed. Other entries are still in the shard and are sent again after a restart.
A delivery never times out: while the broker is away the queue fills up, and then `send` makes the shard wait (I8).
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from infra.guarded_thread import GuardedThread
from infra.kafka.producer import open_producer
from infra.kafka.security import Bootstrap, refusal
from schemas.errors import AifError, Incompatible, Unavailable
from streams.shard.outbox import OutboxEntry

_POLL_S = 0.05
_FLUSH_S_MAX, _THREAD_END_S_MAX, _PURGED_S_MAX = 5.0, 2.0, 1.0
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class OutboxSender:
    """One producer, and the thread that runs its callbacks. Only the thread of the shard calls `send`.

    on_confirmed(sequence)  everything up to it was acknowledged; called from this object's thread
    on_failure(error)       the broker refused for good (a topic is gone), or is another cluster's, or this object's thread failed, so that nothing would be
                            confirmed any more: the process must stop, and the next start sends what is in the shard
    on_tick()               about 20 times a second, from this object's thread
    check_topics()          raises Incompatible where the topics are not those of the index, Unavailable without an answer in time
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        *,
        on_confirmed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        on_tick: Callable[[], None] = lambda: None,
        check_topics: Callable[[], None] = lambda: None,
    ) -> None:
        self._bootstrap, self._prefix, self._check_topics = bootstrap, prefix, check_topics
        self._on_confirmed, self._on_failure, self._on_tick = on_confirmed, on_failure, on_tick
        self._numbers = itertools.count(1)
        self._lost = self._compared = 0  # the last lost connection, and the last after which the topics were compared
        self._confirmed = -1
        self._producer = open_producer(bootstrap, 0, self._note_error)  # the outbox keeps undelivered entries
        self._lock = threading.Lock()
        self._waiting: deque[int] = deque()  # sequences in the order of sending, from the oldest without an acknowledgement
        self._acknowledged: set[int] = set()  # of those
        self._closing, self._ended = threading.Event(), threading.Event()
        self._thread = GuardedThread(self._serve, "outbox", self._ended, on_fault=on_failure)
        self._thread.start()

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Hands entries to the producer; waits while its queue is full."""
        for entry in entries:
            with self._lock:
                self._waiting.append(entry.sequence)
            while not self._produce(entry):
                if self._closing.is_set():
                    return
                self._producer.poll(_POLL_S)

    def end_sending(self) -> None:
        """Ends a `send` that waits for room. `close` has to follow."""
        self._closing.set()

    def close(self) -> None:
        """Waits a few seconds for the last messages, then ends. Undelivered entries are still in the shard. The client drops them: each would keep it alive,
        and it would send them next to the shard's new owner."""
        self._producer.flush(_FLUSH_S_MAX)
        self._thread.stop(_THREAD_END_S_MAX)  # a check of the topics may take longer; the steps after it do nothing any more
        self._producer.purge()
        self._producer.flush(_PURGED_S_MAX)

    def _produce(self, entry: OutboxEntry) -> bool:
        place: dict[str, Any] = {} if entry.partition is None else {"partition": entry.partition}
        try:
            self._producer.produce(
                self._prefix + entry.topic,
                entry.value,
                entry.key,
                headers=list(entry.headers),
                on_delivery=lambda error, _: self._take(entry, error),
                **place,
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._fail(entry, error.args[0])
        return True

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                self._producer.poll(_POLL_S)
            except KafkaException as error:  # it is fatal: the client sends nothing any more
                self._on_failure(refusal(self._bootstrap, error.args[0], f"topics with prefix {self._prefix}") or error)
                return
            if self._lost != self._compared:
                self._compare_topics()
            self._on_tick()

    def _note_error(self, _: KafkaError) -> None:
        self._lost = next(self._numbers)

    def _compare_topics(self) -> None:
        """Compare the topics with the index, and confirm the entries that were acknowledged meanwhile."""
        lost = self._lost
        try:
            self._check_topics()
        except Unavailable:
            return
        except AifError as error:
            self._on_failure(error)
            return
        self._compared = lost
        with self._lock:
            if self._confirmed >= 0:
                self._on_confirmed(self._confirmed)

    def _take(self, entry: OutboxEntry, error: KafkaError | None) -> None:
        if error is not None:
            if error.code() not in _PURGED:
                self._fail(entry, error)
            return
        with self._lock:
            self._acknowledged.add(entry.sequence)
            before = self._confirmed
            while self._waiting and self._waiting[0] in self._acknowledged:
                self._confirmed = self._waiting.popleft()
                self._acknowledged.remove(self._confirmed)
            if self._confirmed > before and self._lost == self._compared:
                self._on_confirmed(self._confirmed)  # under the lock: two threads serve callbacks, and a lower number must not come later

    def _fail(self, entry: OutboxEntry, error: KafkaError) -> None:
        self._on_failure(
            refusal(self._bootstrap, error, f"topic {self._prefix}{entry.topic}")
            or Incompatible(
                "outbox_refused",
                f"the broker refused outbox entry {entry.sequence} for {self._prefix}{entry.topic} ({len(entry.value or b'')} bytes): {error.str()}; "
                "`aif doctor` says whether the topic is gone or was made again",
            )
        )
