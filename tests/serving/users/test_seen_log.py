"""When the log counts as read, by which a start decides whether the stored view of users still fits it."""

import time
from pathlib import Path

import pytest

from infra.kafka.admin import apply_topics
from infra.kafka.admin_client import PartitionWatch
from infra.kafka.publisher import Publisher
from infra.processes import wait_until
from schemas.errors import Unavailable
from schemas.events import Behaviour
from schemas.ids import IdKind
from serving.users import user_follower
from serving.users.user_follower import UserFollower
from tests.serving.front import open_view
from tests.serving.users.test_user_follower import AheadClock, follow
from tests.serving.users.test_user_store import M


def test_that_the_log_was_read_is_noted_while_records_come_without_a_pause(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was noted in pauses alone. After half a day without one, the next start called the view too old and built it again."""
    monkeypatch.setattr(user_follower, "_SEEN_EVERY_S", 0.0)
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = follow(store, bootstrap_servers, topic_prefix)
    monkeypatch.setattr(UserFollower, "_step", lambda *_: 1)
    time.sleep(0.2)
    before = store.state.seen_ms
    wait_until(lambda: store.state.seen_ms > before, 20, "the log to be noted as read")
    follower.close()


def test_a_view_that_missed_half_a_day_of_the_log_is_built_again_when_the_broker_answers(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was noted as read while no broker answered. Profiles deleted meanwhile can be gone from it, and stayed in the view."""
    monkeypatch.setattr(user_follower, "_SEEN_EVERY_S", 0.0)
    monkeypatch.setattr(user_follower, "_LOOK_EVERY_S", 0.1)
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    store, clock = open_view(tmp_path, IdKind.INT64, M), AheadClock()
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, IdKind.INT64) as publisher:
        publisher.publish_behaviours([Behaviour(user_id=1, item_id=1, time_ms=1)])
    follower = follow(store, bootstrap_servers, topic_prefix, clock)

    def refuse(*_: object) -> int:
        raise Unavailable("kafka_unreachable", "away")

    with monkeypatch.context() as away:
        away.setattr(PartitionWatch, "count", refuse)
        time.sleep(0.5)
        clock.ahead_s = 13 * 3_600.0
        time.sleep(0.5)
        read_ms = store.state.seen_ms
        time.sleep(0.5)
        assert store.state.seen_ms == read_ms, "nothing was read"
        assert not follower.rebuilt_because
    wait_until(lambda: follower.rebuilt_because.startswith("too_old") and follower.ready, 20, "the view to be built again")
    assert len(store.find(1).behaviours) == 1
    follower.close()
