"""A method name that is not UTF-8 closes the gRPC library's port: it is opened again, and nobody has to start the server anew."""

import contextlib
import subprocess
import sys
from pathlib import Path

import grpc

from infra.processes import wait_until
from tests.serving.front import connect

SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


_SERVER = """
import sys
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front

with open_front(FakeEngine()) as front:
    print(front.grpc, flush=True)
    sys.stdin.read()
"""


def send_method_that_is_no_text(address: str) -> None:
    fields = {b":method": b"POST", b":scheme": b"http", b":path": b"/\xff", b":authority": b"a", b"content-type": b"application/grpc"}
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in (fields | {b"te": b"trailers"}).items()
    )
    with connect(address) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 5, 1, headers))
        with contextlib.suppress(ConnectionError):
            while (part := raw.recv(65_536)) and b"grpc-" not in part:  # the library's last word: its port is gone
                pass


def is_live(address: str) -> bool:
    """A call that still reached the lost server waits there for its own deadline, and the next one is answered."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(SERVER_LIVE).future(b"", timeout=5, wait_for_ready=True)
        return call.code() is grpc.StatusCode.OK


def test_a_method_that_is_no_text_takes_the_port_from_nobody() -> None:
    """In a process of its own, as servers are: where a server of grpc.aio ends like that, a client of the other kind in the same process may crash."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        address = server.stdout.readline().strip()
        for _ in range(3):
            send_method_that_is_no_text(address)
            wait_until(lambda: is_live(address), 60, "the port to answer again")
        server.stdin.close()
        assert server.wait(20) == 0
