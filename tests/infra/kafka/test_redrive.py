"""`aif dlq`: rejected updates shown, filtered, and sent again: each alone, once, to where it belongs, with an audit."""

import dataclasses
import functools
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from infra.cli import build_app
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka import redrive
from infra.kafka.admin import GROW, apply_topics, end_offsets
from infra.kafka.dead_letters import DeadLetterSource, attempt_of, encode_dead_letter
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.redrive import AUDIT, DeadLetter, Filter, encode_redriven, plan_redrive, read_dead_letters, read_sent, run_redrive
from schemas.decoding import Rejection, decode_user_features
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable
from schemas.ids import IdKind, partition_of
from schemas.index.control import Init
from schemas.limits import RECORD_BYTES_MAX
from tests.infra.aif_command import run_aif

UPDATES = [{"item_id": i, "version": 7, "features": {"price": i}} for i in range(4)]
RECORD = SourceRecord("item-features", 1, 5, b"", json.dumps({"schema": 1, "updates": UPDATES}).encode(), (("ce_id", b"x"),), 1_000)
CHECKSUM = f"{zlib.crc32(RECORD.value or b''):08x}"
GARBAGE = SourceRecord("item-features", 0, 9, b"k", b"\xff" * 1_100_000, (), 1_000)  # more than a producer takes that is not told to


@pytest.fixture
def prefix(prefix: str, bootstrap_servers: str, tmp_path: Path) -> str:
    apply_topics(bootstrap_servers, prefix, 2, 1)
    open_index_store(str(tmp_path / "store"))
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": 2 * RECORD_BYTES_MAX})
    for record, index, code, disposition in (
        (RECORD, 1, "wrong_partition", "semantic"),
        (RECORD, 3, "bad_update", "schema"),
        (GARBAGE, 0, "not_json", "malformed"),
        (RECORD, 1, "wrong_partition", "semantic"),  # sent again after a crash
    ):
        key, value, headers = encode_dead_letter(record, Rejection(index, code, f"because {code}", disposition))
        producer.produce(f"{prefix}dlq.item-features", value, key, headers=headers)
    assert producer.flush(30) == 0
    return prefix


run = functools.partial(run_aif, "dlq")


def resent(bootstrap: str, prefix: str) -> list[SourceRecord]:
    return sorted(read_topic(bootstrap, "item-features", prefix=prefix), key=lambda r: r.offset)


def test_dead_letters_are_counted_once_each_listed_by_filter_and_shown_whole(prefix: str) -> None:
    assert {(c["code"], c["updates"]) for c in run("list")["counts"]} == {("wrong_partition", 1), ("bad_update", 1), ("not_json", 1)}
    for arguments, codes in (
        (("--disposition", "schema"), ["bad_update"]),
        (("--code", "not_json"), ["not_json"]),
        (("--partition", "1"), ["wrong_partition", "bad_update"]),
        (("--contains", "because bad"), ["bad_update"]),
        (("--since-s", "3600"), ["wrong_partition", "bad_update", "not_json"]),
        (("--count", "1"), ["not_json"]),
    ):
        assert [row["code"] for row in run("list", "item-features", *arguments)["dead_letters"]] == codes
    shown = run("show", "item-features", "1", "5", "3")
    assert shown["reason"] == "because bad_update" and json.loads(shown["value"])["updates"] == UPDATES and shown["headers"]["ce_id"] == "x"
    with pytest.raises(AifError, match="no_such_dead_letter"):
        run("show", "item-features", "1", "6")
    assert CliRunner().invoke(build_app(), ["dlq", "list", "--since-s", "inf"]).exit_code == 2
    assert CliRunner().invoke(build_app(), ["dlq", "list", "--code", "bad_id"]).stderr == "no dead letters\n"


