"""The client process of `aif bench rank`: sends encoded requests sequentially, and reports the time of each answer.

    python -m lab.serving.client JOB      reads lines "kind count" from standard input, writes lines of milliseconds (JSON) to standard output

It is a process of its own, because a client in the server's process would compete with it for the interpreter. Answers are read completely but not
decoded, so the time is that of the server and the connection. For the same reason HTTP is sent through a plain socket. The process imports nothing
of ours.
"""

import json
import pickle
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc

_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class HttpConnection:
    """One connection that is kept open. `send` returns when the whole answer is read; SystemExit with the answer for any status but 200."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        """End the connection."""
        self._reader.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Send a request and read its answer."""
        self._socket.sendall(request)
        status, length = self._reader.readline(), 0
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        answer = self._reader.read(length)
        if b" 200 " not in status:
            raise SystemExit(f"{status!r} {answer[:500]!r}")


def main(host: str, port: int, grpc_address: str, requests: Mapping[str, Sequence[bytes]]) -> None:
    """Read jobs from standard input and write times to standard output until the input ends. `requests`: encoded, by kind ("grpc", or one of HTTP)."""
    call = grpc.insecure_channel(grpc_address, options=[("grpc.max_send_message_length", -1)]).unary_unary(_METHOD)
    http, turn = HttpConnection(host, port), 0
    for line in sys.stdin:
        kind, count = line.split()
        send: Callable[[bytes], object] = call if kind == "grpc" else http.send
        taken_ms: list[float] = []
        for _ in range(int(count)):
            request = requests[kind][turn % len(requests[kind])]
            began = time.perf_counter()
            send(request)
            taken_ms.append(1e3 * (time.perf_counter() - began))
            turn += 1
        sys.stdout.write(json.dumps(taken_ms) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*pickle.loads(Path(sys.argv[1]).read_bytes()))  # noqa: S301 - the bench wrote it
