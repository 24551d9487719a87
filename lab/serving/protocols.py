"""The part of `aif bench rank` about protocols: the same request over HTTP with binary tensors, gRPC and JSON, compared with the engine alone.

Both ports are opened over the bench's engine, wired as in `aif serve` (event loop and engine in one process); a client process (client.py) and the engine
take turns. The user half is computed once, by call 1 over HTTP with a history. Every request finds it by its request id, which is checked before measuring.
"""

import asyncio
import contextlib
import json
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.figures import Figures
from lab.load import Inputs, Target, encode_inferences, to_tensors
from lab.serving.child import LineChild
from lab.serving.server import open_bench_server
from lab.serving.world import CONTEXT, PROFILE, TOP_K, Case, Plan, RankWorld, engine_case, time_calls
from schemas.ids import IdKind, encode_wire_id
from schemas.limits import CANDIDATES_MAX, DEADLINE_MS_MAX
from schemas.requests import InlineBehaviour
from schemas.users import BehaviourEvent
from serving.calls.state_pool import StatePool
from serving.client import Client
from serving.core.tensors import encode_raw
from serving.engine.loop.engine import Engine
from serving.protocols.grpc_api import GrpcApi
from serving.protocols.grpc_listener import GrpcListener
from serving.protocols.inference_messages import pb
from serving.settings import ServeSection
from serving.users.user_store import StoreBounds, ViewIdentity, open_user_store

KINDS = ("http_binary", "grpc", "http_json")
_LENGTH = 1_000  # behaviours of the user
_REQUEST = "bench"
_USER = 1
_OPEN_S_MAX = 30.0
_WARM = 10  # calls of each kind before the first turn


@dataclass(frozen=True, slots=True)
class Ports:
    """The addresses of the bench's server."""

    host: str
    port: int
    grpc: str

    @property
    def url(self) -> str:
        """The base URL for an HTTP client."""
        return f"http://{self.host}:{self.port}"