def test_letters_that_retention_removed_are_counted_and_not_passed_over(prefix: str, bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records([TopicPartition(f"{prefix}dlq.item-features", 0, 2)]).values():
        future.result(30)
    for command in (["list"], ["list", "item-features"], ["redrive", "item-features", "--dry-run"], ["redrive", "item-features"]):
        warned = CliRunner().invoke(build_app(), ["dlq", *command]).stderr
        assert "warning: retention has removed the oldest 2 letters of dlq.item-features" in warned
    assert "retention" not in CliRunner().invoke(build_app(), ["dlq", "list", "new-items"]).stderr


def test_a_redrive_sends_each_update_alone_to_its_partition_and_never_twice(prefix: str, bootstrap_servers: str, tmp_path: Path) -> None:
    assert len(run("redrive", "item-features", "--dry-run")["would_send"]) == 3
    assert resent(bootstrap_servers, prefix) == []
    assert run("redrive", "item-features", "--max", "1", "--rate", "1000")["sent"] == 1
    (first,) = resent(bootstrap_servers, prefix)
    assert json.loads(first.value or b"") == {"schema": 1, "updates": [UPDATES[1]]}
    assert (first.partition, first.key) == (partition_of(1, 2), b"1")
    assert dict(first.headers) == {"ce_id": b"x", "aif.redriven_from": f"item-features/1/5/1/{CHECKSUM}".encode(), "aif.attempt": b"2"}
    done = run("redrive", "item-features", "--disposition", "schema", "--rate", "1000")
    assert (done["sent"], done["skipped_sent_before"]) == (1, 1)
    assert run("redrive", "item-features", "--disposition", "schema")["would_send"] == []
    again = CliRunner().invoke(build_app(), ["dlq", "redrive", "item-features", "--disposition", "schema"])
    assert again.stdout == "" and "nothing to send" in again.stderr and "2 were" in again.stderr
    assert [(row["code"], row["redriven"]) for row in run("list", "item-features")["dead_letters"]] == [
        ("wrong_partition", True),
        ("bad_update", True),
        ("not_json", False),
    ]
    assert [row["code"] for row in run("list", "item-features", "--left")["dead_letters"]] == ["not_json"]
    assert {(c["code"], c["updates"], c["redriven"]) for c in run("list")["counts"]} >= {("bad_update", 1, 1), ("not_json", 1, 0)}
    assert [c["code"] for c in run("list", "--left")["counts"]] == ["not_json"]
    assert run("show", "item-features", "1", "5", "3")["redriven"]
    store = open_index_store(str(tmp_path / "store"))
    assert json.loads(store.get(f"{done['audit']}end"))["sent"] == [f"item-features/1/5/3/{CHECKSUM}"]
    before = read_sent(store, bootstrap_servers, prefix, "item-features", False)
    run("redrive", "item-features", "--rate", "1000")
    with pytest.raises(Unavailable, match="redrive_running: another redrive began"):  # of one that was planned before the last
        run_redrive(store, bootstrap_servers, prefix, "item-features", before, [], Filter(), 1_000.0)


def test_an_update_goes_to_the_partition_that_the_index_has_for_its_id_also_where_somebody_has_added_some(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    grown = next(n for n in range(3, 9) if partition_of(1, n) != partition_of(1, 2))
    apply_topics(bootstrap_servers, prefix, grown, 1, allow=[GROW])
    ensure_init(ControlLog(open_index_store(str(tmp_path / "store"))), Init(2, 1, IdKind.INT64, {}), 1, "test")
    assert run("redrive", "item-features", "--code", "wrong_partition", "--rate", "1000")["sent"] == 1
    assert [record.partition for record in resent(bootstrap_servers, prefix)] == [partition_of(1, 2)]


def test_what_a_dead_redrive_had_sent_is_found_in_the_topic(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: {}["the account of a container has no name"])
    run("redrive", "item-features", "--code", "not_json", "--rate", "1000")
    store = open_index_store(str(tmp_path / "store"))
    begin = json.loads(store.get(f"{AUDIT}000000000/begin"))
    (tmp_path / "store" / AUDIT / "000000000" / "end").unlink()  # as if it had died before its end
    assert begin["records"] == 1 and begin["filter"]["code"] == "not_json" and begin["by"] == f"uid {os.getuid()}"
    with pytest.raises(Unavailable, match="redrive_running"):
        run("redrive", "item-features")
    looked = CliRunner().invoke(build_app(), ["dlq", "list", "item-features"])
    assert looked.exit_code == 0 and f"{AUDIT}000000000/begin has no end" in looked.stderr
    left = run("redrive", "item-features", "--take-over", "--dry-run")["would_send"]
    assert [row["code"] for row in left] == ["wrong_partition", "bad_update"]
    assert [r.value for r in resent(bootstrap_servers, prefix)] == [GARBAGE.value]


def test_another_record_at_the_same_place_of_a_topic_that_was_made_again_is_a_letter_of_its_own(
    prefix: str, bootstrap_servers: str
) -> None:
    run("redrive", "item-features", "--code", "bad_update", "--rate", "1000")
    update = {"item_id": 3, "version": 9, "features": {"price": 9}}
    again = dataclasses.replace(RECORD, value=json.dumps({"schema": 1, "updates": [{}, {}, {}, update]}).encode())
    key, value, headers = encode_dead_letter(again, Rejection(3, "bad_update", "again", "schema"))
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(f"{prefix}dlq.item-features", value, key, headers=headers)
    assert producer.flush(30) == 0
    listed = run("list", "item-features", "--code", "bad_update")["dead_letters"]
    assert [(row["reason"], row["redriven"]) for row in listed] == [("because bad_update", True), ("again", False)]
    assert run("show", "item-features", "1", "5", "3")["reason"] == "again"
    assert run("redrive", "item-features", "--code", "bad_update", "--rate", "1000")["sent"] == 1
    assert [json.loads(r.value or b"")["updates"] for r in resent(bootstrap_servers, prefix) if r.value][-1:] == [[update]]


def test_a_redrive_that_was_taken_for_dead_and_was_not_says_so_and_what_it_sent_is_not_sent_once_more(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, send = open_index_store(str(tmp_path / "store")), redrive._send

    def send_after_another(*arguments: Any) -> None:
        monkeypatch.setattr(redrive, "_send", send)
        read_sent(store, bootstrap_servers, prefix, "item-features", take_over=True)
        send(*arguments)

    monkeypatch.setattr(redrive, "_send", send_after_another)
    with pytest.raises(Incompatible, match=f"redrive_taken_over: while this redrive sent 3 updates.*{AUDIT}000000000/late"):
        run("redrive", "item-features", "--rate", "1000")
    assert run("redrive", "item-features")["would_send"] == [] and run("list", "item-features", "--left")["dead_letters"] == []


def test_a_dead_redrive_whose_records_retention_removed_is_named_and_nothing_is_sent(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    run("redrive", "item-features", "--rate", "1000")
    (tmp_path / "store" / AUDIT / "000000000" / "end").unlink()
    ends = [TopicPartition(f"{prefix}item-features", p, end) for p, end in end_offsets(bootstrap_servers, f"{prefix}item-features").items()]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records(ends).values():
        future.result(30)
    with pytest.raises(Incompatible, match=f"redrive_unknown: {AUDIT}000000000/begin .* remove its folder"):
        run("redrive", "item-features", "--take-over")


@pytest.mark.parametrize("damaged", [b'{"topic": "item-fe', b'{"tapic": "item-features"}', b"[]"])
def test_an_audit_that_does_not_read_is_named_and_nothing_is_sent(damaged: bytes, tmp_path: Path) -> None:
    store = open_index_store(str(tmp_path / "store"))
    store.put_exclusive(f"{AUDIT}000000000/begin", damaged)
    with pytest.raises(Corrupted, match=r"bad_audit: audit/redrive/000000000/begin .* restore it"):
        read_sent(store, "nowhere:9", "aif.", "item-features", take_over=False)


class Silent(Producer):
    """A producer whose records arrive, and which never learns of it."""

    def produce(self, *args: Any, on_delivery: Any = None, **fields: Any) -> None:
        super().produce(*args, **fields)


def test_a_record_of_which_nobody_knows_whether_it_arrived_is_looked_for_and_not_sent_again(
    prefix: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.kafka.producer.Producer", Silent)
    with pytest.raises(Unavailable, match=r"not_delivered: 1 of 1 may not have arrived.*--take-over"):
        run("redrive", "item-features", "--code", "not_json", "--rate", "1000")
    left = run("redrive", "item-features", "--take-over", "--dry-run")["would_send"]
    assert [row["code"] for row in left] == ["wrong_partition", "bad_update"]
    assert len(resent(bootstrap_servers, prefix)) == 1


def test_a_record_that_comes_back_says_which_attempt_it_was(bootstrap_servers: str, prefix: str) -> None:
    letter = next(x for x in read_dead_letters(bootstrap_servers, prefix, "item-features") if x.source.code == "bad_update")
    again = encode_redriven(letter, 2, IdKind.INT64, "item_id")
    record = SourceRecord("item-features", again.partition, 77, again.key, again.value, tuple(again.headers), 2_000)
    headers = encode_dead_letter(record, Rejection(0, "bad_update", "still", "schema"))[2]
    assert dict(headers)["attempt"] == b"2" and attempt_of(headers) == 2
    third = encode_redriven(DeadLetter(letter.source, SourceRecord("", 0, 0, b"", again.value, tuple(headers))), 2, IdKind.INT64, "item_id")
    assert [name for name, _ in third.headers] == ["ce_id", "aif.redriven_from", "aif.attempt"] and third.headers[-1][1] == b"3"


def test_a_record_of_one_user_goes_to_the_partition_of_its_id_and_one_that_does_not_read_where_it_came_from() -> None:
    home = partition_of(7, 2)
    value = json.dumps({"schema": 1, "user_id": 7, "features": {"a": 1}}).encode()
    cases = ((b"other", value, home, b"7"), (b"7", None, home, b"7"), (b"\xff", None, 1 - home, b"\xff"), (b"k", b"[1]", 1 - home, b"k"))
    for key, body, partition, sent_key in cases:
        record = SourceRecord("user-features", 1 - home, 5, key, body)
        letter = encode_dead_letter(record, Rejection(0, "wrong_partition", "because", "semantic"))
        source = DeadLetterSource("user-features", 1 - home, 5, 0, "wrong_partition", "because", "semantic")
        again = encode_redriven(DeadLetter(source, SourceRecord("dlq", 0, 0, *letter[:2], tuple(letter[2]))), 2, IdKind.INT64, "user_id")
        assert (again.partition, again.key, again.value) == (partition, sent_key, body)


def test_statistics_of_a_user_keep_their_own_key() -> None:
    """With that of the profile they are rejected again, and compaction removes the profile."""
    home = partition_of(7, 2)
    value = json.dumps({"schema": 1, "op": "statistics", "user_id": 7, "features": {"a": 1}, "time_ms": 5}).encode()
    source = DeadLetterSource("user-features", home, 5, 0, "bad_record", "op is unknown", "schema")
    again = encode_redriven(DeadLetter(source, SourceRecord("dlq", 0, 0, b"\xff7", value)), 2, IdKind.INT64, "user_id")
    assert again.value == value and decode_user_features(again.key, again.value, IdKind.INT64, again.partition, 2).user_id == 7
    source = dataclasses.replace(source, topic="item-features", code="wrong_partition")
    update = json.dumps({"updates": [{"op": "statistics", "item_id": 7, "version": 5, "features": {}}]}).encode()
    again = encode_redriven(DeadLetter(source, SourceRecord("dlq", 0, 0, None, update)), 2, IdKind.INT64, "item_id")
    assert again.key == b"7"


def test_a_record_that_leaves_the_number_of_its_schema_out_goes_to_the_partition_of_its_id_too() -> None:
    update, right = {"item_id": 7, "version": 1}, partition_of(7, 2)
    source = DeadLetterSource("item-features", 1 - right, 0, 0, "wrong_partition", "because", "semantic")
    record = SourceRecord("dlq", 0, 0, b"7", json.dumps({"updates": [update]}).encode(), ())
    again = encode_redriven(DeadLetter(source, record), 2, IdKind.INT64, "item_id")
    assert (again.partition, json.loads(again.value or b"")["updates"]) == (right, [update])


def test_a_record_that_was_rejected_as_a_whole_is_sent_again_with_all_its_updates() -> None:
    value = json.dumps({"schema": 1, "updates": UPDATES, "trace": "nobody knows this field"}).encode()
    source = DeadLetterSource("item-features", 1, 5, 0, "bad_record", "because", "schema")
    again = encode_redriven(DeadLetter(source, SourceRecord("dlq", 0, 0, b"", value)), 2, IdKind.INT64, "item_id")
    assert (again.partition, again.value) == (1, value)


def test_the_plan_takes_the_oldest_and_no_foreign_record() -> None:
    source = encode_dead_letter(RECORD, Rejection(0, "x", "y", "schema"))
    letters = [DeadLetter(_source(offset), SourceRecord("dlq", 0, offset, *source[:2])) for offset in range(5)]
    letters.append(DeadLetter(_source(9, topic="dlq.item-features"), letters[0].record))
    planned = plan_redrive(letters, "item-features", Filter(), {letters[0].identity}, 3)
    assert [letter.source.offset for letter in planned] == [1, 2, 3]


def _source(offset: int, topic: str = "item-features") -> Any:
    return DeadLetterSource(topic, 1, offset, 0, "x", "y", "schema")


def test_a_checkpoint_in_a_partition_that_somebody_added_goes_to_the_one_that_is_read() -> None:
    source = DeadLetterSource("model-checkpoints", 2, 7, 0, "checkpoint_partition", "r", "semantic")
    again = encode_redriven(DeadLetter(source, SourceRecord("dlq", 0, 0, b"m", b"{}")), 1, IdKind.INT64, "")
    assert (again.partition, again.key, again.value) == (0, b"m", b"{}")
