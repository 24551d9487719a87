"""One request through the merger, with its timeline as text: `aif query --trace`.

Retrieval is a stand-in: candidates from a given pool after a given latency. A real system gives `Merger` a function of its own.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from schemas.errors import RejectedInput
from schemas.ids import Id
from serving.http_calls import READY, authorities_of, bearer_headers, check_url
from serving.merger.merger import Merged, Merger, Span
from serving.settings import ServerSettings

_ARGUMENTS = {"fixed": 1, "uniform": 2, "lognormal": 2}

_BAR = 48


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


def trace_request(
    settings: ServerSettings, url: str | None, user: str, candidates: Sequence[Id], top_k: int, deadline_ms: int, retrieval: str
) -> tuple[Merged, list[str]]:
    """The answer and the lines to show. `url`: one server, or several separated by commas. Raises as `Merger.recommend`, and Misconfigured."""
    serve = settings.serve
    urls = [check_url(one) for one in (url or serve.url).split(",")]
    headers = bearer_headers(serve.token)
    source = Retrieval(candidates, len(candidates), decode_latency(retrieval))

    def open_client(base: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=base, headers=headers, verify=authorities_of(base, serve.tls_cert))

    async def run() -> Merged:
        async with open_client(urls[0]) as first:  # the library imports half of itself at its first request, and the timeline would show it
            with contextlib.suppress(httpx.HTTPError):
                await first.get(READY)
        async with Merger(urls, source.retrieve, open_client) as merger:
            return await merger.recommend(user, top_k, deadline_ms)  # an id's partition is that of its text

    merged = asyncio.run(run())
    return merged, describe(merged)


def describe(merged: Merged) -> list[str]:
    """The timeline, and how much of call 1 ran while retrieval did."""
    spans = {span.name: span for span in merged.spans}
    lines = draw_timeline(sorted(merged.spans, key=lambda span: span.start_ms))
    first, retrieved = spans.get("call 1"), spans["retrieval"]
    hidden_ms = 0.0 if first is None else min(first.end_ms, retrieved.end_ms) - first.start_ms
    return [*lines, f"{merged.took_ms:.1f} ms in all; {max(0.0, hidden_ms):.1f} ms of the user half passed during retrieval"]


def draw_timeline(spans: Sequence[Span], width: int = _BAR) -> list[str]:
    """One line per span, all on the same scale; a span is at least one mark wide.

    call 1      |####                    |   0.1 ..   7.9 ms  inline, 5 behaviours
    """
    if not spans:
        return []
    end_ms = max(1e-9, *(span.end_ms for span in spans))
    names = max(len(span.name) for span in spans)
    return [_draw(span, names, end_ms, width) for span in spans]


def _draw(span: Span, names: int, end_ms: float, width: int) -> str:
    start = min(width - 1, int(width * span.start_ms / end_ms))
    marks = max(1, min(width - start, round(width * span.took_ms / end_ms)))
    bar = " " * start + "#" * marks
    return f"{span.name:<{names}}  |{bar:<{width}}|  {span.start_ms:7.1f} .. {span.end_ms:7.1f} ms  {span.detail}".rstrip()
