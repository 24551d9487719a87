"""The server's view of users: the fold over records good and bad, in one batch with their offsets, within bounds."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from infra.processes import wait_until
from infra.rocks import Batch, Database, open_database
from schemas.decoding import STATISTICS_OP, user_features_key
from schemas.errors import Unavailable
from schemas.events import Behaviour, BehavioursRecord, UserFeaturesRecord, encode_record
from schemas.ids import Id, IdKind, encode_index_key, encode_kafka_key, partition_of
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile, fold_statistics
from serving.core.user_view import BLOCK
from serving.users import user_store
from serving.users.user_batch import HEADS, PROFILES, decode_refused
from serving.users.user_follower import UserFollower
from serving.users.user_store import FAMILIES, StoreBounds, UserStore
from tests.serving.front import open_view

M = 3


Open = Callable[..., UserStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Opens the view of this test; opened again, it is closed and continues from the same directory."""
    opened: list[UserStore] = []

    def open_again(kind: IdKind = IdKind.INT64, partitions: int = M, bounds: StoreBounds | None = None) -> UserStore:
        if opened:
            opened.pop().close()
        opened.append(open_view(tmp_path, kind, partitions, bounds))
        return opened[0]

    yield open_again
    opened.pop().close()


def behaviours(offset: int, *events: Behaviour, partition: int) -> SourceRecord:
    return SourceRecord(USER_BEHAVIOURS, partition, offset, None, encode_record(BehavioursRecord(updates=list(events))))


def home(user: Id) -> int:
    return partition_of(user, M)


def test_a_record_folds_the_events_of_each_of_its_users_in_order_and_once(open_store: Open) -> None:
    store = open_store()
    pair = [user for user in range(50) if home(user) == 0][:2]
    events = [Behaviour(user_id=pair[i % 2], item_id=i, time_ms=i) for i in range(5)]
    record = behaviours(4, *events, partition=0)
    assert store.fold_record(record) == 0 and store.fold_record(record) == 0
    assert [b.item_id for b in store.find(pair[0]).behaviours] == [0, 2, 4]
    assert [b.item_id for b in store.find(pair[1]).behaviours] == [1, 3]
    assert store.find(pair[0]).offsets == store.offsets_in_memory(pair[0]) == (-1, 4)


def test_a_snapshot_does_not_change_with_the_user(open_store: Open) -> None:
    store = open_store()
    store.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    before = store.find(1)
    store.fold_record(behaviours(1, Behaviour(user_id=1, item_id=2, time_ms=2), partition=home(1)))
    assert len(before.behaviours) == 1 and len(store.find(1).behaviours) == 2


def test_an_update_in_the_wrong_partition_is_skipped_and_its_neighbours_are_not(open_store: Open) -> None:
    store = open_store()
    stranger = next(user for user in range(50) if home(user) != home(1))
    record = behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), Behaviour(user_id=stranger, item_id=1, time_ms=1), partition=home(1))
    assert store.fold_record(record) == 1
    assert (len(store.find(1).behaviours), len(store.find(stranger).behaviours), store.skipped) == (1, 0, 1)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[]", b'{"schema":2,"updates":[]}', b'{"schema":1,"updates":[]}', None])
def test_a_record_that_cannot_be_read_is_skipped_and_counted(open_store: Open, value: bytes | None) -> None:
    store = open_store()
    assert store.fold_record(SourceRecord(USER_BEHAVIOURS, 0, 0, b"1", value)) == 1
    assert store.fold_record(SourceRecord(USER_FEATURES, 0, 0, b"\xff", value)) == 1
    assert len(store) == 0


@pytest.mark.parametrize("key", [b"8", b"", b"07", b"7 ", b"\xff", None])
def test_a_profile_whose_key_is_not_its_users_id_is_skipped_and_its_dead_letter_says_so(open_store: Open, key: bytes | None) -> None:
    """Compaction keeps the last record of each key: under the key of user 8, user 7's profile would take the place of user 8's."""
    store = open_store()
    profile = encode_record(UserFeaturesRecord(user_id=7, features={"country": "nl"}))
    assert store.fold_record(SourceRecord(USER_FEATURES, home(7), 0, key, profile)) == 1
    assert (len(store), store.find(7).profile) == (0, {})
    [(_, raw)] = store.read_refused(1)
    assert [one.code for one in decode_refused(raw).rejections] == ["wrong_key"]
    assert store.fold_record(SourceRecord(USER_FEATURES, home(7), 1, b"7", profile)) == 0 and store.find(7).profile == {"country": "nl"}


