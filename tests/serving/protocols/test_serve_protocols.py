"""A server process with a real index, asked by what people have: a stock tritonclient over both ports, and curl."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from infra.processes import Child, wait_ready, wait_until
from serving.client import Client
from tests.serving.engine.samples import Version
from tests.serving.server_process import WAIT_S, publish_index, run_server

TOKEN = "a-token-of-enough-letters"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@dataclass
class Running:
    """A server process: its addresses and its version."""

    child: Child
    url: str
    grpc: str
    version: Version

    @property
    def client(self) -> Client:
        return Client(self.url, token=TOKEN)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("protocols")
    version, variables = publish_index(folder, bootstrap_servers, f"protocols-{os.getpid()}.")
    with run_server(folder, variables | {"AIF_SERVE__TOKEN": TOKEN, "AIF_SERVE__DRAIN_S": "10"}) as server:
        served = Running(server.child, server.url, server.grpc, version)
        with served.client as client:
            wait_ready(server.child, client.ready, WAIT_S)
        yield served


def ask(module: Any, address: str, items: list[int], **options: Any) -> Any:
    tensors = []
    for name, values in (("user_id", [1]), ("item_ids", items), ("top_k", [7])):
        tensors.append(module.InferInput(name, [len(values)], "INT64"))
        tensors[-1].set_data_from_numpy(np.array(values, np.int64))
    with module.InferenceServerClient(address) as client:
        assert client.is_server_ready(headers=dict(BEARER)) and client.is_model_ready("prerank", "5", headers=dict(BEARER))
        return client.infer("prerank", tensors, headers=dict(BEARER), timeout=20_000_000, **options)


def curl(running: Running, path: str, body: Any = None) -> tuple[int, Any]:
    command = ["curl", "-s", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {TOKEN}", running.url + path]
    sent = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    try:
        answer, _, status = subprocess.run([*command, *sent], capture_output=True, text=True, check=True).stdout.rpartition("\n")
    except FileNotFoundError:
        pytest.skip("curl is not installed")
    return int(status), json.loads(answer)


def test_a_stock_client_and_ours_get_the_same_ranking_over_both_ports(running: Running) -> None:
    items = [int(one) for one in running.version.ids[:40]]
    with running.client as client:
        wanted = client.rank(1, items, top_k=7, deadline_ms=20_000)
    assert len(wanted.items) == 7
    for module, address in ((triton_http, running.url.partition("//")[2]), (triton_grpc, running.grpc)):
        for version in ("", "5"):
            answer = ask(module, address, items, model_version=version)
            assert answer.as_numpy("item_ids").tolist() == [one.item_id for one in wanted.items]
            assert answer.as_numpy("scores").tolist() == [one.score for one in wanted.items]


def test_curl_is_enough(running: Running) -> None:
    items = [int(one) for one in running.version.ids[:5]]
    status, answer = curl(running, "/v1/rank", {"user_id": 1, "item_ids": items, "top_k": 2, "deadline_ms": 20_000})
    assert status == 200 and len(answer["items"]) == 2 and answer["version_token"].startswith("5.0-")
    tensors = [
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "item_ids", "datatype": "INT64", "shape": [5], "data": items},
    ]
    status, inferred = curl(running, "/v2/models/prerank/infer", {"inputs": tensors, "parameters": {"deadline_ms": 20_000}})
    ids, scores = inferred["outputs"]
    assert status == 200 and ids["data"][:2] == [one["item_id"] for one in answer["items"]] and len(scores["data"]) == 5
    assert inferred["parameters"]["version_token"] == answer["version_token"]
    status, stats = curl(running, "/v2/models/prerank/versions/5/stats")
    assert status == 200 and stats["model_stats"][0]["inference_count"] >= 1
    status, error = curl(running, "/v2/models/prerank/infer", {"inputs": tensors[:1]})
    assert status == 400 and error["error"].startswith("bad_request: input 'item_ids' is missing")
    status, document = curl(running, "/openapi.json")
    assert status == 200 and "/v1/rank" in document["paths"]


def test_sigterm_ends_both_ports_cleanly(running: Running) -> None:
    os.kill(running.child.pid, signal.SIGTERM)
    wait_until(lambda: not running.child.alive(), 30, "the server to end")
    assert running.child.process.wait() == 0, running.child.log_tail()
    assert TOKEN not in running.child.log_path.read_text()
