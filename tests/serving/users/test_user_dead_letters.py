"""Dead letters of the user topics: each refused update gets one, with its bytes and its reason, whatever is killed and whenever the broker is away."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.kafka.admin import apply_topics
from infra.kafka.dead_letters import decode_dead_letter, source_headers, truncate_oversized
from infra.kafka.reader import SourceRecord, read_topic
from infra.metrics import Metrics
from schemas.decoding import Rejection
from schemas.errors import Unavailable
from schemas.events import Behaviour, BehavioursRecord, encode_record
from schemas.ids import IdKind, partition_of
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from serving.users import user_dead_letters, user_store
from serving.users.user_batch import DecodedUserRecord, decode_refused, encode_refused
from serving.users.user_dead_letters import UserDeadLetters
from serving.users.user_store import UserStore
from tests.serving.front import open_view

HOME = [user for user in range(50) if partition_of(user, 2) == 0]
AWAY = next(user for user in range(50) if partition_of(user, 2) == 1)
Place = tuple[str, int, int]  # topic, offset, index


class Broker:
    """What a producer and a look into the dead-letter topics see of one broker; `takes` is how many letters it still takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, SourceRecord]] = []
        self.takes = 0
        self.looked: set[Place] = set()
        self._queue: list[tuple[SourceRecord, Callable[..., None]]] = []

    def produce(self, topic: str, value: bytes | None, key: bytes | None, headers: Any, on_delivery: Callable[..., None]) -> None:
        self._queue.append((SourceRecord(topic, 0, 0, key, value, tuple(headers)), on_delivery))

    def flush(self, timeout_s: float) -> int:
        while self._queue and self.takes > 0:
            record, on_delivery = self._queue.pop(0)
            self.takes -= 1
            self.taken.append((decode_dead_letter(list(record.headers)), record))
            on_delivery(None, record)
        return len(self._queue)

    def purge(self) -> None:
        for _, on_delivery in self._queue:
            on_delivery(KafkaError(KafkaError._PURGE_QUEUE), None)
        self._queue.clear()

    def look(self) -> None:
        self.looked = set(self.places)

    def has(self, record: SourceRecord, index: int) -> bool:
        return (record.topic, record.offset, index) in self.looked

    @property
    def places(self) -> list[Place]:
        return [(source.topic, source.offset, source.index) for source, _ in self.taken]


class Blind(Broker):
    """A broker that takes letters and does not show them."""

    def look(self) -> None:
        raise Unavailable("kafka_failed", "no")


def sender(store: UserStore, broker: Any) -> UserDeadLetters:
    return UserDeadLetters("nobody", "p.", store, Metrics(), broker, {USER_BEHAVIOURS: broker, USER_FEATURES: broker})


def bad_record(topic: str, offset: int, wrong: Sequence[bool]) -> tuple[SourceRecord, set[Place]]:
    """A record of two good users and strangers; of user-features one that does not read."""
    if topic == USER_FEATURES:
        return SourceRecord(topic, 0, offset, b"\xff", b"{%d" % offset, (("h", None),)), {(topic, offset, 0)}
    updates = [Behaviour(user_id=AWAY if is_wrong else HOME[0], item_id=offset, time_ms=1) for is_wrong in wrong]
    record = SourceRecord(topic, 0, offset, None, encode_record(BehavioursRecord(updates=updates)), (("h", b"\x00"),), 7)
    return record, {(topic, offset, index) for index, is_wrong in enumerate(wrong) if is_wrong}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from((USER_BEHAVIOURS, USER_FEATURES)), st.lists(st.booleans(), min_size=1, max_size=3)),
        st.tuples(st.sampled_from(("send", "killed after sending", "killed")), st.integers(0, 4)),
    ),
    max_size=8,
)


