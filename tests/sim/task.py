"""A shard in the hands of a simulated worker: what streams/shard/task.py is without threads. Not here: the worker (worker.py).

Steps come sequentially, and batches of one topic may hold earlier records again. The sender puts outbox entries into their topics in order. Any prefix may be
there when the process dies, and only acknowledged entries are removed.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from infra.kafka.reader import SourceRecord
from schemas.errors import Incompatible, Unavailable
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS
from streams.core.batching import GapWatch, Remedy
from streams.shard.shard import Shard
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.worker import Worker

T = TypeVar("T")
OUTBOX_PAGE = 1_000
REOPEN_CODES = frozenset({"disk_full", "database_failed", "database_closed"})  # of streams/shard/task.py


@dataclass(slots=True)
class Done(Generic[T]):
    """A future that is done."""

    value: T | None
    error: Exception | None = None

    def result(self, _: float | None = None) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Task:
    """A shard in the hands of a worker: steps sequentially, the way of its records in and of its messages out."""

    def __init__(self, worker: "Worker", shard: Shard, positions: Mapping[str, int]) -> None:
        self.worker, self.shard, self.number = worker, shard, shard.number
        self.thread = f"shard {shard.number}"
        self.admitted = self.closed = False
        self.positions = dict(positions)  # of the consumer
        self.sent = self.acknowledged = -1
        self.gaps = GapWatch()
        self.broken = False  # its database must be opened again before the next step

    def _run(self, step: Callable[[Shard], T]) -> T:
        """As streams/shard/task.py: after a write that failed the directory is opened again before the next step."""
        try:
            if self.broken:
                self.shard.recover()
                self.broken = False
            return step(self.shard)
        except Unavailable as error:
            self.broken = self.broken or error.code in REOPEN_CODES
            raise

    def admit(self) -> None:
        self.admitted = True

    def submit(self, step: Callable[[Shard], T], /) -> Done[T]:
        """A step between two batches; others may go first."""
        world = self.worker.world
        if not world.calm:
            world.point("a step of a shard")
        if self.closed:
            raise Unavailable("shard_closed", "given away")
        if world.is_busy(self.worker, self.thread):
            return Done(None, Unavailable("shard_busy", "a batch runs"))
        try:
            return Done(self._run(step))
        except Exception as error:
            return Done(None, error)

    # --- records in -----------------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        """A batch of one topic; some of it may have come before."""
        world = self.worker.world
        new = [topic for topic, at in self.positions.items() if at < world.topics[topic, self.number].end]
        if not self.admitted or self.closed or not new:
            return
        topic = world.random.choice(new)
        log, at = world.topics[topic, self.number], self.positions[topic]
        if world.random.random() < 0.15:
            at = max(log.start, at - world.random.randrange(1, 4))
        self.apply(topic, at, min(log.end, at + world.random.randrange(1, 5)))

    def consume_all(self) -> None:
        """Everything that is there."""
        for topic in SHARD_TOPICS:
            if self.admitted and not self.closed:
                self.apply(topic, self.positions[topic], self.worker.world.topics[topic, self.number].end)

    def apply(self, topic: str, start: int, end: int) -> None:
        """Records from start to before end."""
        log = self.worker.world.topics[topic, self.number]
        if start >= end:
            return
        self.worker.world.say("%s applies %s/%d %d to %d", self.worker.name, topic, self.number, start, end - 1)
        self.positions[topic] = end
        try:
            self._apply(log.records[start:end])
            self.gaps.passed((topic, self.number))
        except Unavailable as error:
            if error.code != "encoder_missing":
                raise
            # A version whose `building` was written after all: the batch waits until the reconciler has seen it.
            self.positions[topic] = start
            return
        except Incompatible as error:
            if error.code != "offset_gap" or self.gaps.choose_remedy((topic, self.number), [start]) is not Remedy.SEEK:
                raise Violation("records follow without a hole", str(error)) from error
            self.positions[topic] = self.shard.next_offsets[topic]
        self.worker.world.committed[topic, self.number] = end
        if self.worker.world.random.random() < 0.8:
            self.send()

    def _apply(self, records: list[SourceRecord]) -> None:
        """Tried again until the disk takes it."""
        while True:
            try:
                self._run(lambda shard: shard.apply(records))
                return
            except Unavailable as error:
                if error.code not in REOPEN_CODES:
                    raise
            self.worker.world.point("a batch is tried again")

    # --- messages out ---------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """The new entries of the outbox, in order."""
        if self.shard.state.next_outbox == self.sent + 1:
            return
        world = self.worker.world
        for entry in self.shard.pending_outbox(OUTBOX_PAGE, after=self.sent):
            world.point("sending")
            assert entry.value is not None or entry.topic != INDEX_DELTAS
            if entry.topic == INDEX_DELTAS:
                world.send_delta(self.number, entry.value or b"")
            else:
                world.send_dead_letter(entry.headers)
            self.sent = entry.sequence

    def tick(self) -> None:
        """Writes a due watermark and removes acknowledged entries."""
        if not self.closed:
            with contextlib.suppress(Unavailable):  # the next tick does it
                self._run(lambda _: self._tick())

    def _tick(self) -> None:
        if self.shard.write_due() or self.worker.world.calm or self.worker.world.random.random() < 0.5:
            self.send()
        acknowledged = self.sent if self.worker.world.calm else self.sent - self.worker.world.random.randrange(6)
        if acknowledged > self.acknowledged:
            self.acknowledged = acknowledged
            self.shard.confirm_outbox(acknowledged)

    def close(self) -> None:
        """Given away."""
        if not self.closed:
            self.closed = True
            self.shard.close()
