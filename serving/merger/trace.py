"""One request through the merger, with its timeline as text: `aif query --trace`."""

import asyncio
from collections.abc import Sequence

import httpx

from schemas.ids import Id
from serving.core.timeline import draw_timeline
from serving.http_calls import bearer_headers, check_url, trust
from serving.merger.merger import Merged, Merger
from serving.merger.retrieval import Retrieval, decode_latency
from serving.settings import ServerSettings


def trace_request(
    settings: ServerSettings, url: str | None, user: str, candidates: Sequence[Id], top_k: int, deadline_ms: int, retrieval: str
) -> tuple[Merged, list[str]]:
    """The answer and the lines to show. `url`: one server, or several separated by commas. Raises as `Merger.recommend`, and Misconfigured."""
    serve = settings.serve
    urls = [check_url(one) for one in (url or serve.url).split(",")]
    headers, authorities = bearer_headers(serve.token), trust(serve.tls_cert)
    source = Retrieval(candidates, len(candidates), decode_latency(retrieval))

    def open_client(base: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=base, headers=headers, verify=authorities)

    async def run() -> Merged:
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
    return [*lines, f"{merged.took_ms:.1f} ms in all; {max(0.0, hidden_ms):.1f} ms of the user half passed beside retrieval"]
