"""The system as processes: real broker, `aif worker`, `aif serve`, a catalogue of 100 items and an untrained network.

One stage per module, each with topics of its own. Everything that a test waits for is a condition with a deadline.
"""

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from infra.kafka.dead_letters import DeadLetterSource, dead_letter_topic, decode_dead_letter
from infra.kafka.reader import SourceRecord, read_topic
from infra.processes import Child, wait_ready, wait_until
from lab.demo.stage import Stage
from lab.plain_client import PlainClient
from schemas.errors import Unavailable
from schemas.events import Behaviour, CheckpointRecord
from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import Id, IdKind
from schemas.index.control import ControlState
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.spec import ModelSpec
from tests import plain_http
from tests.checkpoint_records import point_to

ITEMS = 100
EMBEDDING_WIDTH = 8
WAIT_S = 120.0


def schema_of(id_kind: IdKind, embedding_width: int = EMBEDDING_WIDTH, *more: Feature) -> FeatureSchema:
    return FeatureSchema(
        (
            Feature("category", Scope.ITEM, CATEGORICAL, buckets=20),
            Feature("price", Scope.ITEM, NUMERIC, default=1.0),
            Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
            Feature("age", Scope.ITEM, NUMERIC, scale=10.0),
            Feature("image", Scope.ITEM, EMBEDDING, width=embedding_width),
            Feature("country", Scope.USER, CATEGORICAL, buckets=20),
            *more,
        ),
        id_kind=id_kind,
        sim_category="category",
        bid="price",
        multimodal="image",
    )


