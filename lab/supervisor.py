"""Starts a child again when it ends: what a service manager does in production, for the demo and for a laptop.

A worker or server of ours ends its process on any unknown fault, because starting again from the data on disk is always right.
A child that gives no sign of life for `silent_s_max`, or none within `START_S_MAX` (a frozen process, a hung disk), is killed and started again. After the
session timeout others have taken over its shards, and it must not continue as if it owned them.
A child that ends `RESTARTS_MAX` times within `WINDOW_S`, or cannot be started again, is given up: then the fault is not one that a restart cures.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from infra.guarded_thread import GuardedThread
from infra.processes import Child, stop_all
from schemas.errors import AifError, Unavailable

RESTARTS_MAX = 5
WINDOW_S = 60.0
SILENT_S_MAX = 60.0  # of a child that has given one: its loop turns, also while shards are restored
# Until the first: kernels that no process has compiled yet take 11 s of a core, which a busy machine may not have in a minute.
START_S_MAX = 300.0
_LOOK_EVERY_S = 0.1
_WATCHER_LATE_S = 5.0


class HeartbeatWatch:
    """Watches one file from now on: it has to change within `start_s_max`, and from then on at least every `silent_s_max`. Only changes of the file count, by
    the watcher's own monotonic clock. So neither a jump of the wall clock nor an earlier process's file makes a process look dead.

    A start has a bound of its own because it may compile every kernel, without an event loop and next to other load of the machine.
    """

    def __init__(self, path: Path, silent_s_max: float, start_s_max: float) -> None:
        self._path, self._silent_s_max, self._start_s_max = path, silent_s_max, start_s_max
        self._seen = self._changed_ns()
        self._started = False
        self._seen_at = self._looked_at = time.monotonic()

    @property
    def bound_s(self) -> float:
        """How many seconds of silence are too many now."""
        return self._silent_s_max if self._started else self._start_s_max

    def is_silent(self) -> bool:
        """Whether the file has not changed for longer than it may. To be asked several times a second."""
        now, changed = time.monotonic(), self._changed_ns()
        self._started |= changed != self._seen
        if changed != self._seen or now - self._looked_at > _WATCHER_LATE_S:
            self._seen, self._seen_at = changed, now
        self._looked_at = now
        return now - self._seen_at > self.bound_s

    def _changed_ns(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None


class Supervised:
    """One child, and the thread that watches it. `say` gets a line at each restart; `heartbeat`: the file that the child touches, None = it touches none."""

    def __init__(
        self,
        start: Callable[[], Child],
        say: Callable[[str], None] = lambda _: None,
        heartbeat: Path | None = None,
        silent_s_max: float = SILENT_S_MAX,
    ) -> None:
        self._start, self._say = start, say
        self._heartbeat, self._silent_s_max = heartbeat, silent_s_max
        self.child = start()
        self._watched = self._new_watch()
        self.failed: Unavailable | None = None
        self._ended_at: deque[float] = deque(maxlen=RESTARTS_MAX)
        self._stopping = threading.Event()
        self._thread = GuardedThread(self._watch, f"watch-{self.child.name}", self._stopping)
        self._thread.start()

    def check(self) -> None:
        """Raises Unavailable (`child_gave_up`) with the reason if it was given up: it kept ending, or it could not be started again."""
        if self.failed is not None:
            raise self.failed

    def release(self) -> Child:
        """Stops watching. Returns the child, which runs on."""
        self._stopping.set()
        self._thread.join()
        return self.child

    def stop(self) -> None:
        """Stops watching, then the child."""
        stop_all([self.release()])

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            if self.child.alive() and self._watched is not None and self._watched.is_silent():
                self._say(f"{self.child.name} gave no sign of life for {self._watched.bound_s:g} s and is ended")
                self.child.kill()
            if not self.child.alive():
                self.child.kill()
                self._ended_at.append(time.monotonic())
                if len(self._ended_at) == RESTARTS_MAX and self._ended_at[-1] - self._ended_at[0] < WINDOW_S:
                    often = f"{self.child.name} ended {RESTARTS_MAX} times within {WINDOW_S:g} s, last with exit code {self.child.process.returncode}"
                    self.failed = Unavailable("child_gave_up", f"{often}; log {self.child.log_path}:\n{self.child.log_tail()}")
                    return
                self._say(f"{self.child.name} ended with exit code {self.child.process.returncode} and is started again")
                if not self._start_again():
                    return

    def _start_again(self) -> bool:
        try:
            self.child = self._start()
        except (AifError, OSError) as error:
            self.failed = Unavailable("child_gave_up", f"{self.child.name} ended and cannot be started again: {error}")
            return False
        self._watched = self._new_watch()
        return True

    def _new_watch(self) -> HeartbeatWatch | None:
        return None if self._heartbeat is None else HeartbeatWatch(self._heartbeat, self._silent_s_max, START_S_MAX)
