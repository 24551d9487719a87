"""Granian inside our event loop: one process, one loop, one application (its own multi-process server would give each worker an engine).

Here: the port, TLS and the life of the listener. Not here: the application (http_api.py).
Granian binds with SO_REUSEPORT, which would let two servers share a port in silence; so the port is checked first, and held by a socket of
ours (bound the same way, never listening) until Granian has it.
Granian gives a connection a place out of `backpressure` for as long as it is open: with its default of 128 as many idle clients shut out the rest.
HTTP/1.1 only: where Granian may speak HTTP/2 too, a connection that never sends a byte is never closed, because it waits for the first ones to tell
the two apart before its time limit begins. Whoever wants many calls on one connection has gRPC.
A client that shuts down its writing side after its request counts as gone and gets no answer: hyper would have to be told otherwise, and Granian has no
setting for it. Its connection is closed, and what it asked for is computed for nobody.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from granian.http import HTTP1Settings
from granian.server.common import HTTPModes, SSLProtocols
from granian.server.embed import Server as GranianServer

from infra.processes import free_ports, port_is_free, wait_until
from schemas.errors import Misconfigured, Unavailable
from schemas.limits import CONNECTIONS_MAX, HTTP_HEADER_BYTES_MAX
from serving.short_turns import new_threads_take_short_turns

_OPEN_S_MAX = 10.0


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
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        raise Misconfigured("tls_unusable", f"certificate {cert} and key {key} cannot be used: {error}; give a PEM pair") from error
    return Tls(cert.resolve(), key.resolve())


class Listener:
    """A listening HTTP server; `url` is where."""

    def __init__(self, application: Any, host: str, port: int, tls: Tls | None = None, idle_s: float = 10.0) -> None:
        """Holds the port. `idle_s`: the time for the head of a request, and so also between two requests of one connection."""
        self._reserved = reserve_port(host, port)
        self.host, self.port, self._scheme = host, int(self._reserved.getsockname()[1]), "http" if tls is None else "https"
        self._server = GranianServer(
            application,
            address=host,
            port=self.port,
            backlog=CONNECTIONS_MAX,
            backpressure=CONNECTIONS_MAX,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(header_read_timeout=int(idle_s * 1000), max_buffer_size=HTTP_HEADER_BYTES_MAX),
            ssl_cert=None if tls is None else tls.cert,
            ssl_key=None if tls is None else tls.key,
            ssl_protocol_min=SSLProtocols.tls12,
            log_enabled=False,
            websockets=False,
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base address for clients."""
        return f"{self._scheme}://{bracketed(self.host)}:{self.port}"

    async def open(self) -> None:
        """Returns once connections are accepted. Unavailable (`port_not_open`) when they are not after 10 s."""
        try:
            with new_threads_take_short_turns():
                self._task = asyncio.create_task(self._server.serve())
                await asyncio.to_thread(wait_until, self._accepts, _OPEN_S_MAX, f"{self.url} to accept connections")
        except Unavailable as error:
            raise Unavailable("port_not_open", f"{self.url} does not accept connections: {error.message}") from error
        finally:
            self._reserved.close()

    async def close(self) -> None:
        """Takes no more connections, lets what is in work finish, and ends."""
        self._reserved.close()
        if self._task is not None:
            self._server.stop()
            await self._task

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=0.5):
            return True
        return False


def bracketed(host: str) -> str:
    """A host as an address writes it before a port."""
    return f"[{host}]" if ":" in host else host


def reserve_port(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen, on `port` or on any free one (0). Raises Misconfigured (`port_taken`, `address_unusable`)."""
    if port and host in ("127.0.0.1", "localhost", "0.0.0.0") and not port_is_free(port):  # noqa: S104 - compared, not bound
        raise Misconfigured("port_taken", f"port {port} is in use; stop what uses it, or give another with --port (0 = any free one)")
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((host, port or free_ports(1)[0]))
    except OSError as error:
        reserved.close()
        raise Misconfigured("address_unusable", f"cannot listen on {host} port {port}: {error}; give an address of this machine") from error
    return reserved
