"""`aif status --watch` and `aif doctor` against a real broker: what is there is shown, what is not is named."""

import io
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from rich.console import Console
from typer.testing import CliRunner

from infra.cli import build_app
from infra.clock import SystemClock
from infra.files import sha256_of_file
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics, topic_ids
from infra.kafka.producer import open_producer
from infra.kafka.publisher import Publisher
from infra.processes import wait_until
from infra.settings import InfraSettings, load_settings
from infra.tools import doctor, unknown_features, watch
from infra.tools.watch import Inspector, Sample, ShardView, _fetch_server, render_sample
from schemas.events import (
    DISK_FAULT,
    DISK_FAULT_OVER,
    NO_VERSION,
    SHARD_OPENED,
    IndexEvent,
    ItemFeaturesUpdate,
    StatisticsReport,
    encode_record,
)
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.layout import WATERMARK_VERSION, DeltaHeader, encode_delta
from schemas.index.manifest import checkpoint_path
from schemas.index.shard_snapshot import ShardSnapshot, encode_snapshot
from schemas.topics import STATISTICS_REPORTS
from streams.versions.version_messages import VersionMessages
from tests.infra.aif_command import run_aif
from tests.infra.index_fixture import publish_version
from tests.infra.kafka.deleted_topics import delete_topics
from tests.infra.kafka.transactions import open_transactional
from tests.schemas.catalogue import small_schema


@pytest.fixture(autouse=True)
def one_user_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIF_INDEX__USER_PARTITIONS", "1")


def produce(bootstrap: str, topic: str, partition: int, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, b"", partition)
    assert producer.flush(30) == 0


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC, topic, incremental_configs=[ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)]
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def told(shard: int, sequence: int, next_offset: int, source_ms: int = 1) -> bytes:
    return encode_delta(DeltaHeader(WATERMARK_VERSION, shard, sequence, (next_offset, 0), source_ms))


def test_a_sample_says_how_far_each_shard_is_how_late_and_that_nobody_owns_it(
    bootstrap_servers: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ASK_S_MAX", 60.0)
    apply_topics(bootstrap_servers, prefix, 2, 1)
    clock = SystemClock()
    produce(bootstrap_servers, f"{prefix}item-features", 1, *[b"x"] * 10)
    produce(
        bootstrap_servers,
        f"{prefix}index-deltas",
        1,
        *(told(1, n, n, clock.now_ms() - 60_000) for n in range(30)),
        told(1, 30, 4),
        b"no delta",
    )
    log = ControlLog(open_index_store(str(tmp_path / "store")))
    with Inspector(bootstrap_servers, prefix, log, clock) as inspector:
        first = inspector.sample()
        assert [(s.shard, s.next_offsets, s.behind, s.owner) for s in first.shards] == [(0, (0, 0), 0, ""), (1, (29, 0), 0, "")]
        produce(bootstrap_servers, f"{prefix}item-features", 1, *[b"x"] * 25)
        second = inspector.sample().shards[1]
        assert second.behind == 6 and 59 < second.lag_s < 600
        produce(bootstrap_servers, f"{prefix}index-deltas", 1, told(1, 31, 35, clock.now_ms()))
        third = inspector.sample().shards[1]
        assert third.next_offsets == (35, 0) and third.behind == 0 and third.lag_s == 0 and third.records_per_s > 0
    assert first.workers == {} and first.versions == [] and first.errors == []


def test_a_broker_that_is_away_is_named_and_the_versions_are_shown_all_the_same(tmp_path: Path) -> None:
    log = ControlLog(open_index_store(str(tmp_path / "store")))
    with Inspector("127.0.0.1:1", "p.", log, SystemClock(), ["http://127.0.0.1:1"]) as inspector:
        sample = inspector.sample()
    assert sample.shards == [] and len(sample.errors) == 2
    assert not sample.servers[0]["ready"] and sample.servers[0]["why"]


def test_the_watch_names_a_damaged_checkpoint_and_reads_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_index_store(str(tmp_path / "store"))
    manifest = publish_version(store)
    file, read = tmp_path / "store" / checkpoint_path(manifest.checkpoint_sha256), list[str]()
    monkeypatch.setattr(type(store), "sha256", lambda _, path: read.append(path) or sha256_of_file(file))
    with Inspector("127.0.0.1:1", "p.", ControlLog(store), SystemClock()) as inspector:
        assert [inspector._fetch_versions()[0]["reason"] for _ in range(3)] == ["", "", ""] and len(read) == 1
        file.write_bytes(b"damaged")
        reasons = [inspector._fetch_versions()[0]["reason"] for _ in range(3)]
        assert all("its checkpoint is damaged" in reason for reason in reasons) and len(read) == 2
        file.unlink()
        assert "its checkpoint is missing" in inspector._fetch_versions()[0]["reason"]


def test_a_drawn_sample_has_every_part_of_it_in_words() -> None:
    shards = [ShardView(0, (5, 6), 20_000, 3.5, 12.0, "a@b#1"), ShardView(1, (0, 0), 0, 0.0, 0.0, "")]
    version = {"version": 3, "state": "live", "revision": 1, "served": "yes", "sealed": ""}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render_sample(Sample(0, shards, {"a@b#1": [0]}, [version], [], ["broker away"])))
    text = console.export_text()
    for word in ("5 6", "20,000", "3.5", "a@b#1", "nobody", "live", "broker away"):
        assert word in text
    narrow = Console(width=60, record=True, file=io.StringIO())
    narrow.print(render_sample(Sample(0, shards, {}, [version | {"reason": "canary: it shares too little " * 9}])))
    assert len(narrow.export_text().splitlines()) < 24, "a long reason pushes nothing out of a small window"


