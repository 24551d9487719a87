"""The engine's helpers: threads that compute a share of a request while the engine's own thread computes the rest, and do nothing else.

Here: `Workers`, one set per process, because cores are. Not here: what is computed. A helper decides nothing and owns nothing.
Each helper, and the thread that calls, is bound to a core of its own at the first shared request: unbound, both may share one core (measured: 2.7 ms
became 5.8). Everything runs in compiled code without the GIL; a helper that is handed work needs the GIL only to wake up.
"""

import contextlib
import os
import threading
from collections.abc import Callable

THREADS_DEFAULT_MAX = 2  # on a machine with more cores, an operator may give it more
ROWS_PER_SHARE_MIN = 512  # less is computed faster than handed over

Part = Callable[[int, int, int], None]  # (first row, row after the last, thread)


class _Helper:
    """One thread, woken by a lock, answering by a lock."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._work: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="engine-helper", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Begins `work`."""
        self._work, self._error = work, None
        self._wanted.release()

    def wait(self) -> None:
        """Ends when the work has; its error, if it had one, is raised here."""
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        bind_to_core(self._core)
        while True:
            self._wanted.acquire()
            try:
                self._work()
            except BaseException as error:  # it belongs to the request
                self._error = error
            self._done.release()


class Workers:
    """`threads` in all, the caller among them."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._cores = sorted(os.sched_getaffinity(0))
        self._helpers: list[_Helper] = []
        self._busy = threading.Lock()
        self._bound = threading.local()

    def run(self, part: Part, rows: int) -> None:
        """Calls part(first, end, thread) over [0, rows), in shares side by side; in one piece if they are small or another engine computes."""
        shares = min(self.threads, rows // ROWS_PER_SHARE_MIN)
        if shares < 2 or not self._busy.acquire(blocking=False):
            part(0, rows, 0)
            return
        try:
            self._run_shares(part, rows, shares)
        finally:
            self._busy.release()

    def _run_shares(self, part: Part, rows: int, shares: int) -> None:
        self._open(shares - 1)
        bounds = [rows * share // shares for share in range(shares + 1)]
        for thread, helper in enumerate(self._helpers[: shares - 1], 1):
            helper.start(lambda thread=thread: part(bounds[thread], bounds[thread + 1], thread))  # type: ignore[misc]
        try:
            part(bounds[0], bounds[1], 0)
        finally:
            for helper in self._helpers[: shares - 1]:
                helper.wait()

    def _open(self, helpers: int) -> None:
        if not getattr(self._bound, "core", False):
            bind_to_core(self._cores[0])
            self._bound.core = True
        while len(self._helpers) < helpers:
            self._helpers.append(_Helper(self._cores[(len(self._helpers) + 1) % len(self._cores)]))


def bind_to_core(core: int) -> None:
    """Binds the calling thread; where the system does not allow it, the thread stays free."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})


def default_threads() -> int:
    """As many as there are cores, up to a bound."""
    return min(THREADS_DEFAULT_MAX, len(os.sched_getaffinity(0)))


WORKERS = Workers(default_threads())
