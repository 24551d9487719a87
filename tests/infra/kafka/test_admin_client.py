"""The client behind questions about the cluster."""

import gc
import time
import weakref

import pytest

from infra.garbage import collector_paused
from infra.kafka.admin_client import EndReader, KafkaAdmin
from schemas.errors import Unavailable
from tests.infra.kafka.empty_broker import open_empty_broker


def test_a_client_ends_with_its_last_reference_and_needs_no_collector() -> None:
    """A worker makes several a second, and its collector rarely runs: each one that waited for it held sockets and pipes."""
    gc.collect()
    with collector_paused():
        admin = KafkaAdmin("127.0.0.1:1")
        admin.client.poll(0)
        ended = weakref.ref(admin)
        del admin
        assert ended() is None


def test_a_reader_of_ends_that_was_told_of_no_broker_opens_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.kafka.admin_client.REOPEN_S", 0.5)
    with open_empty_broker("listed") as broker:
        broker.is_listed = False
        reader, until_s = EndReader(broker.bootstrap_servers), time.monotonic() + 60.0
        while broker.clients < 3:
            assert time.monotonic() < until_s
            with pytest.raises(Unavailable, match="kafka_unreachable"):
                reader.read("listed", 1)
