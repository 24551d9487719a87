"""How many requests are in work, on all ports together, and the refusal of one more (I8).

Here: the count. Not here: who waits for what inside (the engine's queue), nor what the refusal is in a protocol.
"""

import contextlib
from collections.abc import Callable, Iterator

from schemas.errors import Unavailable


class Intake:
    """Counts requests between receipt and answer. Used in the event loop only."""

    def __init__(self, requests_max: int) -> None:
        self.requests_max, self.in_work = requests_max, 0
        self.admit: Callable[[], None] = lambda: None  # raises Unavailable where what is in work already takes too long

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """One request is in work inside. Whether it may be is asked with `check`, so that probes are answered also under load."""
        self.in_work += 1
        try:
            yield
        finally:
            self.in_work -= 1

    def check(self) -> None:
        """Raises Unavailable (`overloaded`) where the request that entered last is one too many, by number or by the time it would wait."""
        if self.in_work > self.requests_max:
            message = f"{self.requests_max} requests are in work, which is all this server takes; send it again a little later"
            raise Unavailable("overloaded", message, retry_after_s=0.05)
        self.admit()