class System(Stage):
    """A stage with the verbs of these tests."""

    settings: Mapping[str, str] = {}  # more of the processes' environment

    def __post_init__(self) -> None:
        super().__post_init__()
        self._prefix = f"test-{uuid.uuid4().hex[:12]}."

    @property
    def topic_prefix(self) -> str:
        return self._prefix

    def environment(self) -> dict[str, str]:
        roots = {"AIF_BUILD__CHECKPOINT_ROOTS": json.dumps([str(self.checkpoint_directory)])}
        # After a kill -9 the group waits for the dead member's session: the shortest that is allowed.
        return {
            **super().environment(),
            "AIF_WORKER__SESSION_TIMEOUT_S": "6",
            "AIF_BUILD__CHECKPOINT_FETCH_S_MAX": "1",
            **roots,
            **self.settings,
        }

    def item_id(self, number: int) -> Id:
        return number if self.id_kind is IdKind.INT64 else f"sku-{number}-ü"

    def features(self, number: int, price: float | None = None) -> dict[str, Any]:
        return {"category": number % 7, "price": price or 1.0 + number / 10, "stock": number % 5, "age": number}

    def embedding(self, number: int, width: int = EMBEDDING_WIDTH) -> list[float]:
        return [float(x) for x in np.random.default_rng(number).standard_normal(width)]

    def publish_catalogue(self) -> None:
        with self.publisher() as publisher:
            for n in range(ITEMS):
                publisher.publish_new_item(self.item_id(n), self.embedding(n), self.features(n), 1)
            for user in range(5):
                publisher.publish_user(self.item_id(user), {"country": "UK"})
                for n in range(20):
                    publisher.publish_behaviour(Behaviour(user_id=self.item_id(user), item_id=self.item_id(n * 3 + user), time_ms=n))

    def write_checkpoint(self, name: str, seed: int, spec: ModelSpec | None = None) -> Path:
        import torch

        from schemas.model.checkpoint import write_checkpoint
        from schemas.model.lsh import make_w_hash
        from schemas.model.network import AifNetwork

        torch.manual_seed(seed)
        spec = spec or ModelSpec(
            schema_of(self.id_kind), width=8, bridges=3, bridge_width=8, hash_bits=32, head_hidden=(16,), item_hidden=(16,)
        )
        path = self.directory / "checkpoints" / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        write_checkpoint(path, AifNetwork(spec, make_w_hash(seed, spec.hash_bits, spec.schema.mm_width)), f"model-{name}", {})
        return path

    def publish_checkpoint(self, path: Path, **changes: Any) -> int:
        """Publishes a pointer to a checkpoint file; `changes` override fields of the record. Returns the version it becomes."""
        record = CheckpointRecord(**{**point_to(path).model_dump(by_alias=True), **changes})
        with self.publisher() as publisher:
            return publisher.publish_checkpoint(record).result(WAIT_S).offset

    def produce(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None) -> SourceRecord:
        """Any bytes, as a foreign producer may send them."""
        sent: list[int] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "message.max.bytes": 8 << 20})
        producer.produce(
            self.topic_prefix + topic, value, key, partition, on_delivery=lambda error, m: sent.append(-1 if error else m.offset())
        )
        assert producer.flush(WAIT_S) == 0 and sent[0] >= 0, f"the broker did not take a record of {len(value or b'')} bytes"
        return SourceRecord(topic, partition, sent[0], key, value)

    def read(self, topic: str) -> list[SourceRecord]:
        """Everything in a topic."""
        return list(read_topic(self.bootstrap_servers, topic, prefix=self.topic_prefix))

    def dead_letters(self, topic: str) -> list[tuple[DeadLetterSource, SourceRecord]]:
        """Everything in a topic's dead-letter topic, with what its headers say."""
        return [(decode_dead_letter(list(r.headers)), r) for r in self.read(dead_letter_topic(topic))]

    def start_worker(self) -> Child:
        return self.start("worker", "worker")

    def start_server(self) -> Child:
        return self.start("server", "serve", "--port", str(self.port))

    def child(self, name: str) -> Child:
        """The newest process of that name."""
        return next(child for child in reversed(self.children) if child.name == name)

    def kill_hard(self, name: str) -> None:
        """kill -9 of the one process; what it started has to notice by itself."""
        child = self.child(name)
        os.kill(child.pid, signal.SIGKILL)
        child.process.wait()
        self.children.remove(child)

    def stop_worker(self) -> None:
        """A clean stop."""
        child = self.child("worker")
        os.kill(child.pid, signal.SIGTERM)
        assert child.process.wait(WAIT_S) == 0, child.log_tail()
        self.children.remove(child)

    def status(self) -> dict[str, Any]:
        """What the server says of itself."""
        reply: dict[str, Any] = plain_http.get(f"{self.url}/v1/status", timeout=30).json()
        return reply

    def command(self, *arguments: str, exit_code: int = 0) -> str:
        """Output of an `aif` command that ends with that code."""
        child = self.start(f"command-{len(self.children)}-{uuid.uuid4().hex[:6]}", *arguments)
        assert child.process.wait(WAIT_S) == exit_code, child.log_tail()
        return child.log_path.read_text()

    def go_live(self, name: str, seed: int) -> int:
        """Publishes a good checkpoint and waits until the server answers from its version."""
        version = self.publish_checkpoint(self.write_checkpoint(name, seed))
        self.wait_served(version)
        return version

    def wait_served(self, version: int) -> None:
        with self.noting_logs():
            wait_until(lambda: (self.status()["version_token"] or "").startswith(f"{version}."), WAIT_S, f"version {version} to be served")

    def wait_state(self, condition: Any, what: str) -> ControlState:
        with self.noting_logs():
            wait_until(lambda: condition(self.control_state()), WAIT_S, what)
        return self.control.state

    def server(self) -> PlainClient:
        client = PlainClient(self.url)
        with self.noting_logs():
            wait_ready(self.child("server"), client.is_ready, WAIT_S)
        return client

    @contextlib.contextmanager
    def noting_logs(self) -> Iterator[None]:
        """An error names how each process is and how its log ends."""
        try:
            yield
        except Unavailable as error:
            error.add_note("\n".join(f"--- {child.name}, alive: {child.alive()}: {child.log_tail()}" for child in self.children))
            raise

    def post(self, path: str, content: bytes | Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        reply = plain_http.post(f"{self.url}{path}", content=body, headers={"content-type": "application/json"}, timeout=30)
        return reply.status_code, reply.json()


def open_system(directory: Path, bootstrap_servers: str, id_kind: IdKind = IdKind.INT64) -> System:
    directory.mkdir(parents=True, exist_ok=True)
    system = System(directory, id_kind, keep=True, external_bootstrap=bootstrap_servers)
    system.start_broker()
    system.warm_up()
    return system


def start_whole(system: System) -> None:
    """Worker, server, the catalogue and a first version that answers."""
    system.start_worker()
    system.start_server()
    system.publish_catalogue()
    system.publish_checkpoint(system.write_checkpoint("first", seed=1))
    system.server().close()


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[System]:
    """A system with one live version and ids of whole numbers, for every module that leaves it serving; text ids: test_worker_killed.py."""
    system = open_system(tmp_path_factory.mktemp("system"), bootstrap_servers)
    try:
        start_whole(system)
        yield system
    finally:
        system.stop()