def test_statistics_hold_over_the_profile_until_a_record_forgets_them(open_store: Open) -> None:
    store, key = open_store(), user_features_key(7, True)
    told = [UserFeaturesRecord(user_id=7, features={"country": "nl", "taken": 1.0})]
    told.append(UserFeaturesRecord(op="statistics", user_id=7, features={"taken": 2.0}, time_ms=5))
    told.append(UserFeaturesRecord(user_id=7, features={"country": "uk", "taken": 1.0}))
    for offset, record in enumerate(told):
        store.fold_record(SourceRecord(USER_FEATURES, home(7), offset, key if record.op == "statistics" else b"7", encode_record(record)))
        store.find(7)
    assert store.find(7).profile == {"country": "uk", "taken": 2.0}
    assert store.fold_record(SourceRecord(USER_FEATURES, home(7), 3, b"7", encode_record(told[1]))) == 1, "under the profile's key"
    store.fold_record(SourceRecord(USER_FEATURES, home(7), 4, key, None))
    assert store.find(7).profile == {"country": "uk", "taken": 1.0} and store.skipped == 1
    store.fold_record(SourceRecord(USER_FEATURES, home(7), 5, b"7", None))
    assert store.find(7).profile == {}


@pytest.mark.parametrize(("family", "raw"), [(PROFILES, b"{"), (PROFILES, b"[1]"), (HEADS, b"short")])
def test_a_stored_user_that_does_not_read_is_cold_and_the_view_is_to_be_built_again(
    open_store: Open, tmp_path: Path, family: str, raw: bytes
) -> None:
    store, key = open_store(), encode_index_key(7)
    store.fold_record(SourceRecord(USER_FEATURES, home(7), 1, b"7", encode_record(UserFeaturesRecord(user_id=7))))
    store.close()
    [folder] = tmp_path.glob("*/0")
    database = open_database(folder, FAMILIES)
    batch = database.new_batch()
    batch.put(family, key, raw)
    database.write(batch)
    database.close()
    store = open_store()
    assert store.find(7).profile == {} and store.damage is not None and store.damage.code == "bad_user_view"
    follower = UserFollower("127.0.0.1:1", "", store, Metrics())
    follower._mend(store.damage)
    assert follower.rebuilt_because.startswith("bad_user_view") and store.damage is None


def test_users_beyond_the_bound_are_not_kept_and_counted(open_store: Open) -> None:
    store = open_store(IdKind.TEXT, 1, StoreBounds(users_max=2))
    for i, user in enumerate(("a", "b", "c", "a")):
        store.fold_record(behaviours(i, Behaviour(user_id=user, item_id="x", time_ms=1), partition=0))
    assert (len(store), store.skipped, len(store.find("c").behaviours), len(store.find("a").behaviours)) == (2, 1, 0, 2)


