"""A server that starts while the broker, the deltas or the index store are away: it answers from its present data, says so, and catches up by itself."""

import shutil
from pathlib import Path

import pytest

from infra.kafka.publisher import Publisher
from infra.processes import wait_until
from infra.settings import load_settings
from schemas.events import Behaviour
from serving.client import Client
from serving.settings import ServerSettings
from tests.infra.kafka.late_broker import LateBroker
from tests.serving.engine.samples import item_id
from tests.serving.index_samples import publish_version
from tests.serving.test_server import WAIT_S, Served, run_server, serve, write_identity

USER = 7


def settings_of(folder: Path, bootstrap: str, prefix: str) -> ServerSettings:
    flags = {
        "kafka": {"bootstrap_servers": bootstrap, "topic_prefix": prefix},
        "index": {"store": str(folder / "store")},
        "serve": {"port": 0, "deadline_ms": 30_000},
        "engine": {"device": "cpu", "poll_s": 0.02},
        "users": {"data_dir": folder / "users"},
    }
    return load_settings(ServerSettings, flags, {})


@pytest.fixture
def served(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> Served:
    """What a server has left that served version 1 and knew a user."""
    with serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
        write_identity(served.log, served.versions[1])
        served.publish(1)
        served.client.wait_ready(WAIT_S)
        publish_behaviours(served, 1)
        wait_until(lambda: served.client.user(USER).behaviours == 1, WAIT_S, "the behaviour")
        wait_until(lambda: served.server.user_follower._store.state.seen_ms > 0, WAIT_S, "the view to be noted as read")
        assert served.client.status()["degraded"] == {} and served.client.status()["broker_silent_s"] < 30
    return served


def publish_behaviours(served: Served, count: int) -> None:
    with Publisher(served.bootstrap, served.prefix, "test", 2, 1, served.kind) as publisher:
        publisher.publish_behaviours(Behaviour(user_id=USER, item_id=item_id(served.kind, 0), time_ms=n) for n in range(count))
        publisher.flush()


def rank(client: Client, served: Served):
    return client.rank(USER, [item_id(served.kind, i) for i in range(20)])


def test_without_the_broker_it_answers_from_the_sealed_files_and_its_view_of_users_and_catches_up_later(
    served: Served, tmp_path: Path
) -> None:
    with (
        LateBroker(served.bootstrap) as broker,
        run_server(settings_of(tmp_path, broker.address, served.prefix)) as (_, url),
        Client(url) as client,
    ):
        client.wait_ready(WAIT_S)
        answer, status = rank(client, served), client.status()
        assert {"rows_behind", "users_behind"} <= set(answer.degraded) and "cold_user" not in answer.degraded
        assert answer.version_token.startswith("1.") and client.user(USER).behaviours == 1
        assert "kafka_unreachable" in status["degraded"]["rows_behind"] and " s old" in status["degraded"]["users_behind"]
        served.change(1, 3)
        publish_behaviours(served, 2)
        broker.arrive()
        wait_until(lambda: client.status()["degraded"] == {}, WAIT_S, "it to catch up")
        wait_until(lambda: client.user(USER).behaviours == 3, WAIT_S, "the new behaviours")
        later = rank(client, served)
        assert not {"rows_behind", "users_behind"} & set(later.degraded)
        assert later.freshness.watermark != answer.freshness.watermark


def test_with_deltas_that_are_gone_it_answers_from_the_sealed_files_and_says_why(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    with serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
        write_identity(served.log, served.versions[1])
        publish_version(served.store, served.log, served.versions[1], 1, positions=(0, 99))
        served.client.wait_ready(WAIT_S)
        assert "rows_behind" in rank(served.client, served).degraded
        assert "_gone" in served.client.status()["degraded"]["rows_behind"]
        wait_until(lambda: "delta_position_gone" in served.client.status()["last_error"], WAIT_S, "the next attempt")
        served.publish(2)
        wait_until(lambda: served.client.status()["degraded"] == {}, WAIT_S, "a version that can follow its deltas")


def test_an_index_store_that_fails_at_the_start_is_named_and_tried_again(served: Served, tmp_path: Path) -> None:
    entry = tmp_path / "store" / "control" / "000000000"
    shutil.move(entry, tmp_path / "aside")
    entry.mkdir()  # reading it fails
    with run_server(settings_of(tmp_path, served.bootstrap, served.prefix)) as (_, url), Client(url) as client:
        wait_until(lambda: "000000000" in client.status()["last_error"], WAIT_S, "the error")
        assert client.status()["ready"] is False and "000000000" in client.status()["not_ready_because"]
        entry.rmdir()
        shutil.move(tmp_path / "aside", entry)
        client.wait_ready(WAIT_S)
        assert rank(client, served).items
