"""A sign of life: a file that a process touches while its loop turns, and whoever watches it.

Here: both sides. Not here: what is done about a silent process (infra/supervisor.py).
Invariant: only changes of the file count, by the watcher's own monotonic clock: neither a wall clock that jumps nor a file from an earlier life
makes a process look dead, and a watcher that was itself stopped for a while begins to wait anew.
"""

import asyncio
import contextlib
import time
from pathlib import Path

HEARTBEAT_NAME = "heartbeat"  # in a process's data directory
BEAT_EVERY_S = 1.0
_WATCHER_LATE_S = 5.0


async def beat(path: Path, every_s: float = BEAT_EVERY_S) -> None:
    """Touches the file for as long as this event loop turns; ends when it is cancelled. A disk that is full or broken is one beat less, not the last."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.touch)
        await asyncio.sleep(every_s)


class HeartbeatWatch:
    """Watches one file from now on. `silent_s_max` covers the start of the process too."""

    def __init__(self, path: Path, silent_s_max: float) -> None:
        self._path, self._silent_s_max = path, silent_s_max
        self._seen: int | None = None
        self._seen_at = self._looked_at = time.monotonic()

    def is_silent(self) -> bool:
        """Whether the file has not changed for too long. To be asked several times a second."""
        now, changed = time.monotonic(), self._changed_ns()
        if changed != self._seen or now - self._looked_at > _WATCHER_LATE_S:
            self._seen, self._seen_at = changed, now
        self._looked_at = now
        return now - self._seen_at > self._silent_s_max

    def _changed_ns(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
