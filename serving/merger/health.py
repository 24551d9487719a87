"""Asks servers again and again whether they are ready, beside the requests.

A request learns only about the server it was sent to, and at its own cost; a probe notices a server that drains, hangs or is back before a request does.
Here: the probes. Not here: what a caller does with the result (core/routing.py), the same question from a person (serving/client.py).
"""

import asyncio
from collections.abc import Callable, Mapping

import httpx

READY = "/v2/health/ready"
PROBE_S_MAX = 1.0  # a server that takes longer to say that it is ready is not ready


async def is_ready(http: httpx.AsyncClient) -> bool:
    """One probe. Raises nothing."""
    try:
        answer = await http.get(READY, timeout=PROBE_S_MAX)
    except httpx.RequestError:
        return False
    return answer.status_code == 200


async def poll_servers(servers: Mapping[str, httpx.AsyncClient], tell: Callable[[str, bool], None], every_s: float) -> None:
    """Probes every server each `every_s` and calls `tell(url, ready)`. Never ends by itself. A slow server does not delay the probes of others."""

    async def poll(url: str) -> None:
        while True:
            tell(url, await is_ready(servers[url]))
            await asyncio.sleep(every_s)

    await asyncio.gather(*(poll(url) for url in servers))
