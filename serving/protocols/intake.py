"""How many requests are in work and how many bytes of bodies are being read, over all ports, and the refusal of more (I8)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from schemas.errors import Unavailable
from schemas.limits import BODIES_BYTES_MAX


class Intake:
    """Counts requests between receipt and answer. Used in the event loop only."""

    def __init__(self, requests_max: int) -> None:
        self.requests_max, self.in_work, self.reading_bytes = requests_max, 0, 0
        self.receipt: Callable[[float, str], Mapping[str, Any]] | None = None  # of a refusal: (seconds to the retry, reason)
        self.admit: Callable[[], None] = lambda: None  # raises Unavailable if one more request would wait too long

    def enter(self) -> "Intake":
        """`with intake.enter()`: one request is in work inside. `check` decides whether it is too many; probes skip it, so they are answered under load."""
        return self

    def __enter__(self) -> None:
        self.in_work += 1

    def __exit__(self, *raised: object) -> None:
        self.in_work -= 1

    def check(self) -> None:
        """Raises Unavailable (`overloaded`) if the request that entered last is one too many, by number or by the time it would wait."""
        try:
            self.check_number()
            self.admit()
        except Unavailable as error:
            if self.receipt is not None:
                error.receipt = self.receipt(error.retry_after_s, error.code)
            raise

    def check_number(self) -> None:
        """The same by number alone. Called again once the body has arrived, because other requests came meanwhile."""
        if self.in_work > self.requests_max:
            raise _overloaded(f"{self.requests_max} requests are in work")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """A body is read inside. The function it yields counts arrived bytes and raises Unavailable (`overloaded`) when there are too many.

        Meanwhile the request does not count as in work: a slow sender would take the place of others.
        """
        taken = 0
        self.in_work -= 1

        def take(count: int) -> None:
            nonlocal taken
            taken += count
            self.reading_bytes += count
            if self.reading_bytes > BODIES_BYTES_MAX:
                raise _overloaded(f"bodies of {BODIES_BYTES_MAX} bytes are being read")

        try:
            yield take
        finally:
            self.in_work += 1
            self.reading_bytes -= taken


def _overloaded(what: str) -> Unavailable:
    return Unavailable("overloaded", f"{what}, which is all this server takes; send it again a little later", retry_after_s=0.05)
