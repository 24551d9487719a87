"""TCP ports of a server: bound, or refused with a clear message; and how many connections each may hold.

A connection is an open file. A process that has no files left can neither accept requests nor read its index, so both ports together may use half of the
process's limit. The other half is for RocksDB, the index and the broker.
"""

import errno
import resource
import socket

from infra.processes import free_ports
from schemas.errors import Misconfigured
from schemas.limits import CONNECTIONS_MAX

_FILES_PER_CONNECTION = 4  # two ports, and half of the limit is for the rest


def bracketed(host: str) -> str:
    """The host as it is written before `:port`: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def bind_port(host: str, port: int, option: str = "--port") -> socket.socket:
    """A bound socket that does not listen yet, on `port` or on any free one (0). Raises Misconfigured (`port_taken`, `address_unusable`).

    `option`: the command-line option that the error message names.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Connections left by an earlier server then do not block the port; a listening socket still does.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port or free_ports(1)[0]))
    except (OSError, OverflowError, TypeError) as error:  # the last two: a port beyond the last, a host that is no name
        bound.close()
        raise _refused(host, port, option, error) from error
    return bound


def listen(bound: socket.socket, stalled_s: float) -> None:
    """Accepts connections from now on. A peer that acknowledges no data for `stalled_s` loses its connection. Raises Misconfigured (`port_taken`)."""
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_s * 1000))  # accepted connections inherit it
    bound.setblocking(False)
    try:
        bound.listen(CONNECTIONS_MAX)
    except OSError as error:  # another process bound the same port and listened first
        host, port = bound.getsockname()[:2]
        raise _refused(host, port, "--port", error) from error


def connections_max() -> int:
    """How many connections one port may hold. (Importing Granian has already raised the limit of open files to the system's maximum.)"""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, files // _FILES_PER_CONNECTION))


def _refused(host: str, port: int, option: str, error: Exception) -> Misconfigured:
    if isinstance(error, OverflowError):
        return Misconfigured(
            "address_unusable", f"port {port} is beyond the last one, 65535; give another with {option} (0 = any free one)"
        )
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return Misconfigured("port_taken", f"port {port} is in use; stop what uses it, or give another with {option} (0 = any free one)")
    return Misconfigured("address_unusable", f"cannot listen on {host} port {port}: {error}; give an address of this machine")
