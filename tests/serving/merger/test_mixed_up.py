"""A proxy between the merger and its servers that mixes answers up."""

import asyncio
import json

import httpx

from serving.core.routing import ServerLoad, plan_route
from serving.merger.merger import Merged, Merger
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front
from tests.serving.merger.test_merger import candidates


class _MixedUp(httpx.AsyncHTTPTransport):
    """A proxy that returns the answer of another request."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = {**json.loads(request.content or b"{}"), "request_id": "another"}
        return await super().handle_async_request(httpx.Request(request.method, request.url, json=body))


def test_the_answer_of_another_request_is_no_answer() -> None:
    with open_front(FakeEngine()) as first, open_front(FakeEngine()) as second:
        wrong = plan_route(1, [ServerLoad(first.url), ServerLoad(second.url)])[0]

        def open_client(url: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=url, transport=_MixedUp() if url == wrong else None)

        async def run() -> Merged:
            async with Merger([first.url, second.url], candidates(1, 2), open_client) as merger:
                return await merger.recommend(1, deadline_ms=20_000)

        merged = asyncio.run(run())
    assert merged.server != wrong and merged.attempts == 2 and merged.answer.request_id != "another" and merged.user_answer is None
