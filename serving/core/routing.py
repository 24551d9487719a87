"""Which server gets a user's calls. All calls of a user should go to the same server, because that server keeps the user's state.

    order = rendezvous hashing     every server has a weight for every user; the greatest weight is first

When a server leaves, its users are spread over all others and no other user moves; when it comes back it gets its own again. If a server is
lost, or has more than its share of running requests, the next one in the order is asked. It has no kept state: slower, but never wrong.
Source: Thaler and Ravishankar, rendezvous hashing (1998); Mirrokni et al., consistent hashing with bounded loads (arXiv 1608.01350).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from schemas.ids import Id

LOAD_BOUND = 1.25  # times the mean of the requests in flight


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server as a caller sees it; `in_flight`: the caller's running requests there."""

    url: str
    healthy: bool = True
    in_flight: int = 0


def rank_servers(user: Id, urls: Sequence[str]) -> list[str]:
    """All servers for a user, best first."""
    return sorted(urls, key=lambda url: (xxh3_64_intdigest(f"{user} {url}".encode()), url), reverse=True)


def plan_route(user: Id, servers: Sequence[ServerLoad]) -> list[str]:
    """In which order to try: healthy servers with room, then full ones, then lost ones, which may be back. Each group in rendezvous order."""
    loads = {server.url: server for server in servers}
    healthy = [server for server in servers if server.healthy]
    room = math.ceil(LOAD_BOUND * (sum(server.in_flight for server in healthy) + 1) / len(healthy)) if healthy else 0

    def place(url: str) -> int:
        server = loads[url]
        return 2 if not server.healthy else int(server.in_flight >= room)

    return sorted(rank_servers(user, list(loads)), key=place)  # the sort is stable, so each group keeps the rendezvous order
