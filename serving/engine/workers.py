"""The engine's helpers: threads that compute for the engine's own thread while it computes too.

    run      one request, split into shares
    beside   whole pieces of work, while the caller does others: parts of a request use one thread, and the other cores are free meanwhile

Here: `Workers`, one set per process, because the cores are shared by the process. Not here: what is computed. A helper decides nothing and owns nothing.
At the first shared request, each helper and the calling thread are bound to a core of their own: unbound, two may share one core (2.7 ms became 5.8).
Threads claim calls one by one: a helper whose core is busy takes fewer of them, and one that never woke up is not waited for. Shares run in compiled code
without the GIL, which a helper needs only to claim one.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

THREADS_DEFAULT_MAX = 2
SHARES_PER_THREAD = 2  # more shares are more even, but each one builds tables of its own
ROWS_PER_SHARE_MIN = 512  # fewer rows are computed faster than they are handed over

Part = Callable[[int, int, int], None]  # (first row, row after the last, thread)


class _Job:
    """Calls that nobody has claimed yet, and the number of running ones. A call gets the number of the thread that runs it."""

    def __init__(self, calls: Iterable[Callable[[int], object]] = ()) -> None:
        self._calls = deque(calls)
        self._lock = threading.Lock()
        self._computing = 0
        self._error: BaseException | None = None
        self._last_done = threading.Semaphore(0)
        self._awaited = False

    def add(self, call: Callable[[int], object]) -> None:
        """One more call."""
        with self._lock:
            self._calls.append(call)

    def has_more_than(self, threads: int) -> bool:
        """Whether more calls wait than so many threads could begin now, those that run already among them. Not after an error: then none begins."""
        with self._lock:
            return self._error is None and len(self._calls) > threads - self._computing

    def work(self, thread: int) -> None:
        """Runs calls until none is left."""
        while self.claim_and_call(thread):
            pass

    def finish(self) -> None:
        """Waits for calls that others have claimed. Raises the first error of a call."""
        with self._lock:
            self._awaited = self._computing > 0
        if self._awaited:
            self._last_done.acquire()
        if self._error is not None:
            raise self._error

    def claim_and_call(self, thread: int) -> bool:
        """Runs the next call; False if none is left."""
        with self._lock:
            if not self._calls or self._error is not None:
                return False
            call = self._calls.popleft()
            self._computing += 1
        try:
            call(thread)
        except BaseException as error:  # it belongs to the request
            self._error = error
        with self._lock:
            self._computing -= 1
            if self._awaited and self._computing == 0:
                self._last_done.release()
        return True


class _Helper:
    """One thread that works on the job it was woken for."""

    def __init__(self, thread: int, core: int | None) -> None:
        self._thread, self._core = thread, core
        self._wanted = threading.Semaphore(0)
        self._jobs: deque[_Job] = deque()
        threading.Thread(target=self._run, name=f"engine-helper-{thread}", daemon=True).start()

    def wake(self, job: _Job) -> None:
        """Lets the helper work on a job. A job that is already finished has no call left for it."""
        self._jobs.append(job)
        self._wanted.release()

    def _run(self) -> None:
        if self._core is not None:
            bind_to_core(self._core)
        while True:
            self._wanted.acquire()
            self._jobs.popleft().work(self._thread)


class Beside:
    """Calls for the helpers, who begin them in the order in which they were added. Used by one thread, the caller."""

    def __init__(self, job: _Job, helpers: Sequence[_Helper]) -> None:
        self._job, self._helpers = job, helpers

    def add(self, call: Callable[[], object]) -> None:
        """One more."""
        self._job.add(lambda thread: call())
        for helper in self._helpers:
            helper.wake(self._job)

    @property
    def needs_caller(self) -> bool:
        """Whether more calls wait than there are free helpers."""
        return self._job.has_more_than(len(self._helpers))

    def help(self) -> None:
        """The caller runs the next one, if there is one."""
        self._job.claim_and_call(0)


class Workers:
    """`threads` in all, the caller among them; with `binds` each stays on a core of its own, the caller from its first shared request on."""

    def __init__(self, threads: int, binds: bool = True) -> None:
        self.threads, self._binds = max(1, threads), binds
        self._cores = sorted(os.sched_getaffinity(0))
        self._helpers: list[_Helper] = []
        self._busy, self._opening = threading.Lock(), threading.Lock()
        self._bound = threading.local()

    def run(self, part: Part, rows: int) -> None:
        """Calls part(first, end, thread) for shares that cover [0, rows), at the same time; as one share if there is little to do or another engine computes.
        `thread` is below `threads`; no two calls with the same thread overlap."""
        shares = min(self.threads * SHARES_PER_THREAD, rows // ROWS_PER_SHARE_MIN)
        if self.threads < 2 or shares < 2 or not self._busy.acquire(blocking=False):
            part(0, rows, 0)
            return
        try:
            job = self._hand_over(
                [partial(part, rows * share // shares, rows * (share + 1) // shares) for share in range(shares)], shares - 1
            )
            job.work(0)
            job.finish()
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def beside(self) -> Iterator["Beside"]:
        """While the body runs, helpers run the calls that it adds. At its end the caller runs those that were not begun. After it all are done."""
        self._open()
        job = _Job()
        try:
            yield Beside(job, self._helpers)
        finally:
            job.work(0)
            job.finish()

    def _hand_over(self, calls: Sequence[Callable[[int], object]], helpers: int) -> _Job:
        """The job of these calls, with so many helpers woken for it."""
        job = _Job(calls)
        self._open()
        for helper in self._helpers[:helpers]:
            helper.wake(job)
        return job

    def _open(self) -> None:
        if self._binds and not getattr(self._bound, "core", False):
            bind_to_core(self._cores[0])
            self._bound.core = True
        with self._opening:
            while len(self._helpers) < self.threads - 1:
                thread = len(self._helpers) + 1
                self._helpers.append(_Helper(thread, self._cores[thread % len(self._cores)] if self._binds else None))


def bind_to_core(core: int) -> None:
    """Binds the calling thread to a core. If the system does not allow it, the thread stays unbound."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})


def default_threads() -> int:
    """As many as there are cores, up to a bound."""
    return min(THREADS_DEFAULT_MAX, len(os.sched_getaffinity(0)))


WORKERS = Workers(default_threads())