@pytest.mark.parametrize("kind", list(IdKind))
def test_the_view_is_the_fold_of_both_topics_and_goes_on_past_bad_records(
    kind: IdKind, tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    users: list[Id] = list(range(20)) if kind is IdKind.INT64 else [f"user-{i}" for i in range(20)]
    item: Id = 1 << 60 if kind is IdKind.INT64 else "ä"
    apply_topics(bootstrap_servers, topic_prefix, 1, M)
    bad = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(M):
        bad.produce(topic_prefix + USER_BEHAVIOURS, b"not json", partition=partition)
        bad.produce(topic_prefix + USER_FEATURES, json.dumps({"schema": 1}).encode(), encode_kafka_key(users[0]), partition=partition)
    assert bad.flush(30) == 0
    with Publisher(bootstrap_servers, topic_prefix, "test", 1, M, kind) as publisher:
        publisher.publish_behaviours(Behaviour(user_id=user, item_id=item, time_ms=t) for t in range(3) for user in users)
        for user in users:
            publisher.publish_user(user, {"country": "nl"})
        publisher.flush()
        store, metrics = open_view(tmp_path, kind, M), Metrics()
        follower = UserFollower(bootstrap_servers, topic_prefix, store, metrics)
        follower.start()
        try:
            wait_until(lambda: follower.ready, 30, "the view to be caught up")
            for user in users:
                known = store.find(user)
                assert known.profile == {"country": "nl"} and [b.time_ms for b in known.behaviours] == [0, 1, 2]
                assert {b.item_id for b in known.behaviours} == {item}
            assert store.skipped == 2 * M
            assert follower.rebuilt_because == ""
            publisher.publish_behaviour(Behaviour(user_id=users[3], item_id=item, time_ms=9))
            wait_until(lambda: len(store.find(users[3]).behaviours) == 4, 20, "one more behaviour")
        finally:
            follower.close()
    assert follower.last_error == ""


def test_a_view_that_is_opened_again_goes_on_from_its_offsets_with_the_same_users(open_store: Open) -> None:
    store = open_store()
    record = behaviours(0, *(Behaviour(user_id=1, item_id=i, time_ms=i, features={"price": i / 3}) for i in range(3)), partition=home(1))
    profile = SourceRecord(
        USER_FEATURES, home(1), 7, b"1", encode_record(UserFeaturesRecord(user_id=1, features={"tags": ["a", 1, 0.5], "age": None}))
    )
    store.fold_records([record, profile])
    before = store.find(1)
    again = open_store()
    assert again.find(1) == before and len(again) == 1
    assert again.state.next_offsets == {USER_BEHAVIOURS: {home(1): 1}, USER_FEATURES: {home(1): 8}}
    assert again.fold_records([record, profile]) == 0 and again.find(1) == before


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, list[tuple[int, int | None]]]]:
    """Records of a log in offset order: (user's place, events) as (place of the user, number of events, None for a profile, or 0 for statistics)."""
    steps = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.just(0), st.integers(1, BLOCK + 3))), min_size=1, max_size=3)
    return [(offset, draw(steps)) for offset in range(draw(st.integers(1, 12)))]


@given(log=logs(), cuts=st.sets(st.integers(0, 11)), reads=st.sets(st.integers(0, 11)), room=st.integers(1, 200))
def test_the_view_is_the_fold_of_the_log_whatever_the_batches_restarts_and_memory(
    in_memory: Callable[[], Path],
    log: list[tuple[int, list[tuple[int, int | None]]]],
    cuts: set[int],
    reads: set[int],
    room: int,
) -> None:
    users = [user for user in range(60) if home(user) == 0][:4]
    expected = {user: UserHistory() for user in users}
    folder, bounds = in_memory(), StoreBounds(decoded_users_max=2, decoded_behaviours_max=room)
    store = open_view(folder, IdKind.INT64, M, bounds)
    pending: list[SourceRecord] = []
    for offset, steps in log:
        events: list[Behaviour] = []
        for place, count in steps:
            user = users[place]
            if not count:
                op, name, fold = ("upsert", "at", fold_profile) if count is None else (STATISTICS_OP, f"n{place % 2}", fold_statistics)
                told = UserFeaturesRecord(op=op, user_id=user, features={name: offset, "at": offset})  # type: ignore[arg-type]
                pending.append(SourceRecord(USER_FEATURES, 0, offset, user_features_key(user, count == 0), encode_record(told)))
                fold(expected[user], offset, told.features)
            else:
                events += [Behaviour(user_id=user, item_id=offset, time_ms=i) for i in range(count)]
        if events:
            pending.append(behaviours(offset, *events[:256], partition=0))
        for user in users:
            mine = [BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features) for b in events[:256] if b.user_id == user]
            if mine:
                fold_behaviours(expected[user], offset, mine)
        if offset in cuts:
            store.fold_records(pending)
            pending = []
        if offset in reads:
            store.find(users[0])
            assert store.decoded[0] <= 2 and store.decoded[1] <= room
    store.fold_records(pending)
    for again in (store, None):
        if again is None:
            store.close()
            store = open_view(folder, IdKind.INT64, M, bounds)
        for user, history in expected.items():
            known = store.find(user)
            assert (known.profile, list(known.behaviours)) == ({**history.profile, **history.statistics}, history.behaviours)
            assert known.offsets == (history.profile_offset, history.behaviours_offset)
    store.close()


