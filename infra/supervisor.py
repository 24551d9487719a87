"""Starts a child again when it ends by itself: what a service manager does in production, for the demo and for a laptop.

A worker or server of ours ends its process on anything it does not understand, because starting again from what is on disk is always right.
A child that ends `RESTARTS_MAX` times within `WINDOW_S` is given up: then the fault is not one that a restart cures.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from infra.processes import Child, stop_all
from schemas.errors import Unavailable

RESTARTS_MAX = 5
WINDOW_S = 60.0
_LOOK_EVERY_S = 0.1


class Supervised:
    """One child and the thread that watches it. `say` gets a line at each restart."""

    def __init__(self, start: Callable[[], Child], say: Callable[[str], None] = lambda _: None) -> None:
        self._start, self._say = start, say
        self.child = start()
        self.failed: Unavailable | None = None
        self._ended_at: deque[float] = deque(maxlen=RESTARTS_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{self.child.name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises Unavailable (`child_gave_up`) with the end of its log if it was given up."""
        if self.failed is not None:
            raise self.failed

    def stop(self) -> None:
        """Stops watching, then the child."""
        self._stopping.set()
        self._thread.join()
        stop_all([self.child])

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            if not self.child.alive():
                self.child.kill()
                self._ended_at.append(time.monotonic())
                if len(self._ended_at) == RESTARTS_MAX and self._ended_at[-1] - self._ended_at[0] < WINDOW_S:
                    self.failed = self._gave_up()
                    return
                self._say(f"{self.child.name} ended with exit code {self.child.process.returncode} and is started again")
                self.child = self._start()

    def _gave_up(self) -> Unavailable:
        name, code = self.child.name, self.child.process.returncode
        message = f"{name} ended {RESTARTS_MAX} times within {WINDOW_S:g} s, last with exit code {code}; log {self.child.log_path}:\n"
        return Unavailable("child_gave_up", message + self.child.log_tail())
