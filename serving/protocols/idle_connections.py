"""Room for new clients while connections that do nothing have all places of the HTTP port: the longest idle are closed.

Granian takes no more connections than it has places, and a client that comes then waits in the kernel. Granian cannot be told to close one. But the
kernel knows when bytes last went over a connection, and how many clients wait for the listening socket.
A connection is idle if nothing ever came on it, or if an answer went over it later than all that came, as whole ticks of the kernel tell. So one whose
request is in work, or is still coming, stays; so do those whose answer took less than a tick, until `idle_s`. Every look is at a copy of a file
descriptor, because its number may be another file's a moment later.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

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
