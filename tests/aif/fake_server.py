"""A server that answers every ranking in the same way: enough for a client, with the standard library alone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUSY_USER = 429  # asking for this user gets a refusal


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, {"ready": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["user_id"] == BUSY_USER:
            self._answer(429, {"code": "queue_full", "message": "busy", "retry_after_s": 0.5})
        elif self.path == "/v1/user":
            user = {"request_id": "r", "version_token": "1.0", "cold_user": False, "behaviours": 0, "behaviours_without_row": 0}
            self._answer(200, user | {"state_bytes": 1, "took_ms": 1.0})
        else:
            self._answer(200, ranking(body))

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def ranking(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a ranking: the first candidates."""
    items = [{"item_id": item, "score": 0.5, "probabilities": [0.5]} for item in body["item_ids"][: body["top_k"]]]
    return {
        "request_id": body.get("request_id", "r"),
        "version_token": body.get("version_token", "1.0"),
        "rung": "inline",
        "degraded": [],
        "items": items,
        "candidates": len(body["item_ids"]),
        "unknown_count": 0,
        "unknown_items": [],
        "freshness": {"age_s": 0.0, "lagging_shards": [], "watermark": []},
        "took_ms": 1.0,
    }


@contextmanager
def run_fake_server() -> Iterator[str]:
    """The address of a server on a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
