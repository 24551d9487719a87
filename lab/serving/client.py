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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import grpc
import numpy as np

from lab.load import Inputs, Target, encode_inferences, to_tensors
from serving.core.tensors import encode_raw
from serving.protocols.messages import pb

KINDS = ("http_binary", "grpc", "http_json")
_METHOD = "/inference.GRPCInferenceService/ModelInfer"


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

    @property
    def url(self) -> str:
        """The base URL of the HTTP port."""
        return f"http://{self.host}:{self.port}"

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


def request_inputs(job: Job, ids_C: np.ndarray) -> Inputs:
    """The inputs of one request."""
    return {"user_id": np.array([job.user_id]), "item_ids": ids_C, "request_id": job.request_id, "top_k": np.array([job.top_k])}


def encode_binary_requests(job: Job, ids_RC: Iterable[np.ndarray]) -> list[bytes]:
    """The HTTP requests with binary tensors, which ask for binary tensors."""
    parameters = {"binary_data_output": True, **{f"context.{name}": value for name, value in job.context.items()}}
    target, bodies = encode_inferences(job.url, {"parameters": parameters}, [request_inputs(job, ids_C) for ids_C in ids_RC])
    return [target.encode(body) for body in bodies]


def encode_grpc_request(job: Job, ids_C: np.ndarray) -> bytes:
    """The bytes of a ModelInferRequest."""
    tensors = to_tensors(request_inputs(job, ids_C))
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
    return Target(job.url, "/v1/rank").encode(json.dumps({**fields, "item_ids": ids_C.tolist()}).encode())


def open_senders(job: Job) -> Mapping[str, tuple[Callable[[bytes], object], Sequence[bytes]]]:
    """For each kind of KINDS: (the function that sends a request and waits for its answer, the encoded requests)."""
    ids_RC = np.load(job.ids_file)
    http = HttpConnection(job.host, job.port)
    call = grpc.insecure_channel(job.grpc, options=[("grpc.max_send_message_length", -1)]).unary_unary(_METHOD)
    return {
        "http_binary": (http.send, encode_binary_requests(job, ids_RC)),
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
