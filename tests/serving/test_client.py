"""The clients over servers that hang, or are something else than `aif serve`."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schemas.errors import Incompatible, Unavailable
from serving.client import AsyncClient, Client


@contextlib.contextmanager
def open_hanging() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def open_proxy(status: int, body: bytes = b"<html>busy</html>") -> Iterator[str]:
    """A proxy that answers by itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def wait_ready(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.wait_ready(0.2)


def wait_in_thread(url: str) -> None:
    with Client(url) as client:
        client.wait_ready(0.2)


@pytest.mark.parametrize("wait", [wait_in_thread, lambda url: asyncio.run(wait_ready(url))], ids=["threads", "asyncio"])
def test_a_server_that_hangs_is_waited_for_no_longer_than_asked(wait: Callable[[str], None]) -> None:
    with open_hanging() as url:
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"is not ready after 0\.2 s: (timed out|ReadTimeout)"):
            wait(url)
        assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("look", [Client.status, Client.allocation, lambda client: client.switch_allocation("off")])
@pytest.mark.parametrize("body", [b"<html>busy</html>", b"[" * 100_000], ids=["html", "nested"])
def test_an_answer_that_is_no_json_is_an_error_of_ours(look: Callable[[Client], Any], body: bytes) -> None:
    with open_proxy(200, body) as url, Client(url) as client, pytest.raises(Incompatible, match="bad_answer"):
        look(client)


def test_a_proxy_that_answers_instead_of_the_server_is_named() -> None:
    with open_proxy(502) as url, Client(url) as client, pytest.raises(Unavailable, match="HTTP 502: <html>busy"):
        client.wait_ready(0.1)
    with open_proxy(503, b"[" * 100_000) as url, Client(url) as client, pytest.raises(Unavailable, match=r"HTTP 503: \[\["):
        client.wait_ready(0.1)
