"""Chance of a history: the numbers of `random.Random`, drawn with fewer calls. Same seed, same numbers (test_fakes.py compares them)."""

import random
from collections.abc import MutableSequence, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class QuickRandom(random.Random):
    """Whole numbers from as many random bits as they need, as random.Random makes them."""

    def below(self, end: int) -> int:
        """A whole number from 0 to before `end`, which is not 0."""
        bits = end.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= end:
            drawn = self.getrandbits(bits)
        return drawn

    def choice(self, several: Sequence[T]) -> T:  # type: ignore[override]
        """One of them."""
        return several[self.below(len(several))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """A whole number from `start`, or 0, to before `stop`."""
        assert step == 1
        return self.below(start) if stop is None else start + self.below(stop - start)

    def shuffle(self, several: MutableSequence[Any]) -> None:
        """In place."""
        for at in range(len(several) - 1, 0, -1):
            other = self.below(at + 1)
            several[at], several[other] = several[other], several[at]
