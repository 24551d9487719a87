"""The engine's helpers: threads that compute for the engine's own thread while it computes too.

    run      one request, split into shares
    beside   whole pieces of work, while the caller does others: parts of a request use one thread, and the other cores are free meanwhile

A helper decides nothing and owns nothing. At the first shared request, each helper and the calling thread are bound to a core of their own. Unbound,
two may share one core: 2.7 ms became 5.8. Threads claim shares one by one: a helper whose core is busy takes fewer of them, and one that never woke up is not
waited for. Shares run in compiled code without the GIL, which a helper needs only to claim one.
"""

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

THREADS_DEFAULT_MAX = 2
SHARES_PER_THREAD = 2  # more shares are more even, but each one builds tables of its own
ROWS_PER_SHARE_MIN = 512  # fewer rows are computed faster than they are handed over

Part = Callable[[int, int, int], None]  # (first row, row after the last, thread)


class Beside:
    """Calls for the helpers, who begin them in the order in which they were added. Used by one thread, the caller; `on_done` is called in any."""

    def __init__(self, pool: ThreadPoolExecutor | None, helpers: int, on_done: Callable[[], None]) -> None:
        self._pool, self._helpers, self._on_done = pool, helpers, on_done
        self._added: deque[tuple[Future[object], Callable[[], object]]] = deque()
        self._begun: list[Future[object]] = []

    def add(self, call: Callable[[], object]) -> None:
        """One more, which keeps its errors to itself: after one that raises here, others may not be made. A helper calls `on_done` after it."""
        future = self._pool.submit(call) if self._pool else Future[object]()
        self._added.append((future, call))
        future.add_done_callback(lambda _: self._on_done())

    @property
    def unfinished(self) -> int:
        """How many calls are not done."""
        return sum(not future.done() for future in (*self._begun, *(future for future, _ in self._added)))

    @property
    def needs_caller(self) -> bool:
        """Whether more calls wait than there are free helpers."""
        return self.unfinished > self._helpers

    def help(self) -> bool:
        """The caller runs the next call that no thread has begun; False if all have begun."""
        while self._added:
            future, call = self._added.popleft()
            if future.cancel():
                call()
                return True
            self._begun.append(future)
        return False

    def finish(self) -> None:
        """Runs the calls that no thread has begun, and waits for the others. Raises the first error of a call."""
        while self.help():
            pass
        _wait_for(self._begun)


class Workers:
    """`threads` in all, the caller among them; with `binds` each stays on a core of its own, the caller from its first shared request on."""

    def __init__(self, threads: int, binds: bool = True) -> None:
        self.threads, self._binds = max(1, threads), binds
        self._cores, self._number = sorted(os.sched_getaffinity(0)), itertools.count(1)
        self._pool = ThreadPoolExecutor(self.threads - 1, "engine-helper", self._bind_helper) if self.threads > 1 else None
        self._busy, self._bound = threading.Lock(), threading.local()

    def run(self, part: Part, rows: int) -> None:
        """Calls part(first, end, thread) for shares that cover [0, rows), in parallel. Raises the first error of a call.

        If there is little to do, or another engine computes, it is one share. `thread` is below `threads`; two calls with the same thread never overlap.
        """
        shares = min(self.threads * SHARES_PER_THREAD, rows // ROWS_PER_SHARE_MIN)
        if self._pool is None or shares < 2 or not self._busy.acquire(blocking=False):
            part(0, rows, 0)
            return
        self._bind_caller()
        ends = [rows * share // shares for share in range(shares + 1)]
        unclaimed = iter(list(itertools.pairwise(ends)))  # its `next` is one step of the interpreter

        def claim_and_compute(thread: int) -> None:
            for first, end in unclaimed:
                part(first, end, thread)

        helpers = [self._pool.submit(claim_and_compute, thread) for thread in range(1, min(shares, self.threads))]
        try:
            claim_and_compute(0)
        finally:
            try:
                _wait_for([helper for helper in helpers if not helper.cancel()])
            finally:
                self._busy.release()

    @contextlib.contextmanager
    def beside(self, on_done: Callable[[], None] = lambda: None) -> Iterator[Beside]:
        """While the body runs, helpers run the calls that it adds. At its end the caller runs those that were not begun. After it all are done."""
        self._bind_caller()
        beside = Beside(self._pool, self.threads - 1, on_done)
        try:
            yield beside
        finally:
            beside.finish()

    def _bind_caller(self) -> None:
        if self._binds and not getattr(self._bound, "core", False):
            bind_to_core(self._cores[0])
            self._bound.core = True

    def _bind_helper(self) -> None:
        if self._binds:
            bind_to_core(self._cores[next(self._number) % len(self._cores)])


def _wait_for(begun: Sequence[Future[Any]]) -> None:
    for error in [future.exception() for future in begun]:  # which waits for each
        if error is not None:
            raise error


def bind_to_core(core: int) -> None:
    """Binds the calling thread to a core. If the system does not allow it, the thread stays unbound."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})


def default_threads() -> int:
    """As many as there are cores, up to a bound."""
    return min(THREADS_DEFAULT_MAX, len(os.sched_getaffinity(0)))


WORKERS = Workers(default_threads())
