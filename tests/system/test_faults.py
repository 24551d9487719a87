"""What breaks, and what must happen: nothing lost, nothing doubled, the running version keeps serving, and the reason is said."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.index_parts import read_manifest
from infra.kafka.reader import read_topic
from infra.processes import wait_until
from schemas.ids import IdKind
from schemas.index.lifecycle import State
from tests.system.conftest import ITEMS, WAIT_S, System, open_system
from tests.system.test_whole_path import body, score


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[System]:
    one = open_system(tmp_path_factory.mktemp("faults") / "int64", bootstrap_servers)
    try:
        yield one
    finally:
        one.stop()


def test_a_worker_killed_in_the_middle_applies_every_event_once_and_the_version_goes_live(system: System) -> None:
    worker = system.start_worker()
    system.start_server()
    system.publish_catalogue()
    version = system.publish_checkpoint(system.write_checkpoint("first", seed=1))
    wait_until(lambda: bool(list((system.directory / "worker").rglob("CURRENT"))), WAIT_S, "the first shard to be opened")
    worker.process.send_signal(signal.SIGKILL)
    worker.kill()
    with system.publisher() as publisher:
        for n in range(ITEMS):
            publisher.publish_item(system.item_id(n), 2, system.features(n, price=2.0 + n))
    system.start_worker()
    system.wait_state(lambda s: s.current is not None and s.current.version == version, "the version to go live")
    system.server().close()
    manifest = read_manifest(system.control.store, system.control_state().current)  # type: ignore[arg-type]
    assert manifest.rows == ITEMS
    assert score(system, 3) is not None


def published_updates(system: System, topic: str) -> int:
    records = read_topic(system.bootstrap_servers, topic, prefix=system.topic_prefix)
    return sum(len(json.loads(r.value)["updates"]) for r in records if r.value)