def test_the_watch_prints_one_json_object_a_look(prefix: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    apply_topics(bootstrap_servers, prefix, 2, 1)
    looks = itertools.count(1)
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep))
    done = CliRunner().invoke(build_app(), ["status", "--watch", "--json"])
    assert done.exit_code == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2 and [shard["shard"] for shard in lines[1]["shards"]] == [0, 1]


def test_the_doctor_finds_a_healthy_place_healthy_and_names_what_is_missing_or_misspelt(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def findings() -> dict[str, dict[str, str]]:
        done = CliRunner().invoke(build_app(), ["doctor", "--json"])
        return {row["check"]: row for row in json.loads(done.stdout)["checks"]}

    before = findings()
    assert before["store"]["state"] == "warn" and f"no index store at {tmp_path / 'store'}" in before["store"]["found"]
    assert not (tmp_path / "store").exists(), "a doctor makes nothing"
    open_index_store(str(tmp_path / "store"))
    assert before["broker"]["state"] == "ok" and before["topics"]["state"] == "warn" and "aif topics apply" in before["topics"]["next_step"]
    apply_topics(bootstrap_servers, prefix, 2, 1)
    after = findings()
    set_config(bootstrap_servers, prefix + "item-features", "cleanup.policy", "compact")
    told = findings()["topics"]
    assert told["state"] == "fail" and "item-features: cleanup.policy=compact -> cleanup.policy=delete" in told["found"]
    apply_topics(bootstrap_servers, prefix, 2, 1, allow=["cleanup"])
    healthy = ("settings", "broker", "topics", "store", "features", "clock", "device", "libraries")
    assert {check: after[check]["state"] for check in healthy} == dict.fromkeys(healthy, "ok")
    assert "is empty" in after["store"]["found"]
    publish_version(open_index_store(str(tmp_path / "store")))
    told = findings()["store"]
    assert told["state"] == "fail" and "(user_partitions: index has 2, here 1)" in told["found"]
    monkeypatch.setenv("AIF_INDEX__USER_PARTITIONS", "2")
    assert "entries in the control log" in findings()["store"]["found"]
    monkeypatch.setattr(unknown_features, "read_schema", lambda *_: small_schema())
    known = {"price": 2.5, "category": None}
    with Publisher(bootstrap_servers, prefix, "test", 2, 1, "int64") as publisher:
        publisher.publish_items(ItemFeaturesUpdate(item_id=n, version=1, features=known | {"another": None}) for n in range(9))
        publisher.publish_new_item(3, [0.5] * small_schema().mm_width)
    assert findings()["features"]["found"] == "version 0 knows every feature of the newest 9 updates"
    with Publisher(bootstrap_servers, prefix, "test", 2, 1, "int64") as publisher:
        publisher.publish_item(76, 1, known | {"price": "12,50"})
    assert "these values count as missing: 'price' is '12,50' and not numeric (item 76)" in findings()["features"]["found"]
    with Publisher(bootstrap_servers, prefix, "test", 2, 1, "int64") as publisher:
        publisher.publish_item(77, 1, known | {"prise": 1.0})
        publisher.publish_new_item(78, [0.5, 0.5])
    told = findings()["features"]
    assert told["state"] == "warn" and "'prise' (item 77)" in told["found"] and "did you mean 'price'?" in told["next_step"]
    assert "'price' is '12,50'" in told["found"] and "`aif model show`" in told["next_step"], "one does not hide the other"
    assert "embeddings of 2 numbers count as missing, version 0 has" in told["found"] and "(item 78)" in told["found"]
    assert findings()["checkpoints"]["state"] == "ok"
    next((tmp_path / "store" / "checkpoints").iterdir()).write_bytes(b"x")
    told = findings()["checkpoints"]
    assert told["state"] == "fail" and "of version 0" in told["found"] and "repairs it" in told["next_step"]
    for command in (("status",), ("index", "list")):
        (row,) = run_aif(*command)["versions"]
        assert row["mark"] == "served,damaged" and "its checkpoint is damaged" in row["reason"] and "repairs it" in row["reason"]
    assert "repairs it" in run_aif("index", "show")["checkpoint_fault"]


def test_the_doctor_names_what_retention_removed_before_a_shard_had_it_and_what_no_snapshot_has(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    def look() -> tuple[str, str]:
        found = doctor.check_retention(load_settings(InfraSettings))
        return found.state, found.found

    apply_topics(bootstrap_servers, prefix, 2, 1)
    open_index_store(str(tmp_path / "store"))
    for shard in (0, 1):
        produce(bootstrap_servers, f"{prefix}item-features", shard, *[b"x"] * 40)
    assert look()[0] == "ok"
    gone = [TopicPartition(f"{prefix}item-features", shard, offset) for shard, offset in ((0, 30), (1, 25))]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records(gone).values():
        future.result(30)
    state, found = look()
    assert state == "warn" and "shard 0: the log begins at {'item-features': 30, 'new-items': 0}" in found and "shard 1" in found
    committed = [TopicPartition(f"{prefix}{topic}", 1, offset) for topic, offset in (("item-features", 20), ("new-items", 0))]
    Consumer({"bootstrap.servers": bootstrap_servers, "group.id": f"{prefix}shards"}).commit(offsets=committed, asynchronous=False)
    assert look() == ("fail", "shard 1: item-features 20 to 24 are gone"), "readers are told nothing any more"
    snapshot = ShardSnapshot(0, "", "index", (), {"item-features": 33, "new-items": 0}, 33).named("0123456789ab")
    open_index_store(str(tmp_path / "store")).put_bytes(f"{snapshot.directory}/snapshot.json", encode_snapshot(snapshot))
    produce(bootstrap_servers, f"{prefix}index-deltas", 1, told(1, 1, 12))
    assert look() == ("fail", "shard 1: item-features 12 to 24 are gone")
    produce(bootstrap_servers, f"{prefix}index-deltas", 1, told(1, 2, 40))
    state, found = look()
    assert state == "warn" and "shard 1" in found and "shard 0" not in found


def test_the_doctor_names_a_transaction_that_stays_open(prefix: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TRANSACTION_S", 0.1)
    assert doctor.check_transactions(load_settings(InfraSettings)).state == "ok", "no topics yet"
    apply_topics(bootstrap_servers, prefix, 2, 1)
    produce(bootstrap_servers, f"{prefix}item-features", 1, b"x")
    producer = open_transactional(bootstrap_servers, prefix)
    producer.begin_transaction()
    producer.produce(f"{prefix}item-features", b"x", partition=1)
    producer.flush(60)
    produce(bootstrap_servers, f"{prefix}item-features", 1, b"x")
    found = doctor.check_transactions(load_settings(InfraSettings))
    assert found.state == "warn"
    assert found.found == "item-features[1] has an open transaction at offset 1: no reader gets the records after it"
    producer.abort_transaction(60)
    wait_until(lambda: doctor.check_transactions(load_settings(InfraSettings)).state == "ok", 30, "the end of the transaction")


def test_the_doctor_names_a_topic_that_was_grown_or_made_again(prefix: str, bootstrap_servers: str, tmp_path: Path) -> None:
    apply_topics(bootstrap_servers, prefix, 2, 1)
    open_index_store(str(tmp_path / "store"))
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(f"{prefix}item-features", 4)]).values():
        future.result(30)
    found = {one.check: one for one in doctor.examine(load_settings(InfraSettings))}
    assert found["topics"].state == "fail" and "4 partitions" in found["topics"].found and found["retention"].state == "ok"
    init = Init(2, 1, IdKind.INT64, {}, {"item-features": "the one before"})
    ensure_init(ControlLog(open_index_store(str(tmp_path / "store"))), init, 0, "test")
    found = {one.check: one for one in doctor.examine(load_settings(InfraSettings))}
    assert (
        found["topics"].state == "fail"
        and "expected the one before: another cluster answers at this address, or the topic was deleted and made again"
        in found["topics"].found
    )


def test_the_doctor_names_a_topic_of_the_index_that_is_gone_and_does_not_have_it_made_again(
    prefix: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    apply_topics(bootstrap_servers, prefix, 2, 1)
    log, known = ControlLog(open_index_store(str(tmp_path / "store"))), topic_ids(bootstrap_servers, prefix)
    ensure_init(log, Init(2, 1, IdKind.INT64, {}, {"model-checkpoints": known["model-checkpoints"]}), 0, "test")
    delete_topics(bootstrap_servers, [f"{prefix}model-checkpoints"])
    found = doctor.check_topics(load_settings(InfraSettings))
    assert found.state == "fail" and f"{prefix}model-checkpoints" in found.found and "begin a new index" in found.next_step


def test_a_failed_check_is_exit_code_1_and_the_others_are_made_all_the_same(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(doctor, "_ASK_S_MAX", 0.5)
    done = CliRunner().invoke(build_app(), ["doctor", "--json"])
    states = {row["check"]: row["state"] for row in json.loads(done.stdout)["checks"]}
    assert done.exit_code == 1 and states["broker"] == "fail" and states["store"] == "warn"


def test_a_misspelt_setting_of_another_process_is_named_before_that_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("AIF_SERVE__PRT", "8100")
    monkeypatch.setattr(doctor, "_ASK_S_MAX", 0.5)
    done = CliRunner().invoke(build_app(), ["doctor", "--json"])
    told = json.loads(done.stdout)["checks"][0]
    assert (
        done.exit_code == 1 and told["check"] == "settings" and "AIF_SERVE__PRT" in told["found"] and "AIF_SERVE__PORT" in told["next_step"]
    )


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [(401, '{"error": "token"}', "401"), (200, '{"name": "another"}', "residents"), (200, "[]", "indices"), (200, "<p>", "line 1")],
)
def test_a_server_that_does_not_tell_its_state_is_shown_with_the_reason(
    status: int, body: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = httpx.Response(status, text=body, request=httpx.Request("GET", "http://h:1/v1/status"))
    monkeypatch.setattr(httpx, "get", lambda *_, **__: answer)
    row = _fetch_server("http://h:1")
    assert (row["server"], row["ready"]) == ("http://h:1", False) and why in row["why"]


def test_a_shard_whose_disk_takes_no_writes_is_shown_with_its_error_until_it_is_over_or_opened_again(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_topics(bootstrap_servers, prefix, 2, 1)
    monkeypatch.setenv("AIF_KAFKA__TOPIC_PREFIX", prefix)
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path / "store"))
    open_index_store(str(tmp_path / "store"))
    messages = VersionMessages(bootstrap_servers, prefix)

    def announce(kind: str, shard: int, reason: str = "") -> None:
        messages.announce(IndexEvent(kind=kind, version=NO_VERSION, shard=shard, reason=reason))

    assert "statistics_age_s" not in run_aif("status")
    report = StatisticsReport(at_ms=1, as_of_ms=1, names=["taken"])
    producer = open_producer(bootstrap_servers, 10.0)
    producer.produce(f"{prefix}{STATISTICS_REPORTS}", encode_record(report))
    producer.flush(10.0)
    announce(DISK_FAULT, 1, "disk_full: no space left on device")
    announce(DISK_FAULT, 0, "database_failed: input/output error")
    announce(SHARD_OPENED, 0)
    messages.close()
    status = run_aif("status", exit_code=1)
    (row,) = status["standing_shards"]
    assert 0 <= status["statistics_age_s"] < 600
    assert (row["shard"], row["error"]) == (1, "disk_full: no space left on device")
    finding = doctor.check_shards(load_settings(InfraSettings))
    assert finding.state == doctor.FAIL and "shard 1 stands still: disk_full" in finding.found
    with Inspector(bootstrap_servers, prefix, ControlLog(open_index_store(str(tmp_path / "store"))), SystemClock()) as inspector:
        assert any("shard 1 stands still: disk_full" in error for error in inspector.sample().errors)
    messages = VersionMessages(bootstrap_servers, prefix)
    announce(DISK_FAULT_OVER, 1)
    messages.close()
    assert doctor.check_shards(load_settings(InfraSettings)).state == doctor.OK
