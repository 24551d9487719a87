"""A stand-in for retrieval: candidates from a given pool after a given latency, to show the time that call 1 saves beside it.

A real system gives `Merger` a function of its own.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import RejectedInput
from schemas.ids import Id

_ARGUMENTS = {"fixed": 1, "uniform": 2, "lognormal": 2}


@dataclass(frozen=True, slots=True)
class Latency:
    """ms: "fixed" a; "uniform" from a to b; "lognormal" with median a and sigma b."""

    kind: str
    a: float
    b: float = 0.0

    def draw_ms(self, rng: random.Random) -> float:
        """One latency."""
        if self.kind == "fixed":
            return self.a
        if self.kind == "uniform":
            return rng.uniform(self.a, self.b)
        return self.a * rng.lognormvariate(0.0, self.b)


def decode_latency(text: str) -> Latency:
    """From "lognormal:20,0.3" and the like. Raises RejectedInput (`bad_latency`)."""
    kind, _, numbers = text.partition(":")
    try:
        values = [float(one) for one in numbers.split(",")]
    except ValueError:
        values = []
    if len(values) != _ARGUMENTS.get(kind, -1) or not all(0 <= value < 1e6 for value in values):
        raise RejectedInput("bad_latency", f"latency {text[:40]!r}: expected fixed:MS, uniform:MS,MS or lognormal:MEDIAN_MS,SIGMA")
    return Latency(kind, *values)


class Retrieval:
    """`retrieve` returns `count` random ids of the pool, the same for the same seed."""

    def __init__(self, pool: Sequence[Id], count: int, latency: Latency, seed: int = 0) -> None:
        self._pool, self._count, self._latency, self._rng = pool, min(count, len(pool)), latency, random.Random(seed)

    async def retrieve(self, user: Id) -> Sequence[Id]:
        """Candidates for a user."""
        await asyncio.sleep(self._latency.draw_ms(self._rng) / 1000)
        return self._rng.sample(self._pool, self._count)
