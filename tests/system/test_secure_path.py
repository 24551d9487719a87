"""From a published event to a ranked answer over TLS and SCRAM, each role with the rights that docs/how-to/kafka-security.md grants it and no others."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.kafka.admin import end_offsets
from infra.kafka.dead_letters import dead_letter_topic
from infra.kafka.producer import open_producer
from infra.kafka.publisher import Publisher
from infra.processes import Child, wait_ready, wait_until
from lab.demo.stage import SHARDS, USER_PARTITIONS
from schemas.events import ImpressionRecord, ShownItem
from schemas.ids import IdKind
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, USER_BEHAVIOURS
from streams.training.topic_events import TopicEvents
from tests.infra.kafka.secure_broker import PASSWORD, SecureBroker, run_secure_broker
from tests.system.conftest import ITEMS, WAIT_S, System

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "kafka-security.md"
ROLES = {"worker": "worker", "serve": "server", "train": "trainer", "publish": "trainer"}  # of a command; the others are the operator's


def grant_documented_rights(broker: SecureBroker, prefix: str) -> set[str]:
    """Does what the guide's table says, for topics of this prefix. Returns the roles."""
    rows = re.findall(r"^\| (\w+) \| (TOPIC|GROUP) \| (\S+) \| ([A-Z_, ]+) \|$", GUIDE.read_text(), re.MULTILINE)
    roles = {role for role, *_ in rows}
    broker.add_users(*sorted(roles))
    for role, resource, name, operations in rows:
        broker.allow(role, resource, name.replace("aif.", prefix), *operations.split(", "))
    return roles


@dataclass
class SecureSystem(System):
    """Processes that log in by their role."""

    secured: SecureBroker | None = None
    role: str = "operator"

    @property
    def secure(self) -> SecureBroker:
        assert self.secured is not None
        return self.secured

    @property
    def bootstrap_servers(self) -> str:
        return str(self.secure.scram(self.role))

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "AIF_KAFKA_SECURITY__PROTOCOL": "SASL_SSL",
            "AIF_KAFKA_SECURITY__CA_FILE": str(self.secure.authority.file),
            "AIF_KAFKA_SECURITY__USERNAME": self.role,
            "AIF_KAFKA_SECURITY__PASSWORD_FILE": str(self.directory / "password"),
            "AIF_WORKER__APPLY_TOPICS": "false",
        }

    def start(self, name: str, *arguments: str) -> Child:
        self.role = ROLES.get(arguments[0], "operator")
        return super().start(name, *arguments)

    def publisher(self) -> Publisher:
        return Publisher(self.secure.scram("publisher"), self.topic_prefix, "test", SHARDS, USER_PARTITIONS, self.id_kind)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureSystem]:
    folder = tmp_path_factory.mktemp("secure")
    with run_secure_broker(folder) as broker:
        system = SecureSystem(folder, IdKind.INT64, keep=True, secured=broker)
        (folder / "password").write_text(PASSWORD)
        assert grant_documented_rights(broker, system.topic_prefix) == {"publisher", "worker", "server", "trainer", "operator"}
        system.warm_up()
        try:
            system.command("topics", "apply")
            child = system.start_worker()
            wait_ready(child, lambda: child.log_path.exists() and '"ready": true' in child.log_path.read_text(), WAIT_S)
            system.publish_catalogue()
            yield system
        finally:
            system.stop()


def rank(system: System, **fields: Any) -> dict[str, Any]:
    status, answer = system.post("/v1/prerank", {"user_id": 1, "item_ids": list(range(ITEMS)), "deadline_ms": 10_000, **fields})
    assert status == 200, answer
    return answer


def test_a_worker_with_the_documented_rights_applies_events(system: SecureSystem) -> None:
    deltas = f"{system.topic_prefix}{INDEX_DELTAS}"
    wait_until(lambda: sum(end_offsets(system.secure.scram("server"), deltas).values()) > 0, WAIT_S, "what the worker tells servers")


def test_a_worker_without_a_right_ends_and_names_it(system: SecureSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = system.topic_prefix
    system.secure.add_users("newcomer")
    system.secure.allow("newcomer", "TOPIC", f"{prefix}*", "DESCRIBE", "DESCRIBE_CONFIGS", "READ")
    monkeypatch.setitem(ROLES, "worker", "newcomer")
    folder = str(system.directory / "newcomer")
    log = system.command("worker", "--data-dir", folder, exit_code=78)
    assert f"User:newcomer, it may not write topic {prefix}dlq.item-features" in log and f"read group {prefix}shards" in log
    system.secure.allow("newcomer", "TOPIC", f"{prefix}*", "WRITE")
    system.secure.allow("newcomer", "GROUP", f"{prefix}shards", "DESCRIBE")
    log = system.command("worker", "--data-dir", folder, exit_code=78)
    assert f"it may not read group {prefix}shards; grant it the right" in log


def test_the_trainer_reads_what_it_learns_from(system: SecureSystem) -> None:
    log = TopicEvents(system.secure.scram("trainer"), system.topic_prefix, SHARDS, USER_PARTITIONS, IdKind.INT64)
    with system.publisher() as publisher:
        shown = [ShownItem(item_id=n, position=n, bid=1.0, clicked=n == 1) for n in range(2)]
        publisher.publish_impression(ImpressionRecord(request_id="r", user_id=1, time_ms=1_000, items=shown))
    events = log.read(log.ends())
    assert [len(found) for found in (events.impressions, events.users, events.behaviours)] == [1, 5, 100]


@pytest.mark.campaign
def test_a_published_event_reaches_an_answer(system: SecureSystem) -> None:
    system.start_server()
    system.command("publish", "checkpoint", str(system.write_checkpoint("first", seed=1)))
    system.server().close()
    answer = rank(system)
    assert len(answer["items"]) == ITEMS and answer["degraded"] == []
    with system.publisher() as publisher:
        publisher.publish_delete(8, 2)
    wait_until(lambda: len(rank(system)["items"]) == ITEMS - 1, WAIT_S, "the delete")
    with_rejects = (ITEM_FEATURES, USER_BEHAVIOURS)  # the worker's and the server's
    producer = open_producer(system.secure.scram("publisher"), WAIT_S)
    for topic in with_rejects:
        producer.produce(system.topic_prefix + topic, b"no JSON", partition=0)
    producer.flush(WAIT_S)
    letters = [f"{system.topic_prefix}{dead_letter_topic(topic)}" for topic in with_rejects]
    wait_until(lambda: all(end_offsets(system.secure.scram("operator"), name)[0] > 0 for name in letters), WAIT_S, "both dead letters")
    for command in (["status"], ["topics", "plan"], ["dlq", "list", "item-features"], ["doctor"]):
        assert "kafka_" not in system.command(*command)
