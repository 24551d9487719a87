"""The client behind questions about the cluster."""

import gc
import weakref

from infra.garbage import collector_paused
from infra.kafka.admin_client import KafkaAdmin


def test_a_client_ends_with_its_last_reference_and_needs_no_collector() -> None:
    """A worker makes several a second, and its collector rarely runs: each one that waited for it held sockets and pipes."""
    gc.collect()
    with collector_paused():
        admin = KafkaAdmin("127.0.0.1:1")
        admin.client.poll(0)
        ended = weakref.ref(admin)
        del admin
        assert ended() is None