def measure_protocols(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds `http_binary_p50_ms_N`, `grpc_p50_ms_N` and `http_json_p50_ms_N` for every number N of candidates, and each one's ratio to the engine's
    median of the same turns."""
    history = world.history(_LENGTH)
    with open_ports(world.engine) as ports:
        _make_user(ports, history)
        state = world.user(history)
        for candidates in plan.candidates:
            requests = world.requests(candidates)
            with open_client(ports, requests) as ask:
                taken = _time_in_turns(engine_case(world, state, requests), ask, plan.turns, plan.calls_of(candidates))
            engine_ms = float(np.median(taken.pop("engine")))
            for kind in KINDS:
                p50_ms = float(np.median(taken[kind]))
                figures.add(f"{kind}_p50_ms_{candidates}", p50_ms)
                figures.add(f"{kind}_over_engine_{candidates}", p50_ms / engine_ms)


def _time_in_turns(engine: Case, ask: Callable[[str, int], list[float]], turns: int, calls: int) -> dict[str, list[float]]:
    """Milliseconds of every call, by name; the engine and the protocols take turns with the same requests."""
    taken: dict[str, list[float]] = {name: [] for name in ("engine", *KINDS)}
    for kind in KINDS:
        ask(kind, _WARM)
    for _ in range(turns):
        taken["engine"] += time_calls(engine, calls)
        for kind in KINDS:
            taken[kind] += ask(kind, calls)
    return taken


def _make_user(ports: Ports, history: Sequence[BehaviourEvent]) -> None:
    """Sends call 1. Raises RuntimeError if call 2 does not find its state, because the figures would mean something else then."""
    behaviours = [InlineBehaviour(item_id=encode_wire_id(one.item_id), kind=one.kind, time_ms=one.time_ms) for one in history]
    with Client(ports.url) as client:
        client.user(_USER, request_id=_REQUEST, features=PROFILE, behaviours=behaviours, deadline_ms=DEADLINE_MS_MAX)
        found = client.rank(_USER, [history[0].item_id], request_id=_REQUEST)
    if found.rung != "cached":
        raise RuntimeError(f"call 2 answered from rung {found.rung!r}, expected the state of call 1")


def encode_requests(ports: Ports, ids_RC: Sequence[np.ndarray]) -> Mapping[str, Sequence[bytes]]:
    """The requests of the user for each list of candidates, by kind: those over HTTP whole, over gRPC a ModelInferRequest."""
    inputs: list[Inputs] = [
        {"user_id": np.array([_USER]), "item_ids": ids_C, "request_id": _REQUEST, "top_k": np.array([TOP_K])} for ids_C in ids_RC
    ]
    context = {f"context.{name}": value for name, value in CONTEXT.items()}
    target, bodies = encode_inferences(ports.url, {"parameters": {"binary_data_output": True, **context}}, inputs)
    json_target, plain = Target(ports.url, "/v1/rank"), {"user_id": _USER, "request_id": _REQUEST, "top_k": TOP_K, "context": CONTEXT}
    binary = [target.encode(body) for body in bodies]
    texts = [json_target.encode(json.dumps({**plain, "item_ids": ids_C.tolist()}).encode()) for ids_C in ids_RC]
    return dict(zip(KINDS, (binary, [_encode_grpc(one, context) for one in inputs], texts), strict=True))


def _encode_grpc(inputs: Inputs, context: Mapping[str, int]) -> bytes:
    tensors = to_tensors(inputs)
    message = pb.ModelInferRequest(
        model_name="prerank",
        inputs=[{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors],
        raw_input_contents=[encode_raw(one) for one in tensors],
    )
    for name, value in context.items():
        message.parameters[name].int64_param = value
    return bytes(message.SerializeToString())


@contextlib.contextmanager
def open_client(ports: Ports, requests: Sequence[np.ndarray]) -> Iterator[Callable[[str, int], list[float]]]:
    """A function `ask(kind, count)` that returns the milliseconds of that many calls, sent by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.write_bytes(pickle.dumps((ports.host, ports.port, ports.grpc, encode_requests(ports, requests))))
        with LineChild([sys.executable, "-m", "lab.serving.client", str(job)]) as child:
            yield lambda kind, count: json.loads(child.ask(f"{kind} {count}"))


@contextlib.contextmanager
def open_ports(engine: Engine) -> Iterator[Ports]:
    """Opens both ports of a server over an engine in a thread of this process, wired as in `aif serve`, without an index or a broker."""
    opened, stop, found = threading.Event(), threading.Event(), dict[str, Any]()

    def tell(ports: Ports) -> None:
        found["ports"] = ports
        opened.set()

    def run(folder: str) -> None:
        asyncio.run(_serve(engine, Path(folder), tell, stop))

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=run, args=(folder,), name="bench-ports", daemon=True)
        thread.start()
        try:
            if not opened.wait(_OPEN_S_MAX):
                raise RuntimeError(f"the bench's server did not open its ports within {_OPEN_S_MAX:g} s")
            yield found["ports"]
        finally:
            stop.set()
            thread.join()


async def _serve(engine: Engine, folder: Path, opened: Callable[[Ports], object], stop: threading.Event) -> None:
    settings = ServeSection(port=0, candidates_max=CANDIDATES_MAX, deadline_ms=DEADLINE_MS_MAX, idle_s=3600)
    store = open_user_store(folder / "users", ViewIdentity("bench", "", IdKind.INT64, 1), StoreBounds())
    async with open_bench_server(engine, store, StatePool(16, 1 << 30), settings) as (listener, front):
        grpc_listener = GrpcListener(GrpcApi(front), front, settings.host, 0)
        await grpc_listener.open()
        opened(Ports(settings.host, listener.port, grpc_listener.address))
        await asyncio.to_thread(stop.wait)
        await grpc_listener.close(1.0)
    await asyncio.to_thread(store.close)
