"""Builder processes as the worker sees them: jobs in, futures out.

Invariants: when a process dies, its job fails with Unavailable (`builder_died`), and another process is started, at the latest for the next job; the other
processes continue. No child outlives this process (infra/processes.py). Seals and snapshots come before builds, so that a revision of the live version never
waits for the build of a new one (B4).
A pool may end a process that has had no job for a while: one that has loaded torch holds some hundred megabytes that nothing else needs.
"""

import contextlib
import itertools
import queue
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from infra.closeable import Closeable
from infra.guarded_thread import GuardedThread
from infra.processes import Child
from schemas.errors import AifError, Unavailable
from streams.builders.jobs import BuildJob, Job, Result, describe_job, machine_error
from streams.builders.template import StartBuilder

_POLL_S = 0.1
_SEALS_FIRST, _BUILDS_AFTER, _END = 0, 1, 2  # snapshots are as short as seals


@dataclass(eq=False)
class Ticket:
    """A job that was handed in. `progress_at` (monotonic) is None until a process has taken it."""

    job: Job
    future: "Future[Result]" = field(default_factory=Future)
    rows: int = 0
    progress_at: float | None = None
    abandoned: bool = False

    def abandon(self) -> None:
        """Gives the job up: a process that works on it is killed, and another one started."""
        self.abandoned = True
        self.future.cancel()


class BuilderPool(Closeable):
    """A number of builder processes.

    warm      they start at once; else with their first job
    name      the prefix of their names
    linger_s  a process that has had no job for so long is ended; None: never
    """

    def __init__(
        self,
        start: StartBuilder,
        log_directory: Path,
        processes: int = 1,
        *,
        warm: bool = True,
        name: str = "builder",
        linger_s: float | None = None,
    ) -> None:
        self._start, self._log_directory, self._warm, self.name, self._linger_s = start, log_directory, warm, name, linger_s
        self._queue: queue.PriorityQueue[tuple[int, int, Ticket | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._builders = [_Builder(self, n) for n in range(processes)]

    def submit(self, job: Job) -> Ticket:
        """Queues a job. The future ends with its result, or one of our errors."""
        ticket = Ticket(job)
        self._queue.put((_BUILDS_AFTER if isinstance(job, BuildJob) else _SEALS_FIRST, next(self._numbers), ticket))
        return ticket

    def close(self) -> None:
        """Kills the processes; jobs that are not done fail with Unavailable (`builders_closed`)."""
        self._closing.set()
        for _ in self._builders:
            self._queue.put((_END, next(self._numbers), None))
        for builder in self._builders:
            builder.join()
        while not self._queue.empty():
            _, _, ticket = self._queue.get()
            if ticket is not None and ticket.future.set_running_or_notify_cancel():
                ticket.future.set_exception(_closed())

    @property
    def pids(self) -> list[int]:
        """Process ids of the builders that run."""
        return [builder.child.pid for builder in self._builders if builder.child is not None]


class _Builder(GuardedThread):
    """One builder process, and the thread that gives it jobs."""

    def __init__(self, pool: BuilderPool, number: int) -> None:
        super().__init__(self._take_jobs, f"{pool.name}-{number}", pool._closing)
        self._pool = pool
        self.child: Child | None = None
        if pool._warm:
            self._open()
        self.start()

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            log_path = self._pool._log_directory / f"{self.name}.log"
            self.child = self._pool._start(self.name, log_path, theirs.fileno())

    def _open_for(self, job: Job) -> None:
        try:
            self._open()
        except OSError as error:
            raise machine_error(job, error) from error

    def _close(self) -> None:
        if self.child is not None:
            self._connection.close()
            self.child.kill()
            self.child = None

    def _take_jobs(self) -> None:
        while not self._pool._closing.is_set():
            try:
                _, _, ticket = self._pool._queue.get(timeout=None if self.child is None else self._pool._linger_s)
            except queue.Empty:
                self._close()
                continue
            if ticket is not None and ticket.future.set_running_or_notify_cancel():
                self._do(ticket)
        self._close()

    def _do(self, ticket: Ticket) -> None:
        ticket.progress_at = time.monotonic()
        try:
            if self.child is None:
                self._open_for(ticket.job)
            self._connection.send(ticket.job)
            answer = self._await(ticket)
        except (EOFError, OSError):
            tail = self.child.log_tail() if self.child is not None else ""
            self._restart()
            why = f"its log:\n{tail}" if tail else "it wrote no log: it was killed, perhaps for want of memory (see the kernel's log)"
            ticket.future.set_exception(Unavailable("builder_died", f"a builder ended during {describe_job(ticket.job)}; {why}"))
            return
        except AifError as error:  # no process could be started
            ticket.future.set_exception(error)
            return
        except BaseException as error:  # the thread begins again, and the job must not wait for it
            self._restart()
            ticket.future.set_exception(
                Unavailable("builder_failed", f"{describe_job(ticket.job)} could not be given to a builder: {error!r}")
            )
            raise
        if isinstance(answer, AifError):
            ticket.future.set_exception(answer)
        else:
            ticket.future.set_result(answer)

    def _await(self, ticket: Ticket) -> Result | AifError:
        while True:
            if self._pool._closing.is_set():
                return _closed()
            if ticket.abandoned:
                self._restart()
                return Unavailable("abandoned", f"{describe_job(ticket.job)} is not wanted any more")
            if not self._connection.poll(_POLL_S):
                continue
            message: int | Result | AifError = self._connection.recv()
            ticket.progress_at = time.monotonic()
            if not isinstance(message, int):
                return message
            ticket.rows = message

    def _restart(self) -> None:
        self._close()
        if not self._pool._closing.is_set():
            with contextlib.suppress(AifError, OSError):  # then the next job tries again
                self._open()


def _closed() -> Unavailable:
    return Unavailable("builders_closed", "the worker is stopping; the next owner of the shard does it")
