"""The client process of `aif bench rank`: sends ready bodies one after another, and says how long each answer took.

    python -m serving.bench.client JOB.json      lines "kind count" on standard input, lines of milliseconds (JSON) on standard output

A process of its own, as a client is: in the server's process it would take the interpreter from it. Bodies are made before the clock starts and
answers are read whole and not decoded, so that the time is the server's and the wire's. HTTP goes through a bare socket for the same reason.
Needs neither torch nor the engine.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from serving.core.infer_body import encode_infer_answer
from serving.core.tensors import Tensor, encode_raw
from serving.protocols.proto import open_inference_pb2 as pb

KINDS = ("http_binary", "grpc", "http_json")
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_INFER = "/v2/models/prerank/infer"
_PB: Any = pb


@dataclass(frozen=True)
class Job:
    """What to send where. `ids_file`: int64 array [requests, candidates]; `context`: numbers by feature; `request_id`: of call 1."""

    host: str
    port: int
    grpc: str
    ids_file: str
    user_id: int
    request_id: str
    top_k: int
    context: Mapping[str, int]

    def write(self, path: Path) -> None:
        """For the client process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        return cls(**json.loads(path.read_text()))


class HttpConnection:
    """One kept connection. `send` returns once the whole answer is read; anything but 200 ends the process with the answer."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        """Ends the connection."""
        self._reader.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        """One request and its answer."""
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
    """Over HTTP with binary tensors, in and out."""
    parameters = {"binary_data_output": True, **{f"context.{name}": value for name, value in job.context.items()}}
    tensors = request_tensors(job, ids_C)
    raw, length = encode_infer_answer({"parameters": parameters}, tensors, [True] * len(tensors))
    assert length is not None, "binary tensors have a header"
    header = raw[:length].replace(b'"outputs"', b'"inputs"')
    return encode_http(_INFER, header + raw[length:], len(header))


def encode_grpc_request(job: Job, ids_C: np.ndarray) -> bytes:
    """A ModelInferRequest."""
    tensors = request_tensors(job, ids_C)
    message = _PB.ModelInferRequest(
        model_name="prerank",
        inputs=[{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors],
        raw_input_contents=[encode_raw(one) for one in tensors],
    )
    for name, value in job.context.items():
        message.parameters[f"context.{name}"].int64_param = value
    return bytes(message.SerializeToString())


def encode_json_request(job: Job, ids_C: np.ndarray) -> bytes:
    """A body of /v1/rank; ids as plain numbers."""
    fields = {"user_id": job.user_id, "request_id": job.request_id, "top_k": job.top_k, "context": dict(job.context)}
    return encode_http("/v1/rank", json.dumps({**fields, "item_ids": ids_C.tolist()}).encode())


def open_senders(job: Job) -> Mapping[str, tuple[Callable[[bytes], object], Sequence[bytes]]]:
    """Kind → (how to send, the ready requests)."""
    ids_RC = np.load(job.ids_file)
    http = HttpConnection(job.host, job.port)
    call = grpc.insecure_channel(job.grpc, options=[("grpc.max_send_message_length", -1)]).unary_unary(_METHOD)
    return {
        "http_binary": (http.send, [encode_binary_request(job, ids) for ids in ids_RC]),
        "grpc": (call, [encode_grpc_request(job, ids) for ids in ids_RC]),
        "http_json": (http.send, [encode_json_request(job, ids) for ids in ids_RC]),
    }


def main(job: Job) -> None:
    """Answers standard input until it ends."""
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
