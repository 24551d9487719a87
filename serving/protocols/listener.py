"""Granian inside our event loop: one process, one loop, one application. (Granian's multi-process server would create one engine per worker.)

- We give Granian a listening socket. Its own would set SO_REUSEPORT, so that two servers could share a port unnoticed, and it would wait permanently for a
  client that does not read its answer.
- An open connection holds one of `backpressure` places (ports.py). If all are taken and clients wait, the longest idle are closed
  (`close_longest_idle`). With 5,000 connections that went idle at once, a new client has its answer after 1 to 2 s, and the next after 0.2, instead of
  after `idle_s`.
- HTTP/1.1 only. With HTTP/2 enabled, Granian never closes a connection that sends no byte: its time limit starts only once bytes show the protocol.
  Clients that want many calls on one connection can use gRPC.
- A client that closes its sending side after its request gets no answer. Granian has no setting for hyper's option that would allow it, so it closes the
  connection, and the request is given up (`ClientWatch`).
- Requests that hyper cannot parse get its own 400, 414 or 431, which have no body. A request with Content-Length and Transfer-Encoding is read as chunks, and
  its connection is closed after the answer (RFC 9112, 6.1); the application sees no Content-Length.

Granian takes no more connections than it has places, and a client that comes then waits in the kernel. Granian cannot be told to close one. But the
kernel knows when bytes last went over a connection, and how many clients wait for the listening socket.
A connection is idle if nothing ever came on it, or if an answer went over it later than all that came. Times are whole ticks of the kernel. So a connection
whose request is in work, or is still coming, stays; so do those whose answer took less than a tick, until `idle_s`. Every look is at a copy of a file
descriptor, because its number may be another file's a moment later.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from granian.http import HTTP1Settings
from granian.net import SocketHolder
from granian.server.common import HTTPModes, SSLProtocols
from granian.server.embed import Server as GranianServer

from infra.processes import wait_until
from schemas.errors import Misconfigured, Unavailable
from schemas.limits import CONNECTIONS_MAX, HTTP_HEAD_BUFFER_BYTES
from serving.protocols.ports import bind_port, bracketed, connections_max, listen
from serving.time_slices import new_threads_take_short_slices

_OPEN_S_MAX = 60.0  # of a machine that is busy with other starts
_LOOK_S = 0.25  # between two looks at whether clients wait


_IDLE_MS_MIN = 1_000  # a client that pauses for less is busy
# Of Linux's struct tcp_info, as the listening socket has it: how many clients wait.
_WAITING = struct.Struct("24xI")
# Of a connection: milliseconds since bytes were last sent, and since any came; how many bytes came; how many of the answer wait until its client reads.
_LAST = struct.Struct("=44xI4xI72xQ8xI")


def count_waiting(listening: socket.socket) -> int:
    """How many clients are connected to the port and not taken yet."""
    return _tcp_info(listening, _WAITING)[0]


def close_longest_idle(port: int, places: int, wanted: int) -> int:
    """Closes up to `wanted` connections of this process's port if all of its `places` are taken. Returns how many."""
    idle_ms, taken = dict[int, int](), 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with _copy(number, port) as connection:
            if connection is not None:
                taken += 1
                idle_ms[number] = _idle_ms(connection)
    longest = sorted(idle_ms, key=lambda number: idle_ms[number], reverse=True)[:wanted] if taken >= places else []
    return sum(_close(number, port) for number in longest)


def _close(number: int, port: int) -> bool:
    with _copy(number, port) as connection:
        if connection is None or _idle_ms(connection) < _IDLE_MS_MIN:
            return False
        with contextlib.suppress(OSError):  # its client was faster
            connection.shutdown(socket.SHUT_RDWR)
        return True


def _idle_ms(connection: socket.socket) -> int:
    """For how long a connection has been idle; 0 if it is not."""
    sent_ms, came_ms, came, unread = _tcp_info(connection, _LAST)
    return sent_ms if not came or (sent_ms < came_ms and not unread) else 0


@contextlib.contextmanager
def _copy(number: int, port: int) -> Iterator[socket.socket | None]:
    """A socket on the connection behind a file descriptor; None if it is none of the port's."""
    try:
        copied = os.dup(number)
    except OSError:  # closed meanwhile
        yield None
        return
    try:
        connection = socket.socket(fileno=copied)
    except OSError:  # no socket
        os.close(copied)
        yield None
        return
    with connection:
        yield connection if _is_of_port(connection, port) else None


