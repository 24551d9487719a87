"""The serial task of a shard: every batch and every other step of the shard runs on one thread, sequentially.

Invariants: nothing runs in parallel with a micro-batch (with two interleaving writers, 1,068 of 4,000 simulated histories had stale rows). No batch is applied
before the shard is admitted, that is, before it has the versions of the control log with their encoders (protocol A7).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from infra.clock import Clock
from infra.disk_faults import REOPEN_CODES, DiskFaults
from infra.failpoints import failpoint
from infra.kafka.reader import SourceRecord
from infra.rocks import Database
from schemas.errors import AifError, Corrupted, Unavailable
from streams.shard.batch_result import BatchResult
from streams.shard.outbox import OutboxEntry
from streams.shard.outbox_sender import OutboxSender
from streams.shard.shard import Shard
from streams.shard.start import mark_damaged

T = TypeVar("T")


class Stepped(Protocol):
    """The state of a serial task: a shard, or the counters of streams/statistics. About 20 times a second `write_due` puts due messages into the outbox."""

    @property
    def number(self) -> int: ...
    @property
    def database(self) -> Database: ...
    def next_offset(self, topic: str, partition: int) -> int: ...
    def apply(self, records: Sequence[SourceRecord], on_written: Callable[[Sequence[OutboxEntry]], None] = ...) -> BatchResult: ...
    def write_due(self) -> list[OutboxEntry]: ...
    def pending_outbox(self, entries_max: int, after: int = -1) -> list[OutboxEntry]: ...
    def confirm_outbox(self, up_to_sequence: int) -> None: ...
    def recover(self) -> None: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=Stepped)

_RETRY_S_FIRST, _RETRY_S_MAX = 0.05, 2.0
_OUTBOX_PAGE = 1_000
_REOPEN_EVERY_S = 0.5
_log = logging.getLogger("aif.streams.shard")


def shard_closed(number: int) -> Unavailable:
    """The error for a batch or step that comes too late. Its records belong to the next owner, which reads them again."""
    return Unavailable("shard_closed", f"shard {number} is being given to another owner")


class SerialTask(Generic[S]):
    """Owns a shard, its thread and its sender. Thread-safe.

    on_result(number, result, seconds)  after every batch
    on_fault(error)                     a tick failed as every later one would, and no caller waits for it: the process must end
    on_disk(number, error)              twice a minute while its disk takes no writes, and with None when it does again
    """

    def __init__(
        self,
        shard: S,
        clock: Clock,
        make_sender: "Callable[[SerialTask[S]], OutboxSender | None]",
        on_result: Callable[[int, BatchResult, float], None] = lambda *_: None,
        on_fault: Callable[[BaseException], None] = lambda _: None,
        on_disk: Callable[[int, AifError | None], None] = lambda *_: None,
    ) -> None:
        self.number = shard.number
        self._shard, self._clock, self._on_result, self._on_fault = shard, clock, on_result, on_fault
        self._thread: threading.Thread | None = None  # the executor's only one
        self._executor = ThreadPoolExecutor(1, f"shard-{shard.number}", self._note_thread)
        self._admission: Future[None] = Future()
        self._closing = threading.Event()
        self.suspended = False
        self._sent = -1  # highest outbox sequence handed to the sender
        self._confirmed = self._confirming = -1
        self._ticking = False
        self._broken: Unavailable | None = None  # the database must be opened again before the next step
        self._reopened_at = float("-inf")
        self._faults = DiskFaults(f"shard {self.number}", clock.monotonic, lambda error: on_disk(shard.number, error))
        self._sender = make_sender(self)
        self.submit(self._send_all)

    # --- batches and steps -------------------------------------------------------------------------------------------

    def submit(self, step: Callable[[S], T]) -> "Future[T]":
        """Runs `step(shard)` between two micro-batches. Raises Unavailable (`shard_closed`)."""
        try:
            return self._executor.submit(self._run, step)
        except RuntimeError as error:
            raise shard_closed(self.number) from error

    def _run(self, step: Callable[[S], T]) -> T:
        """After a full disk every write fails until the database is opened again, which itself needs room; so that is tried before each step."""
        if self._broken is not None:
            if self._clock.monotonic() < self._reopened_at + _REOPEN_EVERY_S:
                raise self._broken
            self._reopened_at = self._clock.monotonic()
        try:
            if self._broken is not None:
                self._shard.recover()
                self._broken = None
            done = step(self._shard)
        except Unavailable as error:
            if error.code in REOPEN_CODES:
                self._broken = error
                self._faults.note_fault(error)
            raise
        except Corrupted as error:
            mark_damaged(self._shard.database.path, error)
            raise
        self._faults.note_success()
        return done

    async def apply(self, records: Sequence[SourceRecord]) -> BatchResult:
        """Applies a batch once the shard is admitted, and returns when it is written. While something is unavailable, it tries again with growing pauses.

        Raises Unavailable (`shard_closed`), Incompatible (`offset_gap`); anything else is a fault of the process.
        """
        if not self._admission.done():
            await asyncio.wait({asyncio.wrap_future(self._admission)})
        pause_s = _RETRY_S_FIRST
        while not (self.suspended or self._closing.is_set()):
            done = asyncio.wrap_future(self.submit(lambda shard: self._apply(shard, records)))
            await asyncio.wait({done})
            if done.cancelled():  # by `close`. The agent must not be cancelled: Faust would take that for its end
                break
            try:
                return done.result()
            except Unavailable as error:
                if error.code == "shard_closed":
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
        raise shard_closed(self.number)

    def _apply(self, shard: S, records: Sequence[SourceRecord]) -> BatchResult:
        began = self._clock.monotonic()
        try:
            result = shard.apply(records, lambda entries: self._send_new(shard, entries))
        except BaseException as error:
            mark_damaged(shard.database.path, error)
            self._send_all(shard)  # some of its WriteBatches may be written
            raise
        if not result.outbox:
            self._send_all(shard)  # entries of an earlier owner
        self._on_result(self.number, result, self._clock.monotonic() - began)
        return result

    def admit(self) -> None:
        """Lets batches in, because the shard has every version that it must write rows for."""
        with contextlib.suppress(Exception):
            self._admission.set_result(None)

    @property
    def admitted(self) -> bool:
        """Whether batches are let in."""
        return self._admission.done()

    @property
    def waits_for_disk(self) -> bool:
        """Whether its disk takes no writes, full or broken; each step tries whether it does again."""
        return self._broken is not None or self._faults.last is not None

    # --- outbox ------------------------------------------------------------------------------------------------------

    def _send_new(self, shard: S, entries: Sequence[OutboxEntry]) -> None:
        """Hand the sender new entries. They need not be read from the outbox if everything before them was handed over."""
        if self._sender is None or not entries or entries[0].sequence != self._sent + 1:
            self._send_all(shard)
            return
        for at in range(0, len(entries), _OUTBOX_PAGE):
            if self._closing.is_set():
                return
            self._sender.send(entries[at : at + _OUTBOX_PAGE])
            failpoint("after-outbox-send")
            self._sent = entries[min(len(entries), at + _OUTBOX_PAGE) - 1].sequence

    def _send_all(self, shard: S) -> None:
        """Hands the sender everything in the outbox that it has not got, also entries of an earlier owner."""
        while self._sender is not None and not self._closing.is_set():
            entries = shard.pending_outbox(_OUTBOX_PAGE, after=self._sent)
            if not entries:
                return
            self._sender.send(entries)
            failpoint("after-outbox-send")
            self._sent = entries[-1].sequence

    def confirmed(self, sequence: int) -> None:
        """Called by the sender: the broker has everything up to `sequence`. It is removed from the shard at the next tick."""
        self._confirmed = sequence

    def tick(self) -> None:
        """Called by the sender about 20 times a second: writes a watermark if one is due, and removes confirmed entries. Raises AssertionError if the shard's
        thread has ended, because every later step would wait without end; the sender's thread passes it on, and the process ends."""
        has_ended = self._thread is not None and not self._thread.is_alive()
        assert not has_ended or self._closing.is_set(), f"the thread of shard {self.number} has ended"
        if self._ticking or self._closing.is_set():
            return
        self._ticking = True
        with contextlib.suppress(Unavailable):
            self.submit(self._tick).add_done_callback(self._end_tick)

    def _note_thread(self) -> None:
        self._thread = threading.current_thread()

    def _tick(self, shard: S) -> None:
        self._remove_confirmed(shard)
        if entries := shard.write_due():
            self._send_new(shard, entries)

    def _end_tick(self, ended: Future[None]) -> None:
        """Not at the end of `_tick`, which does not begin while the database cannot be opened again."""
        self._ticking = False
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not isinstance(error, Unavailable):
            self._on_fault(error)

    def _remove_confirmed(self, shard: S) -> None:
        if (confirmed := self._confirmed) > self._confirming:
            failpoint("before-outbox-confirm")
            shard.confirm_outbox(confirmed)
            self._confirming = confirmed

    # --- end ---------------------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Turns batches away until `resume`; one that is running is finished, and other steps continue. One that waits for admission cannot be turned away
        without the end of the shard."""
        if not self.admitted:
            self.begin_close()
        else:
            self.suspended = True

    def resume(self) -> None:
        """Lets batches in again."""
        self.suspended = False

    def begin_close(self) -> None:
        """Turns batches away from now on; one that is running is finished."""
        self._closing.set()
        self.admit()
        if self._sender is not None:
            self._sender.end_sending()

    def close(self) -> None:
        """Ends the thread after the running step, gives the outbox a few seconds, closes the directory. Blocks. Closing twice does nothing."""
        self.begin_close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        if self._sender is not None:
            self._sender.close()
            self._sender = None
            with contextlib.suppress(AifError):
                self._remove_confirmed(self._shard)
        try:
            self._shard.close()
        except Corrupted as error:  # a merge of table files found it: every write is kept, and the next start rebuilds
            mark_damaged(self._shard.database.path, error)
            _log.error("shard %d is damaged (%s)", self.number, error)


class ShardTask(SerialTask[Shard]):
    """The task of a shard."""
