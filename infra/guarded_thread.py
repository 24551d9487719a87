"""Long-lived threads whose faults are seen and mended.

A fault is an error that the thread does not expect. It is logged with its traceback and counted (`aif_thread_faults_total`). Then the thread begins again
after a pause. That is right, because every thread of ours continues from stored state (offsets, the control log). A thread whose fault may have left something
half done gets `on_fault`, which ends the process instead. `watch_threads` logs and counts the faults of every other thread of a process.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from infra.metrics import Metrics

_RESTART_S_MIN, _RESTART_S_MAX = 0.2, 30.0
_CURED_S = 60.0  # a thread that ran this long since its last fault begins again with the shortest pause
_log = logging.getLogger("aif.threads")


class ThreadReport(NamedTuple):
    """One guarded thread: its name, whether it runs, its faults since the start, and the last of them ("" = none)."""

    name: str
    alive: bool
    faults: int
    last_fault: str


class GuardedThread(threading.Thread):
    """Runs `work` until it returns, and again after a pause when it raises, until `stopping` is set. A thread that has ended drops `work`, as
    `threading.Thread` drops its target: most are methods of the thread's owner, and the two would hold each other.

    `on_fault(error)`: called instead of the restart, for a thread that must not begin again; it ends the process.
    """

    def __init__(
        self, work: Callable[[], None], name: str, stopping: threading.Event, on_fault: Callable[[BaseException], None] | None = None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._stopping, self._on_fault = work, stopping, on_fault
        self._faults, self._last_fault, self._is_done = 0, "", False
        _THREADS.add(self)

    def run(self) -> None:
        """Runs the work, as often as it takes."""
        try:
            self._run_guarded()
        finally:
            del self._work, self._on_fault

    def _run_guarded(self) -> None:
        pause_s = _RESTART_S_MIN
        while not self._is_done:
            began_s = time.monotonic()
            try:
                self._work()
                self._is_done = True
            except BaseException as error:
                if self._on_fault is not None:
                    note_fault(self.name, error, "the process ends")
                    self._on_fault(error)
                    return
                pause_s = _RESTART_S_MIN if time.monotonic() - began_s > _CURED_S else min(2 * pause_s, _RESTART_S_MAX)
                self._faults, self._last_fault = self._faults + 1, repr(error)
                note_fault(self.name, error, f"it begins again in {pause_s:g} s")
                self._is_done = self._stopping.wait(pause_s)

    def stop(self, join_s: float | None = None) -> None:
        """Sets `stopping` and waits for the end, at most `join_s` (None: as long as it takes). Before its start there is nothing to wait for."""
        self._stopping.set()
        if self.is_alive():
            self.join(join_s)

    def report(self) -> ThreadReport | None:
        """None before its start and after its regular end."""
        if self.ident is None or self._is_done or self._stopping.is_set():
            return None
        return ThreadReport(self.name, self.is_alive(), self._faults, self._last_fault)


class OneThread:
    """Base of a class with one guarded thread, in which `_run` works until `stopping` is set."""

    close_s_max: float | None = None  # that `close` waits for the end; None: as long as it takes

    def __init__(self, name: str) -> None:
        self.stopping = threading.Event()
        self._thread = GuardedThread(self._run, name, self.stopping)

    def _run(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._thread.stop(self.close_s_max)


_THREADS: "weakref.WeakSet[GuardedThread]" = weakref.WeakSet()
_WATCHING: "weakref.WeakSet[Metrics]" = weakref.WeakSet()


def report_threads() -> list[ThreadReport]:
    """Every guarded thread of this process that should be running, by name."""
    return sorted(report for thread in list(_THREADS) if (report := thread.report()) is not None)


def count_faults(metrics: "Metrics") -> None:
    """From now on, faults of this process's threads count in these metrics."""
    metrics.counter("thread_faults")
    _WATCHING.add(metrics)


def watch_threads() -> None:
    """Logs and counts the error that ends any other thread of this process, which would otherwise leave only lines without a form on standard error."""
    threading.excepthook = _note_end


def note_fault(name: str, error: BaseException, what_follows: str) -> None:
    """Log and count an error that no part of a thread expected."""
    _log.error("thread_failed thread=%s: %r; %s", name, error, what_follows, exc_info=error)
    for metrics in list(_WATCHING):
        metrics.counter("thread_faults").labels(name.rstrip("0123456789").rstrip("-")).inc()


def _note_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not issubclass(ended.exc_type, SystemExit):
        note_fault(ended.thread.name if ended.thread else "unknown", ended.exc_value, "it has ended")