def _is_of_port(connection: socket.socket, port: int) -> bool:
    with contextlib.suppress(OSError):  # it has no peer: the listening socket, or one that was just cut
        return (
            connection.family in (socket.AF_INET, socket.AF_INET6)
            and connection.getsockname()[1] == port
            and bool(connection.getpeername())
        )
    return False


def _tcp_info(one: socket.socket, fields: struct.Struct) -> tuple[int, ...]:
    return fields.unpack(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, fields.size))


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate chain and private key, PEM files."""

    cert: Path
    key: Path


def read_tls(cert: Path | None, key: Path | None) -> Tls | None:
    """The pair, or None where neither is given. Raises Misconfigured (`tls_incomplete`, `tls_unusable`)."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise Misconfigured(
            "tls_incomplete", "TLS needs both AIF_SERVE__TLS_CERT and AIF_SERVE__TLS_KEY; set the other one too, or neither"
        )
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, _refuse_passphrase)
    except (OSError, ValueError) as error:
        told = f"certificate {cert} and key {key} cannot be used: {error}; give a PEM pair whose key has no passphrase"
        raise Misconfigured("tls_unusable", told) from error
    return Tls(cert.resolve(), key.resolve())


def _refuse_passphrase() -> str:
    """OpenSSL would ask for it on the terminal, and the ports could not read the key anyway."""
    raise ValueError("the key has a passphrase")


class _Granian(GranianServer):
    """Granian on a socket that the caller provides, in the way in which its own workers get one from their parent."""

    def __init__(self, take_socket: Callable[[], socket.socket], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._take_socket = take_socket

    def _init_shared_socket(self) -> None:
        self._shd = SocketHolder(self._take_socket().detach(), False, self.backlog)  # type: ignore[assignment, call-arg] # granian: its types know no shared socket here


class Listener:
    """A listening HTTP server; `url` is its address."""

    def __init__(self, application: Any, host: str, port: int, tls: Tls | None = None, idle_s: float = 10.0) -> None:
        """Binds the port. `idle_s`: the longest wait for a request's head (so also between two requests of a connection), and for a client to read its answer.

        Raises Misconfigured (`port_taken`, `address_unusable`).
        """
        self._bound, self._idle_s, self._places = bind_port(host, port), idle_s, connections_max()
        self.host, self.port, self._scheme = host, int(self._bound.getsockname()[1]), "http" if tls is None else "https"
        self._server = _Granian(
            self._listen,
            application,
            address=host,
            port=self.port,
            backlog=CONNECTIONS_MAX,
            backpressure=self._places,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(header_read_timeout=int(idle_s * 1000), max_buffer_size=HTTP_HEAD_BUFFER_BYTES),
            ssl_cert=None if tls is None else tls.cert,
            ssl_key=None if tls is None else tls.key,
            ssl_protocol_min=SSLProtocols.tls12,
            log_enabled=False,
            websockets=False,
        )
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base address for clients."""
        return f"{self._scheme}://{bracketed(self.host)}:{self.port}"

    async def open(self) -> None:
        """Returns once requests are answered. Raises Misconfigured (`port_taken`), Unavailable (`port_not_open`) if there is no answer after a minute."""
        with new_threads_take_short_slices():
            self._task = asyncio.create_task(self._server.serve())
            await asyncio.to_thread(self._wait_open, self._task)
        self._room = asyncio.create_task(self._make_room())

    async def close(self) -> None:
        """Accepts no more connections, lets running requests finish, and ends."""
        if self._room is not None:
            self._room.cancel()
            await asyncio.wait({self._room})
        self._bound.close()
        if self._task is not None:
            self._server.stop()
            await self._task

    def _listen(self) -> socket.socket:
        listen(self._bound, self._idle_s)
        return self._bound.dup()

    async def _make_room(self) -> None:
        """Closes the longest idle connections when clients wait because all places are taken."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(OSError):  # no descriptor left for a look: the next one may have some
                if waiting := count_waiting(self._bound):
                    await asyncio.to_thread(close_longest_idle, self.port, self._places, waiting)

    def _wait_open(self, task: "asyncio.Task[None]") -> None:
        try:
            wait_until(lambda: task.done() or self._answers(), _OPEN_S_MAX, f"{self.url} to answer")
        except Unavailable as error:
            raise Unavailable("port_not_open", f"{self.url} does not answer: {error.message}") from error
        if task.done():
            task.result()

    def _answers(self) -> bool:
        """Whether the server sends anything back for bytes that are no request (with TLS too). A connection alone proves nothing: the kernel accepts it."""
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=5.0) as probe:
            probe.sendall(b"\0\r\n\r\n")
            probe.recv(1)
            return True
        return False
