"""This machine's clock against the broker's, which dates the records of item topics and reports."""

from collections.abc import Callable
from dataclasses import dataclass

AHEAD_S_MAX = 1.0  # a difference in either direction that is reported


@dataclass
class BrokerClock:
    """`wall_s`: this machine's clock, in seconds since 1970. `ahead_s`: seconds by which it is ahead at least, negative if it is behind, 0 if no difference
    shows; None before a comparison."""

    wall_s: Callable[[], float]
    ahead_s: float | None = None

    def note(self, sent_s: float, took_s: float, broker_s: float) -> None:
        """A record was sent at `sent_s`, acknowledged after `took_s`, and dated `broker_s` in between."""
        self.ahead_s = max(0.0, sent_s - broker_s) - max(0.0, broker_s - sent_s - took_s)

    def now_s(self) -> float:
        """Seconds since 1970 by the broker's clock, as far as it is known."""
        return self.wall_s() - (self.ahead_s or 0.0)

    def why_wrong(self) -> str:
        """The fault of this machine's clock; empty without a known one."""
        if self.ahead_s is None or abs(self.ahead_s) <= AHEAD_S_MAX:
            return ""
        where = "ahead of" if self.ahead_s > 0 else "behind"
        return f"clock_differs: this machine's clock is {abs(self.ahead_s):.1f} s {where} the broker's, expected at most {AHEAD_S_MAX:g} s; synchronise both"
