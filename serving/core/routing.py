"""Which server takes a user's calls: both calls of a request, and all requests of a user, should meet on one, because that one has the user's state.

    partition = murmur2(user) mod M            as the user topics are partitioned
    order     = rendezvous hashing             every server has a weight for every partition; the greatest weight takes it

A server that leaves gives its partitions to all others and moves nobody else's; one that comes back takes its own again. A server that is lost, or has more
than its share in flight, is passed over for the next in the order, which then serves without a kept state: slower, never wrong.
Here: the order and the choice, on values. Not here: asking (serving/merger/merger.py).
Source: Thaler and Ravishankar, rendezvous hashing (1998); Mirrokni et al., consistent hashing with bounded loads (arXiv 1608.01350).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

LOAD_BOUND = 1.25  # times the mean of what is in flight


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server as its caller sees it."""

    url: str
    healthy: bool = True
    in_flight: int = 0


def rank_servers(partition: int, urls: Sequence[str]) -> list[str]:
    """All servers, best first, for a partition."""
    return sorted(urls, key=lambda url: (xxh3_64_intdigest(f"{partition} {url}".encode()), url), reverse=True)


def plan_route(partition: int, servers: Sequence[ServerLoad]) -> list[str]:
    """In which order to try: healthy servers with room by rendezvous, then full ones, then those thought lost (they may be back)."""
    loads = {server.url: server for server in servers}
    healthy = [server for server in servers if server.healthy]
    room = math.ceil(LOAD_BOUND * (sum(server.in_flight for server in healthy) + 1) / len(healthy)) if healthy else 0

    def place(url: str) -> int:
        server = loads[url]
        return 2 if not server.healthy else int(server.in_flight >= room)

    return sorted(rank_servers(partition, list(loads)), key=place)  # stable: the order within a place is rendezvous
