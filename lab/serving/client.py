"""The client process of `aif bench rank`: sends prepared requests one after another, and reports how long each answer took.

    python -m lab.serving.client JOB.json      reads lines "kind count" from standard input, writes lines of milliseconds (JSON) to standard output

It is a process of its own, because a client in the server's process would compete with it for the interpreter. Requests are encoded before the clock
starts, and answers are read completely but not decoded, so the time is that of the server and the connection. For the same reason HTTP is sent through
a plain socket. The process imports neither torch nor the engine.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import grpc
import numpy as np

from serving.core.infer_body import encode_infer_request
from serving.core.tensors import Tensor, encode_raw
from serving.protocols.messages import pb

KINDS = ("http_binary", "grpc", "http_json")
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_INFER = "/v2/models/prerank/infer"


@dataclass(frozen=True)
class Job:
    """What to send and where. `ids_file`: a .npy file, int64 [requests, candidates]; `context`: numbers by feature; `request_id`: that of call 1."""

    host: str
    port: int
    grpc: str
    ids_file: str
    user_id: int
    request_id: str
    top_k: int
    context: Mapping[str, int]

    def write(self, path: Path) -> None:
        """Writes the job for the client process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The job that `write` wrote."""
        return cls(**json.loads(path.read_text()))


class HttpConnection:
    """One connection that is kept open. `send` returns when the whole answer is read; SystemExit with the answer for any status but 200."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        """Ends the connection."""
        self._reader.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Sends a request and reads its answer."""
        self._socket.sendall(request)
        status, length = self._reader.readline(), 0
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        answer = self._reader.read(length)
        if b" 200 " not in status:
            raise SystemExit(f"{status!r} {answer[:500]!r}")


def encode_http(path: str, body: bytes, header_length: int | None = None) -> bytes:
    """The bytes of a POST."""
    more = "" if header_length is None else f"inference-header-content-length: {header_length}\r\n"
    return f"POST {path} HTTP/1.1\r\nhost: bench\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


def request_tensors(job: Job, ids_C: np.ndarray) -> list[Tensor]:
    """The inputs of one request."""
    return [
        Tensor("user_id", "INT64", (1,), np.array([job.user_id])),
        Tensor("item_ids", "INT64", (len(ids_C),), ids_C),
        Tensor("request_id", "BYTES", (1,), [job.request_id.encode()]),
        Tensor("top_k", "INT64", (1,), np.array([job.top_k])),
    ]


def encode_binary_request(job: Job, ids_C: np.ndarray) -> bytes:
    """The HTTP request with binary tensors, which asks for binary tensors."""
    parameters = {"binary_data_output": True, **{f"context.{name}": value for name, value in job.context.items()}}
    return encode_http(_INFER, *encode_infer_request({"parameters": parameters}, request_tensors(job, ids_C)))


def encode_grpc_request(job: Job, ids_C: np.ndarray) -> bytes:
    """The bytes of a ModelInferRequest."""
    tensors = request_tensors(job, ids_C)
    message = pb.ModelInferRequest(
        model_name="prerank",
        inputs=[{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors],
        raw_input_contents=[encode_raw(one) for one in tensors],
    )
    for name, value in job.context.items():
        message.parameters[f"context.{name}"].int64_param = value
    return bytes(message.SerializeToString())


def encode_json_request(job: Job, ids_C: np.ndarray) -> bytes:
    """The HTTP request to /v1/rank with a JSON body; ids are numbers."""
    fields = {"user_id": job.user_id, "request_id": job.request_id, "top_k": job.top_k, "context": dict(job.context)}
    return encode_http("/v1/rank", json.dumps({**fields, "item_ids": ids_C.tolist()}).encode())


def open_senders(job: Job) -> Mapping[str, tuple[Callable[[bytes], object], Sequence[bytes]]]:
    """For each kind of KINDS: (the function that sends a request and waits for its answer, the encoded requests)."""
    ids_RC = np.load(job.ids_file)
    http = HttpConnection(job.host, job.port)
    call = grpc.insecure_channel(job.grpc, options=[("grpc.max_send_message_length", -1)]).unary_unary(_METHOD)
    return {
        "http_binary": (http.send, [encode_binary_request(job, ids) for ids in ids_RC]),
        "grpc": (call, [encode_grpc_request(job, ids) for ids in ids_RC]),
        "http_json": (http.send, [encode_json_request(job, ids) for ids in ids_RC]),
    }


def main(job: Job) -> None:
    """Reads jobs from standard input and writes times to standard output until the input ends."""
    senders, turn = open_senders(job), 0
    for line in sys.stdin:
        kind, count = line.split()
        send, requests = senders[kind]
        taken_ms: list[float] = []
        for _ in range(int(count)):
            began = time.perf_counter()
            send(requests[turn % len(requests)])
            taken_ms.append(1e3 * (time.perf_counter() - began))
            turn += 1
        sys.stdout.write(json.dumps(taken_ms) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
