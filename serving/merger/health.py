"""Whether servers are ready, asked again and again beside the requests.

A request learns only of the server it was sent to, and pays for it; a probe finds the one that drains, hangs or comes back before a request does.
Here: the probes. Not here: what a caller makes of them (core/routing.py), the same question asked by people (serving/client.py).
"""

import asyncio
from collections.abc import Callable, Mapping

import httpx

READY = "/v2/health/ready"
PROBE_S_MAX = 1.0  # a server that needs longer to say that it is ready is not


async def is_ready(http: httpx.AsyncClient) -> bool:
    """One probe. Raises nothing."""
    try:
        answer = await http.get(READY, timeout=PROBE_S_MAX)
    except httpx.TransportError:
        return False
    return answer.status_code == 200


async def poll_servers(servers: Mapping[str, httpx.AsyncClient], tell: Callable[[str, bool], None], every_s: float) -> None:
    """Probes every server each `every_s` and tells what it found; never ends by itself. A slow one holds up nobody but itself."""

    async def poll(url: str) -> None:
        while True:
            tell(url, await is_ready(servers[url]))
            await asyncio.sleep(every_s)

    await asyncio.gather(*(poll(url) for url in servers))
