"""The sign of life of a process: a file that it touches while its event loop runs. A service manager, or lab/supervisor.py, watches it."""

import asyncio
import contextlib
from pathlib import Path

HEARTBEAT_NAME = "heartbeat"  # in a process's data directory
BEAT_EVERY_S = 1.0


async def beat(path: Path, every_s: float = BEAT_EVERY_S) -> None:
    """Touches the file every `every_s` until it is cancelled. If the disk is full or broken, it tries again at the next beat."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.touch)
        await asyncio.sleep(every_s)