@settings(max_examples=20)
@given(steps=STEPS, shows=st.booleans())
def test_every_refused_update_has_a_letter_of_its_bytes_whatever_is_killed_and_only_a_kill_or_a_blind_look_doubles_one(
    in_memory: Callable[[], Path], steps: list[tuple[str, Any]], shows: bool
) -> None:
    folder, broker = in_memory(), Broker() if shows else Blind()
    store, records, expected, kills = open_view(folder, IdKind.INT64, 2), dict[tuple[str, int], SourceRecord](), set[Place](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_dead_letters, "_SETTLE_S_MAX", 0.0)
        for offset, (step, argument) in enumerate([*steps, ("send", 10**6)]):
            if step in (USER_BEHAVIOURS, USER_FEATURES):
                record, places = bad_record(step, offset, argument)
                assert store.fold_record(record) == len(places)
                records[step, offset], expected = record, expected | places
                continue
            broker.takes = argument
            try:
                with pytest.MonkeyPatch.context() as kill:
                    if step == "killed after sending":
                        kill.setattr(store, "forget_refused", lambda rows: 1 / 0)
                    if step != "killed":
                        sender(store, broker).settle()
            except (Unavailable, ZeroDivisionError):
                kills += 1
            if step != "send":
                store.close()
                store = open_view(folder, IdKind.INT64, 2)
    assert store.refused_bytes == 0 and store.read_refused(1) == []
    store.close()
    assert set(broker.places) == expected
    assert len(broker.places) == len(expected) or (kills and not shows)
    for source, letter in broker.taken:
        record = records[source.topic, source.offset]
        assert (letter.key, letter.value, source_headers(letter.headers)) == (record.key, record.value, list(record.headers))
        assert letter.topic == f"p.dlq.{source.topic}" and source.reason
        assert source.code == ("not_json" if source.topic == USER_FEATURES else "wrong_partition")


def test_letters_that_nobody_takes_wait_on_disk_the_view_goes_on_and_stands_still_at_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_dead_letters, "_SETTLE_S_MAX", 0.0)
    monkeypatch.setattr(user_store, "DEAD_LETTERS_WAITING_BYTES_MAX", 1_000)
    store, broker = open_view(tmp_path, IdKind.INT64, 2), Broker()
    store.fold_record(bad_record(USER_BEHAVIOURS, 0, [True, False])[0])
    with pytest.raises(Unavailable, match="dead_letters_waiting"):
        sender(store, broker).settle()
    assert len(store.find(HOME[0]).behaviours) == 1 and not store.is_full_of_refused
    for offset in range(1, 5):
        store.fold_record(bad_record(USER_BEHAVIOURS, offset, [True])[0])
    assert store.is_full_of_refused
    broker.takes = 10
    sender(store, broker).settle()
    assert not store.is_full_of_refused and len(broker.places) == 5
    store.close()


def test_a_refused_record_comes_back_byte_for_byte_and_an_oversized_one_as_its_dead_letters_keep_it() -> None:
    headers = (("a", b"\x00\xff"), ("ü", None), ("a", b""))
    rejections = [Rejection(0, "not_json", "\udcff", "malformed"), Rejection(7, "bad_id", "why", "semantic")]
    for key, value in ((None, None), (b"", b""), (b"\xff", b"x" * (RECORD_BYTES_MAX + 1))):
        refused = DecodedUserRecord(SourceRecord(USER_FEATURES, 3, 1 << 40, key, value, headers, 5), (), rejections)
        assert decode_refused(encode_refused(refused)) == refused
    huge = DecodedUserRecord(SourceRecord(USER_FEATURES, 3, 9, b"k", b"x" * (RECORD_BYTES_MAX + (1 << 17)), headers, 5), (), rejections)
    assert decode_refused(encode_refused(huge)) == DecodedUserRecord(truncate_oversized(huge.record), (), rejections)


def test_a_second_server_finds_the_letters_of_the_first_and_sends_only_those_of_another_log(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 2)
    poison = SourceRecord(USER_FEATURES, 0, 9, b"\xff", b"x" * (RECORD_BYTES_MAX + 1), (), 5)
    of_another_log = SourceRecord(USER_FEATURES, 0, 9, b"\xff", b"y", (), 6)
    for folder, bad in (("a", poison), ("b", of_another_log)):
        store = open_view(tmp_path / folder, IdKind.INT64, 2)
        store.fold_records([bad_record(USER_BEHAVIOURS, 3, [True, False, True])[0], bad])
        UserDeadLetters(bootstrap_servers, topic_prefix, store, Metrics()).settle()
        assert store.refused_bytes == 0
        store.close()
    letters = [r for topic in (USER_BEHAVIOURS, USER_FEATURES) for r in read_topic(bootstrap_servers, f"dlq.{topic}", prefix=topic_prefix)]
    found = [decode_dead_letter(list(letter.headers)) for letter in letters]
    assert [(source.offset, source.index) for source in found] == [(3, 0), (3, 2), (9, 0), (9, 0)]
    assert [letter.value for letter in letters[2:]] == [poison.value, of_another_log.value]
