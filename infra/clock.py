"""Time as a value that is handed in: what the clock of a process must offer, and the real one.

`core/` folders never see a clock; they take `now_ms`.
"""

import time
from typing import Protocol

DAY_MS = 86_400_000


class Clock(Protocol):
    """Wall time for stamps that people and other machines read; monotonic time for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC. May jump; never subtract two of them to get a duration."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, never going back."""


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, never going back."""
        return time.monotonic()
