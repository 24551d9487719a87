"""The follower of the users' topics: a server's view of users is kept up with the log, whatever becomes of log, disk and server."""

import os
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from infra import failpoints
from infra.clock import SystemClock
from infra.kafka.admin import GROW, apply_topics, describe_index
from infra.kafka.admin_client import PartitionWatch
from infra.kafka.publisher import Publisher
from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from infra.processes import free_ports, wait_until
from infra.rocks import Database
from schemas.errors import Unavailable
from schemas.events import Behaviour
from schemas.ids import IdKind, partition_of
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, USER_BEHAVIOURS, USER_FEATURES
from serving.calls.state_pool import StatePool
from serving.calls.user_halves import Users
from serving.users import user_follower
from serving.users.user_follower import UserFollower
from serving.users.user_store import UserStore
from tests.infra.kafka.deleted_topics import delete_topics
from tests.infra.kafka.transactions import open_transactional, send
from tests.serving.front import open_view
from tests.serving.users.test_user_store import M, behaviours, home


class AheadClock(SystemClock):
    """This machine's, so many seconds ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def now_ms(self) -> int:
        return super().now_ms() + int(1_000 * self.ahead_s)


def follow(store: UserStore, bootstrap: str, prefix: str, clock: AheadClock | None = None) -> UserFollower:
    follower = UserFollower(bootstrap, prefix, store, Metrics(), clock)
    follower.start()
    wait_until(lambda: follower.ready, 30, f"the view to be caught up ({follower.last_error})")
    return follower


def test_a_restart_reads_only_what_is_new_and_another_log_makes_the_view_again(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)

    def publish(*times: int) -> None:
        with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, IdKind.INT64) as publisher:
            publisher.publish_behaviours(Behaviour(user_id=1, item_id=1, time_ms=t) for t in times)
            publisher.flush()

    def known_times() -> list[int]:
        store = open_view(tmp_path, IdKind.INT64, M)
        follower = follow(store, bootstrap_servers, topic_prefix)
        times = [b.time_ms for b in store.find(1).behaviours]
        reasons.append(follower.rebuilt_because.partition(":")[0])
        wait_until(lambda: store.state.seen_ms > 0, 20, "the end of the log to be noted")
        follower.close()
        return times

    reasons: list[str] = []
    publish(1, 2)
    assert known_times() == [1, 2]
    publish(3)
    assert known_times() == [1, 2, 3]
    names = [topic_prefix + topic for topic in (USER_BEHAVIOURS, USER_FEATURES)]
    delete_topics(bootstrap_servers, names)
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    publish(9)
    assert known_times() == [9]
    assert reasons == ["", "", "other_topic"]


def test_a_view_that_was_stopped_before_the_end_of_the_log_goes_on(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was stopped in its first seconds once began again, because the view was "last up to date 498725 h ago"."""
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    monkeypatch.setattr(UserFollower, "_step", lambda *_: False)  # it comes nowhere
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, IdKind.INT64) as publisher:
        publisher.publish_behaviours([Behaviour(user_id=1, item_id=1, time_ms=1)])
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = UserFollower(bootstrap_servers, topic_prefix, store, Metrics())
    follower.start()
    wait_until(lambda: store.state.seen_ms > 0, 20, "its begin to be noted")
    follower.close()
    assert not follower.ready and follower.behind.endswith(" s old; its topics are still being read")