def test_of_a_long_history_the_newest_behaviours_are_kept_and_the_blocks_before_them_are_dropped(open_store: Open) -> None:
    store, extra = open_store(), 10 * 256
    for offset in range((BEHAVIOURS_PER_USER_MAX + extra) // 256 + 1):
        store.fold_record(
            behaviours(offset, *(Behaviour(user_id=1, item_id=1, time_ms=offset * 256 + i) for i in range(256)), partition=home(1))
        )
    known = store.find(1)
    newest = (offset + 1) * 256
    assert [b.time_ms for b in (known.behaviours[0], known.behaviours[-1])] == [newest - BEHAVIOURS_PER_USER_MAX, newest - 1]
    blocks = sum(1 for _ in store._database.scan("behaviours"))
    assert blocks <= BEHAVIOURS_PER_USER_MAX // BLOCK + 2


def test_looking_in_memory_never_reads_the_disk_and_sees_what_is_folded_afterwards(open_store: Open) -> None:
    store = open_store()
    assert store.find_in_memory(1) is None and store.offsets_in_memory(1) is None
    assert not store.find(1).behaviours and store.offsets_in_memory(1) == (-1, -1)
    store.fold_record(behaviours(3, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    known = store.find_in_memory(1)
    assert known is not None and len(known.behaviours) == 1 and store.offsets_in_memory(1) == (-1, 3)


def test_a_disk_that_stalls_delays_no_look_in_memory(open_store: Open) -> None:
    """The event loop waited for the lock that a write held, and with it every ranking."""
    store, writes, ends, seen = open_store(), threading.Event(), threading.Event(), list[object]()
    store.find(1)

    def stall(batch: Batch) -> None:
        writes.set()
        ends.wait(60)

    store._database.write = stall  # type: ignore[method-assign]
    record = behaviours(3, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1))
    writer = threading.Thread(target=store.fold_record, args=(record,))
    reader = threading.Thread(target=lambda: seen.extend((store.find_in_memory(1), store.offsets_in_memory(1))))
    writer.start()
    assert writes.wait(60)
    reader.start()
    reader.join(5)
    assert len(seen) == 2 and seen[1] == (-1, -1)
    ends.set()
    writer.join()
    assert store.offsets_in_memory(1) == (-1, 3)


def test_a_view_that_could_not_be_built_again_does_not_go_on_from_offsets_that_it_lost(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed, and not built again on a full disk: the empty one that was opened later went on from the former offsets, without any user."""
    store, record = open_store(), behaviours(3, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1))
    store.fold_record(record)

    def refuse(path: Path, families: Sequence[str]) -> Database:
        raise Unavailable("disk_full", "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(user_store, "open_database", refuse)
        with pytest.raises(Unavailable, match="disk_full"):
            store.rebuild()
    store.reopen()
    assert len(store) == 0 and store.state.next_offsets == {}
    store.fold_record(record)
    assert len(store.find(1).behaviours) == 1


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _set_type(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:6] + b"\5" + content[7:])


@pytest.mark.parametrize(
    ("files", "damage"), [("marks", Path.unlink), ("CURRENT", Path.unlink), ("MANIFEST-*", _cut), ("*.log", _set_type), ("*.sst", _cut)]
)
def test_a_view_with_a_damaged_file_is_built_again(files: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    store = open_view(tmp_path, IdKind.INT64, M)
    store.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    store._database.flush()
    store.fold_record(behaviours(1, Behaviour(user_id=1, item_id=2, time_ms=2), partition=home(1)))
    folder = store._database.path
    shutil.copytree(folder, killed := tmp_path / "killed")
    store.close()
    shutil.rmtree(folder)
    killed.rename(folder)
    damaged = [path for path in folder.glob(files) if path.stat().st_size]
    assert damaged
    for path in damaged:
        damage(path)
    again = open_view(tmp_path, IdKind.INT64, M)
    assert len(again) == 0 and again.state.next_offsets == {}
    again.close()


def test_two_servers_on_one_host_have_views_of_their_own_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    first, second = open_view(tmp_path, IdKind.INT64, M), open_view(tmp_path, IdKind.INT64, M)
    first.fold_record(behaviours(0, Behaviour(user_id=1, item_id=1, time_ms=1), partition=home(1)))
    assert not second.find(1).behaviours and first._database.path != second._database.path
    damaged = first._database.path
    first.close()
    (damaged / "CURRENT").write_text("MANIFEST-999999\n")
    again = open_view(tmp_path, IdKind.INT64, M)
    assert again._database.path == damaged and len(again) == 0 and again.state.next_offsets == {}
    again.close()
    second.close()
