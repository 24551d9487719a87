"""The system as processes: real broker, `aif worker`, `aif serve`, a catalogue of 100 items and an untrained network.

One stage per module. Everything that a test waits for is a condition with a deadline.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from infra.demo.server import RankingServer
from infra.demo.stage import Stage
from infra.kafka.checkpoint_pointer import read_checkpoint_pointer
from infra.processes import Child, wait_until
from schemas.events import Behaviour, CheckpointRecord
from schemas.features import Feature, FeatureSchema, Kind, Scope
from schemas.ids import Id, IdKind
from schemas.index.control import ControlState
from schemas.model.spec import ModelSpec

ITEMS = 100
EMBEDDING_WIDTH = 8
WAIT_S = 60.0


def schema_of(id_kind: IdKind) -> FeatureSchema:
    return FeatureSchema(
        (
            Feature("category", Scope.ITEM, Kind.CATEGORICAL, buckets=20),
            Feature("price", Scope.ITEM, Kind.NUMERIC, default=1.0),
            Feature("stock", Scope.ITEM, Kind.NUMERIC, realtime=True),
            Feature("age", Scope.ITEM, Kind.NUMERIC, scale=10.0),
            Feature("image", Scope.ITEM, Kind.EMBEDDING, width=EMBEDDING_WIDTH),
            Feature("country", Scope.USER, Kind.CATEGORICAL, buckets=20),
        ),
        id_kind=id_kind,
        sim_category="category",
        bid="price",
        multimodal="image",
    )


class System(Stage):
    """A stage with the verbs of these tests."""

    def item_id(self, number: int) -> Id:
        return number if self.id_kind is IdKind.INT64 else f"sku-{number}-ü"

    def features(self, number: int, price: float | None = None) -> dict[str, Any]:
        return {"category": number % 7, "price": price or 1.0 + number / 10, "stock": number % 5, "age": number}

    def embedding(self, number: int) -> list[float]:
        return [float(x) for x in np.random.default_rng(number).standard_normal(EMBEDDING_WIDTH)]

    def publish_catalogue(self) -> None:
        with self.publisher() as publisher:
            for n in range(ITEMS):
                publisher.publish_new_item(self.item_id(n), self.embedding(n), self.features(n), 1)
            for user in range(5):
                publisher.publish_user(self.item_id(user), {"country": "UK"})
                for n in range(20):
                    publisher.publish_behaviour(Behaviour(user_id=self.item_id(user), item_id=self.item_id(n * 3 + user), time_ms=n))

    def write_checkpoint(self, name: str, seed: int) -> Path:
        import torch

        from schemas.model.checkpoint import write_checkpoint
        from schemas.model.lsh import make_w_hash
        from schemas.model.network import AifNetwork

        torch.manual_seed(seed)
        spec = ModelSpec(schema_of(self.id_kind), width=8, bridges=3, bridge_width=8, hash_bits=32, head_hidden=(16,), item_hidden=(16,))
        path = self.directory / "checkpoints" / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        write_checkpoint(path, AifNetwork(spec, make_w_hash(seed, spec.hash_bits, EMBEDDING_WIDTH)), f"model-{name}", {})
        return path

    def publish_checkpoint(self, path: Path, **changes: Any) -> int:
        """Publishes a pointer to a checkpoint file; `changes` override fields of the record. Returns the version it becomes."""
        record = CheckpointRecord(**{**read_checkpoint_pointer(path).model_dump(), **changes})
        with self.publisher() as publisher:
            return publisher.publish_checkpoint(record).result(WAIT_S).offset

    def start_worker(self) -> Child:
        return self.start("worker", "worker")

    def start_server(self) -> Child:
        return self.start("server", "serve", "--port", str(self.port))

    def wait_state(self, condition: Any, what: str) -> ControlState:
        wait_until(lambda: condition(self.control_state()), WAIT_S, what)
        return self.control.state

    def server(self) -> RankingServer:
        client = RankingServer(self.url)
        wait_until(client.is_ready, WAIT_S, "the server to be ready")
        return client

    def post(self, path: str, content: bytes | Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        reply = httpx.post(f"{self.url}{path}", content=body, headers={"content-type": "application/json"}, timeout=30)
        return reply.status_code, reply.json()


def open_system(directory: Path, bootstrap_servers: str, id_kind: IdKind = IdKind.INT64) -> System:
    directory.mkdir(parents=True, exist_ok=True)
    system = System(directory, id_kind, keep=True, external_bootstrap=bootstrap_servers)
    system.start_broker()
    return system


@pytest.fixture(scope="module", params=list(IdKind), ids=str)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[System]:
    """A system with one live version, in both kinds of ids."""
    system = open_system(
        tmp_path_factory.mktemp("system") / request.node.name.replace("[", "-").replace("]", "").replace("/", "-")[-40:],
        bootstrap_servers,
        request.param,
    )
    try:
        system.start_worker()
        system.start_server()
        system.publish_catalogue()
        system.publish_checkpoint(system.write_checkpoint("first", seed=1))
        system.server().close()
        yield system
    finally:
        system.stop()
