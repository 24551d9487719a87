"""Granian inside our event loop: one process, one loop, one application (its own multi-process server would give each worker an engine).

Here: the port and the life of the listener. Not here: the application (http_api.py).
Granian binds with SO_REUSEPORT, which would let two servers share a port in silence; so the port is checked first, and held by a socket of
ours (bound the same way, never listening) until Granian has it.
"""

import asyncio
import contextlib
import socket
from typing import Any

from granian.server.embed import Server as GranianServer

from infra.processes import free_ports, port_is_free, wait_until
from schemas.errors import Misconfigured, Unavailable

_OPEN_S_MAX = 10.0


class Listener:
    """A listening HTTP server; `url` is where."""

    def __init__(self, application: Any, host: str, port: int) -> None:
        self._reserved = _reserve(host, port)
        self.host, self.port = host, int(self._reserved.getsockname()[1])
        self._server = GranianServer(application, address=host, port=self.port, log_enabled=False, websockets=False)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base address for clients."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def open(self) -> None:
        """Returns once connections are accepted. Unavailable (`port_not_open`) when they are not after 10 s."""
        self._task = asyncio.create_task(self._server.serve())
        try:
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


def _reserve(host: str, port: int) -> socket.socket:
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
