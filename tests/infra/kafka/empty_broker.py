"""A broker that only lists brokers. The list can be empty, as that of a real broker is for a moment while it stops."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

_API_VERSIONS, _METADATA, _FIND_COORDINATOR = 18, 3, 10
_HOST = b"127.0.0.1"


class EmptyBroker:
    """`is_listed`: whether answers name this broker, with one partition of `topic`. `asked`: how many were sent. `clients`: connections so far. Each answer
    takes `delay_s`."""

    def __init__(self, topic: str) -> None:
        self.is_listed, self.asked, self.clients, self.delay_s = True, 0, 0, 0.0
        self._topic = _string(topic.encode())
        self._listening = socket.create_server((_HOST.decode(), 0))
        self._port: int = self._listening.getsockname()[1]
        self.bootstrap_servers = f"{_HOST.decode()}:{self._port}"

    def run(self) -> None:
        """Answer until the socket is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.clients += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), connection, connection.makefile("rb") as requests:
            while True:
                (size,) = struct.unpack(">i", requests.read(4))
                key, version, number = struct.unpack(">hhi", requests.read(size)[:8])
                body = self._answer(key, version)
                time.sleep(self.delay_s)
                connection.sendall(struct.pack(">ii", 4 + len(body), number) + body)

    def _answer(self, key: int, version: int) -> bytes:
        if key == _API_VERSIONS and version:
            return struct.pack(">hihhh", 35, 1, _API_VERSIONS, 0, 0)  # this version is not supported
        if key == _API_VERSIONS:
            return struct.pack(">hi9h", 0, 3, _API_VERSIONS, 0, 0, _METADATA, 0, 1, _FIND_COORDINATOR, 0, 0)
        if key == _FIND_COORDINATOR:
            return struct.pack(">hi", 0, 1) + _string(_HOST) + struct.pack(">i", self._port)
        self.asked += 1
        if not self.is_listed:
            return struct.pack(">iii", 0, -1, 1) + struct.pack(">h", 5) + self._topic + b"\0" + struct.pack(">i", 0)
        brokers = struct.pack(">ii", 1, 1) + _string(_HOST) + struct.pack(">ihi", self._port, -1, 1)
        return brokers + struct.pack(">ih", 1, 0) + self._topic + b"\0" + struct.pack(">ihiiiiii", 1, 0, 0, 1, 1, 1, 1, 1)


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


@contextlib.contextmanager
def open_empty_broker(topic: str) -> Iterator[EmptyBroker]:
    broker = EmptyBroker(topic)
    threading.Thread(target=broker.run, daemon=True).start()
    try:
        yield broker
    finally:
        broker.close()
