"""Triton through PyTriton: look-up of ids, gather of the same columns, the same products as the engine's floor, top 100; in NumPy, behind a server.

    python triton_peer.py FOLDER     ids.npy [I], column_*.npy [I, ...], requests.npy [R, C], layer_0.npy [X, H], layer_1.npy, ...

SimTier and the folding of the user are left out, in Triton's favour: NumPy has no fast form of them. Runs where `nvidia-pytriton` and numpy are
installed, on a Python with its shared library (Triton embeds it).
"""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as client
from answering import answer_lines
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

TOP_K = 100


def free_ports(count: int) -> list[int]:
    """Free ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def make_model(folder: Path, candidates: int) -> Callable[[list[Any]], list[dict[str, np.ndarray]]]:
    """The ranking as PyTriton calls it: a list of requests, each a dict of arrays."""
    ids = np.load(folder / "ids.npy")
    order = np.argsort(ids)
    ids_sorted = ids[order]
    columns = [np.load(path) for path in sorted(folder.glob("column_*.npy"))]
    layers = [np.load(path) for path in sorted(folder.glob("layer_*.npy"))]
    inputs_CX = np.random.default_rng(0).standard_normal((candidates, layers[0].shape[0])).astype(np.float32)

    def rank(asked_C: np.ndarray) -> dict[str, np.ndarray]:
        rows = order[np.searchsorted(ids_sorted, asked_C)]
        for column in columns:
            column.take(rows, axis=0)
        hidden = inputs_CX[: len(asked_C)]
        for layer in layers:
            hidden = np.maximum(hidden @ layer, 0)
        scores = hidden[:, 0]
        best = np.argpartition(-scores, min(TOP_K, len(scores) - 1))[:TOP_K]
        best = best[np.argsort(-scores[best])]
        return {"item_ids": asked_C[best], "scores": scores[best].astype(np.float32)}

    return lambda requests: [rank(request.data["item_ids"]) for request in requests]


def main(folder: Path) -> None:
    """Answers standard input until it ends."""
    requests_RC = np.load(folder / "requests.npy")
    http, grpc, metrics = free_ports(3)
    local = "127.0.0.1"
    config = TritonConfig(
        http_address=local, grpc_address=local, metrics_address=local, http_port=http, grpc_port=grpc, metrics_port=metrics
    )
    outputs = [Tensor(name="item_ids", dtype=np.int64, shape=(-1,)), Tensor(name="scores", dtype=np.float32, shape=(-1,))]
    with Triton(config=config) as server:
        model = make_model(folder, requests_RC.shape[1])
        server.bind("prerank", model, [Tensor(name="item_ids", dtype=np.int64, shape=(-1,))], outputs, config=ModelConfig(batching=False))
        server.run()
        with client.InferenceServerClient(f"{local}:{http}", network_timeout=60) as caller:
            answer_lines(lambda turn: infer_ms(caller, requests_RC[turn % len(requests_RC)]))


def infer_ms(caller: client.InferenceServerClient, ids_C: np.ndarray) -> float:
    """One request over HTTP with binary tensors."""
    tensor = client.InferInput("item_ids", [len(ids_C)], "INT64")
    tensor.set_data_from_numpy(ids_C)
    began = time.perf_counter()
    caller.infer("prerank", [tensor])
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