def test_another_cluster_than_the_indexs_is_named_and_the_view_is_kept_for_when_its_own_is_back(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    store, of_index = open_view(tmp_path, IdKind.INT64, M), "of the index's cluster"
    store.note_seen(SystemClock().now_ms(), dict.fromkeys((USER_BEHAVIOURS, USER_FEATURES), of_index))
    kept = store.state
    follower = UserFollower(bootstrap_servers, topic_prefix, store, Metrics(), index_topic_ids={ITEM_FEATURES: of_index})
    follower.start()
    wait_until(lambda: of_index in follower.last_error, 20, "the reason")
    assert not follower.ready and not follower.rebuilt_because and store.state == kept
    follower.close()


def test_partitions_that_somebody_adds_are_followed_so_that_nothing_in_them_vanishes(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that computes the partition from their number puts users where they do not belong: refused by name, and those that stay are known."""
    monkeypatch.setattr("serving.users.user_follower._LOOK_EVERY_S", 0.1)
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = follow(store, bootstrap_servers, topic_prefix)
    apply_topics(bootstrap_servers, topic_prefix, 1, M + 1, allow=[GROW])
    moved = next(user for user in range(50) if partition_of(user, M + 1) == M)
    stays = next(user for user in range(50) if partition_of(user, M + 1) == home(user))
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M + 1, IdKind.INT64) as publisher:
        publisher.publish_behaviours(Behaviour(user_id=user, item_id=1, time_ms=1) for user in (moved, stays))
        publisher.flush()
    wait_until(lambda: store.skipped == 1 and len(store.find(stays).behaviours) == 1, 20, "both to be read")
    assert follower.ready and store.state.next_offsets[USER_BEHAVIOURS][M] == 1
    assert "user-behaviours has 4 partitions, the index has 3 user partitions" in caplog.text
    follower.close()


def test_how_long_the_broker_is_silent_is_told_also_where_nothing_is_published(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    clock, asked = AheadClock(), list[object]()
    follower = follow(open_view(tmp_path, IdKind.INT64, M), bootstrap_servers, topic_prefix, clock)
    clock.ahead_s = 1_000.0  # of an idle catalogue
    wait_until(lambda: follower.silent_s() < 500, 20, "the broker to be asked")

    def count(*_: object) -> int:
        asked.append(None)
        raise Unavailable("kafka_unreachable", "away")

    monkeypatch.setattr(PartitionWatch, "count", count)
    clock.ahead_s = 2_000.0
    wait_until(lambda: len(asked) > 0, 20, "it to be asked again")
    assert follower.silent_s() > 500
    follower.close()


def test_a_follower_that_is_closed_does_not_wait_for_a_broker_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_follower, "CLOSE_S_MAX", 0.1)
    away = f"127.0.0.1:{free_ports(1)[0]}"
    follower = UserFollower(away, "", open_view(tmp_path, IdKind.INT64, M), Metrics())
    follower.start()
    assert follower.behind == "there is no view of users yet; the broker has not answered since the start, is it up?"
    follower.close()
    assert follower._thread.is_alive(), "it is still asking"


def test_a_view_whose_database_could_not_be_opened_again_is_opened_as_soon_as_it_can(tmp_path: Path) -> None:
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = UserFollower("127.0.0.1:9", "", store, Metrics())
    store.close()  # as reopening leaves it on a disk that is still full
    with pytest.raises(Unavailable) as closed:
        store.find(1)
    follower._mend(closed.value)
    assert not store.find(1).behaviours
    store.close()


def test_a_disk_that_is_still_full_is_named_until_it_is_not_also_where_nothing_is_published(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_without_room(_: Database) -> None:
        raise Unavailable("disk_full", "no space left on device")

    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    store = open_view(tmp_path, IdKind.INT64, M)
    with monkeypatch.context() as full:
        full.setattr(Database, "_open", open_without_room)
        with pytest.raises(Unavailable, match="disk_full"):
            store.reopen()
        follower = UserFollower(bootstrap_servers, topic_prefix, store, Metrics())
        follower.start()
        wait_until(lambda: "disk_full" in follower.last_error, 20, "the reason")
        assert not follower.ready
    wait_until(lambda: follower.ready, 20, "the view to go on")
    assert follower.last_error == "" and not store.find(1).behaviours
    follower.close()


def test_a_full_disk_is_named_while_it_lasts_and_the_view_moves_again_by_itself(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt to begin again cleared the error, and no line of the log named it."""
    switch = tmp_path / "disk"
    switch.mkdir()
    monkeypatch.setenv(failpoints.DISK_VARIABLE, str(switch))
    failpoints.arm()
    try:
        apply_topics(bootstrap_servers, topic_prefix, 1, M)
        store = open_view(tmp_path, IdKind.INT64, M)
        follower = follow(store, bootstrap_servers, topic_prefix)
        (switch / failpoints.DISK_FULL).touch()
        with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, IdKind.INT64) as publisher:
            publisher.publish_behaviours([Behaviour(user_id=1, item_id=1, time_ms=1)])
        wait_until(lambda: "disk_full" in follower.last_error, 20, "the reason")
        for _ in range(30):
            assert "disk_full" in follower.last_error and follower.waits_for_disk
            assert not store.find(2).behaviours, "users who are not in memory are read"
            time.sleep(0.05)
        (switch / failpoints.DISK_FULL).unlink()
        wait_until(lambda: not follower.waits_for_disk and len(store.find(1).behaviours) == 1, 20, "the view to move again")
        assert follower.last_error == ""
    finally:
        monkeypatch.delenv(failpoints.DISK_VARIABLE)
        failpoints.arm()
    follower.close()
    assert caplog.text.count("disk_fault: the view of users") == 1 and caplog.text.count("disk_fault_over") == 1


def test_a_deleted_topic_of_the_index_is_no_reason_to_make_topics(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    known = describe_index(bootstrap_servers, topic_prefix, 1, M, IdKind.INT64).topic_ids
    delete_topics(bootstrap_servers, [topic_prefix + USER_BEHAVIOURS])
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = UserFollower(bootstrap_servers, topic_prefix, store, Metrics(), index_topic_ids=known)
    follower.start()
    wait_until(lambda: "aif topics apply" in follower.last_error, 20, "the remedy")
    delete_topics(bootstrap_servers, [topic_prefix + INDEX_DELTAS])
    wait_until(lambda: "into a new index" in follower.last_error and "topics apply" not in follower.last_error, 20, "the other remedy")
    follower.close()


def test_how_many_users_are_known_is_told_though_nothing_new_came_since_the_start(tmp_path: Path) -> None:
    store, metrics = open_view(tmp_path, IdKind.INT64, M), Metrics()
    store.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    store.close()
    store = open_view(tmp_path, IdKind.INT64, M)
    UserFollower("127.0.0.1:1", "", store, metrics)
    Users(store, StatePool(1, 1), IdKind.INT64, metrics).show()
    told = generate_latest(metrics.registry).decode()
    assert "aif_users_known 1.0" in told and "aif_user_log_holes_total 0.0" in told
    store.close()


def damage_tables(store: UserStore, begin: float) -> None:
    """Bytes of every table file from a share of its length on, beyond what an open reads where that is not the first block."""
    store._database.flush()
    for table in store._database.path.glob("*.sst"):
        content = bytearray(table.read_bytes())
        if begin == 0 or len(content) > 4_000:
            at = int(begin * len(content))
            content[at : at + 50] = bytes(50)
            table.write_bytes(content)
    store._decoded.clear()


def test_users_whom_a_damaged_disk_hides_are_cold_until_the_view_is_made_again(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    """Every request of such users was an error, for as long as nothing new came of them."""
    users = range(500)
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, IdKind.INT64) as publisher:
        publisher.publish_behaviours([Behaviour(user_id=user, item_id=1, time_ms=1) for user in users])
    store = open_view(tmp_path, IdKind.INT64, M)
    follower = follow(store, bootstrap_servers, topic_prefix)
    damage_tables(store, 0.3)
    store.reopen()
    assert any(len(store.find(user).behaviours) == 0 for user in users)
    wait_until(lambda: follower.rebuilt_because != "" and follower.ready, 30, "the view to be made again")
    assert all(len(store.find(user).behaviours) == 1 for user in users)
    assert follower.rebuilt_because.startswith("database_corrupted") and store.damage is None
    follower.close()


def test_a_view_whose_state_does_not_read_is_made_again_at_the_start(tmp_path: Path) -> None:
    store = open_view(tmp_path, IdKind.INT64, M)
    store.note_seen(1, {})
    damage_tables(store, 0)
    store.close()
    store = open_view(tmp_path, IdKind.INT64, M)
    assert store.state.seen_ms == 0
    store.close()


def test_a_view_that_lost_table_files_is_made_again_at_the_start(tmp_path: Path) -> None:
    """It was ready with the wrong histories: of the families whose files were lost."""
    store = open_view(tmp_path, IdKind.INT64, M)
    (manifest,) = store._database.path.glob("MANIFEST-*")
    opened_bytes = manifest.stat().st_size
    store.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    store._database.flush()
    store.fold_record(behaviours(1, Behaviour(user_id=1, item_id=1, time_ms=2), partition=home(1)))
    store.close()
    os.truncate(manifest, opened_bytes)
    store = open_view(tmp_path, IdKind.INT64, M)
    assert store.state.next_offsets == {} and len(store) == 0
    store.close()


def test_a_server_without_the_users_topics_says_what_is_missing(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    follower = UserFollower(bootstrap_servers, topic_prefix, open_view(tmp_path, IdKind.INT64, M), Metrics())
    follower.start()
    wait_until(lambda: "aif topics apply" in follower.last_error, 20, "the reason")
    assert not follower.ready
    follower.close()


@pytest.mark.parametrize(("comes_late", "times", "holes"), [(True, [0, 1, 2], 0), (False, [0, 2], 1)])
def test_a_gap_in_the_behaviours_is_read_once_more_and_only_then_passed_and_counted(
    comes_late: bool, times: list[int], holes: int, tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    place, store, metrics = home(1), open_view(tmp_path, IdKind.INT64, M), Metrics()
    records = {at: behaviours(at, Behaviour(user_id=1, item_id=1, time_ms=at), partition=place) for at in range(3)}
    late = records.pop(1)

    class Log:
        """One partition, whose second record is not there at first."""

        topic, positions = USER_BEHAVIOURS, {place: 0}

        def poll(self, _: int) -> list[SourceRecord]:
            found = [record for at, record in sorted(records.items()) if at >= self.positions[place]]
            self.positions[place] = 3
            return found

        def seek(self, partition: int, offset: int) -> None:
            self.positions[partition] = offset

    log, follower = Log(), UserFollower(bootstrap_servers, topic_prefix, store, metrics)
    follower._step(log)  # type: ignore[arg-type]
    assert [b.time_ms for b in store.find(1).behaviours] == [0]
    if comes_late:
        records[1] = late
    follower._step(log)  # type: ignore[arg-type]
    assert [b.time_ms for b in store.find(1).behaviours] == times and metrics.counter("user_log_holes")._value.get() == holes
    follower.close()


def test_transactions_on_the_users_topics_leave_no_hole_and_the_view_reaches_their_end(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    place, topic = home(1), topic_prefix + USER_BEHAVIOURS
    producer = open_transactional(bootstrap_servers, topic)
    for at, commit in enumerate([True, False, True, False]):
        value = behaviours(at, Behaviour(user_id=1, item_id=1, time_ms=at), partition=place).value
        assert value is not None
        send(producer, topic, value, partition=place, commit=commit)
    store = open_view(tmp_path, IdKind.INT64, M)
    metrics = Metrics()
    follower = UserFollower(bootstrap_servers, topic_prefix, store, metrics)
    follower.start()
    wait_until(lambda: follower.ready, 30, f"the view to be caught up ({follower.last_error})")
    assert [b.time_ms for b in store.find(1).behaviours] == [0, 2] and metrics.counter("user_log_holes")._value.get() == 0
    follower.close()
