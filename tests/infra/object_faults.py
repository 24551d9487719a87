"""A line to the S3-compatible server that understands HTTP: it loses answers, refuses, shows old lists, hides new objects and cuts bodies."""

import contextlib
import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tests.infra.object_server import ObjectServer

Rule = Callable[[str, str], str]  # method and path, with query, to a fault; "" = none

# Faults: what a rule may return.
REFUSED = "refused"  # 503 before the server has seen the request
FAILED = "failed"  # 500 after the server has done it
LOST = "lost"  # the connection ends after the server has done it
CUT = "cut"  # the connection ends in the middle of the answer's body
HIDDEN = "hidden"  # 404, or, for a list, the first answer that this list has had


@dataclass
class FaultyLine:
    """Relays requests to `server`; `rule` is asked for each. `seen`: the faults that were made, with method and path."""

    server: ObjectServer
    rule: Rule = lambda _method, _path: ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lists: dict[str, bytes] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Relay", (_Relay,), {"line": self}))
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's answer, and the first one to the same list."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    line: FaultyLine

    def _do(self) -> None:
        line, method, path = self.line, self.command, self.path
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        fault = line.rule(method, path)
        if fault:
            line.seen.append((fault, method, path))
        is_list = "list-type=" in path
        if fault == REFUSED or (fault == HIDDEN and not is_list):
            status, text = {REFUSED: (503, b"SlowDown"), HIDDEN: (404, b"NoSuchKey")}[fault]
            return self._answer(status, [], b"" if method == "HEAD" else b"<Error><Code>" + text + b"</Code></Error>")
        status, headers, data = line.forward(method, path, dict(self.headers.items()), body)
        if is_list:
            first = line._lists.setdefault(path, data)
            data = first if fault == HIDDEN else data
        if fault == FAILED:
            return self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
        if fault == LOST:
            self.close_connection = True
            return None
        return self._answer(status, headers, data, cut=fault == CUT)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        length = (
            next((v for k, v in headers if k.lower() == "content-length"), str(len(data))) if self.command == "HEAD" else str(len(data))
        )
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def log_message(self, *_: object) -> None: ...
