"""TCP ports of a server: bound or refused in words, and how many clients each may hold.

Here: sockets and their bounds. Not here: what speaks on them (listener.py, grpc_listener.py).
A connection is an open file, and a process that may open no more files can neither take requests nor read its index: so both ports together take half of
what the process may open. The other half is RocksDB's, the index's, the broker's.
"""

import errno
import resource
import socket

from infra.processes import free_ports
from schemas.errors import Misconfigured
from schemas.limits import CONNECTIONS_MAX

_FILES_PER_CONNECTION = 4  # two ports, and half for the rest


def bracketed(host: str) -> str:
    """A host as an address writes it before a port."""
    return f"[{host}]" if ":" in host else host


def bind_port(host: str, port: int, option: str = "--port") -> socket.socket:
    """A bound socket that does not listen yet, on `port` or on any free one (0). Raises Misconfigured (`port_taken`, `address_unusable`).

    `option`: where another port would be given.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a server before this one left is no obstacle; one that listens is
    try:
        bound.bind((host, port or free_ports(1)[0]))
    except OSError as error:
        bound.close()
        raise _refused(host, port, option, error) from error
    return bound


def listen(bound: socket.socket, stalled_s: float) -> None:
    """Takes connections from now on. One whose other end takes nothing of what is sent to it for so long is closed. Raises Misconfigured (`port_taken`)."""
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_s * 1000))  # its connections inherit it
    bound.setblocking(False)
    try:
        bound.listen(CONNECTIONS_MAX)
    except OSError as error:  # another one bound it at the same moment, and was first
        raise _refused(*bound.getsockname()[:2], "--port", error) from error


def connections_max() -> int:
    """How many connections one port may hold. Importing Granian raised the limit of open files to what the system allows at most."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, files // _FILES_PER_CONNECTION))


def _refused(host: str, port: int, option: str, error: OSError) -> Misconfigured:
    if error.errno == errno.EADDRINUSE:
        return Misconfigured("port_taken", f"port {port} is in use; stop what uses it, or give another with {option} (0 = any free one)")
    return Misconfigured("address_unusable", f"cannot listen on {host} port {port}: {error}; give an address of this machine")
