"""An address at which the broker does not answer until a test says so."""

import contextlib
import socket
import threading
from typing import Self

from infra.processes import free_ports


class LateBroker:
    """`address` refuses connections until `arrive`; then it leads to the broker at `bootstrap`, which names its own address to its clients."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._to, self._port = (host, int(port)), free_ports(1)[0]
        self.address = f"127.0.0.1:{self._port}"
        self._open = list[socket.socket]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def arrive(self) -> None:
        """From now on it answers."""
        self._open.append(listener := socket.create_server(("127.0.0.1", self._port)))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = listener.accept()[0], socket.create_connection(self._to)
                self._open += ends
                for read, write in (ends, ends[::-1]):
                    threading.Thread(target=self._pass_on, args=(read, write), daemon=True).start()

    def _pass_on(self, read: socket.socket, write: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := read.recv(65_536):
                write.sendall(data)
            write.shutdown(socket.SHUT_WR)
