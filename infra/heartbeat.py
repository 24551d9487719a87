"""The sign of life of a process: a file that it touches while its event loop runs.

Here: touching the file, and watching it. Not here: what is done about a silent process (infra/supervisor.py).
Invariant: only changes of the file count, by the watcher's own monotonic clock. So neither a wall clock that jumps nor the file of an earlier process
makes a process look dead, and a watcher that was itself stopped for a while begins to wait again.
"""

import asyncio
import contextlib
import time
from pathlib import Path

HEARTBEAT_NAME = "heartbeat"  # in a process's data directory
BEAT_EVERY_S = 1.0
_WATCHER_LATE_S = 5.0


async def beat(path: Path, every_s: float = BEAT_EVERY_S) -> None:
    """Touches the file every `every_s` until it is cancelled. If the disk is full or broken, it tries again at the next beat."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.touch)
        await asyncio.sleep(every_s)


class HeartbeatWatch:
    """Watches one file from now on: it has to change within `start_s_max`, and from then on at least every `silent_s_max`.

    A start has a bound of its own because it may compile every kernel, without an event loop and beside whatever else the machine does.
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
