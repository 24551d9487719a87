"""A real S3-compatible server in a process of its own (moto), and a line to it that can be cut at a byte.

Pages of a list are small there, so that a test needs no thousand files to see a second page.
"""

import contextlib
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from infra.processes import Child, free_ports, port_is_free, start_child, stop_all, wait_until
from tests import plain_http

PAGE_FILES = 40
_START_S_MAX = 120.0


class ObjectServer:
    """The server at `endpoint`; `stop` and `start` again at the same address lose its content."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._child: Child | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        environment = {"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_FILES)}
        self._child = start_child("moto", command, self._folder / "moto.log", environment=environment)
        wait_until(lambda: not port_is_free(self.port), _START_S_MAX, "the S3 server of this module")

    def stop(self) -> None:
        if self._child is not None:
            stop_all([self._child], grace_s=0.0)
            self._child = None

    def new_bucket(self) -> str:
        """A bucket that no other test uses."""
        name = f"index-{uuid.uuid4().hex[:12]}"
        plain_http.put(f"{self.endpoint}/{name}").raise_for_status()
        return name


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """A running server, and credentials in the environment that it accepts."""
    server = ObjectServer(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        server.start()
        try:
            yield server
        finally:
            server.stop()


class Line:
    """A TCP relay to the server. After `stop_after` request bytes it passes nothing on and sets `stuck`."""

    def __init__(self, server: ObjectServer, stop_after: int | None = None) -> None:
        self._to, self._left, self._lose = server.port, stop_after, 0
        self.swallows = False  # whether the answers to PUTs that come now are lost without a word, and their connections stay open
        self._mute = set[socket.socket]()
        self.stuck = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def lose(self, answers: int) -> None:
        """Cuts so many connections when the answer comes: the server did what it was asked, the client cannot know."""
        self._lose = answers

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self.swallows and data.startswith(b"PUT "):
                    self._mute.add(client)
                if self._left is not None:
                    data, self._left = data[: self._left], max(0, self._left - len(data))
                server.sendall(data)
                if self._left == 0:
                    self.stuck.set()
                    return
            server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if self._lose > 0:
                    self._lose -= 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                if client not in self._mute:
                    client.sendall(data)
            if client not in self._mute:
                client.shutdown(socket.SHUT_RDWR)
