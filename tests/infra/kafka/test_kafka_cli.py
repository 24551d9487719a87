"""`aif topics` and `aif publish` against the real broker."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from infra.index.store import open_index_store
from infra.kafka.admin import fetch_topics
from infra.kafka.json_lines import JsonLines
from infra.kafka.reader import read_topic
from infra.processes import wait_until
from schemas.decoding import decode_record
from schemas.errors import AifError
from schemas.events import Behaviour, CheckpointRecord, ItemFeaturesRecord, ItemFeaturesUpdate
from schemas.ids import IdKind
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import ITEM_FEATURES, MODEL_CHECKPOINTS, TOPICS
from tests.infra.aif_command import run_aif
from tests.streams.version_world import checkpoint_bytes


def test_plan_shows_what_apply_then_does_and_status_shows_the_topics(prefix: str, bootstrap_servers: str) -> None:
    planned = run_aif("topics", "plan")["changes"]
    assert len(planned) == len(TOPICS)
    assert run_aif("topics", "apply")["changes"] == planned
    assert run_aif("topics", "plan")["changes"] == []
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(f"{prefix}{MODEL_CHECKPOINTS}", b"{}", b"", 0)
    assert producer.flush(30) == 0
    shown = {row["topic"]: row["undecided"] for row in run_aif("status")["topics"]}
    assert shown == {t.name: "" for t in TOPICS} | {MODEL_CHECKPOINTS: 1}


def test_another_number_of_shards_is_refused_as_another_index(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_aif("topics", "apply")
    with monkeypatch.context() as changed:
        changed.setenv("AIF_INDEX__SHARDS", "3")
        for arguments in ((), ("--allow-growth",)):
            with pytest.raises(AifError, match="other_index"):
                run_aif("topics", "apply", *arguments)
        with pytest.raises(AifError, match="other_index"):
            run_aif("topics", "plan")
    assert run_aif("topics", "plan")["changes"] == [], "nothing was changed before that"


def test_partitions_that_somebody_added_to_an_item_topic_are_named_by_every_command(prefix: str, bootstrap_servers: str) -> None:
    run_aif("topics", "apply")
    found = fetch_topics(bootstrap_servers, prefix)[ITEM_FEATURES]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_partitions([NewPartitions(prefix + ITEM_FEATURES, found.partitions + 1)])[prefix + ITEM_FEATURES].result(30)
    wait_until(lambda: fetch_topics(bootstrap_servers, prefix)[ITEM_FEATURES].partitions > found.partitions, 30, "the partition")
    status = run_aif("status", exit_code=1)
    checks = {row["check"]: row for row in run_aif("doctor", exit_code=1)["checks"]}
    with pytest.raises(AifError) as refused:
        run_aif("topics", "apply")
    told = [status["topics_error"], checks["topics"]["found"] + checks["topics"]["next_step"], str(refused.value)]
    assert all("other_partitions" in text and "into a new index" in text for text in told), told
    assert not any("allow-" in text or "topics apply" in text for text in told)


def test_good_lines_are_published_and_bad_ones_are_named(prefix: str, bootstrap_servers: str, tmp_path: Path) -> None:
    run_aif("topics", "apply")
    file = tmp_path / "items.jsonl"
    good = [json.dumps({"item_id": i, "version": 1, "features": {"price": i}}) for i in range(300)]
    file.write_text("\n".join([*good[:100], "not json", '{"item_id": "x", "version": 1}', "", '{"item_id": 1}', *good[100:]]))
    data = run_aif("publish", "items", str(file), exit_code=1)
    assert (data["published"], data["rejected"]) == (300, 3)
    read = list(read_topic(bootstrap_servers, "item-features", prefix=prefix))
    updates = [u for r in read for u in decode_record(ItemFeaturesRecord, r.value).updates]
    assert sorted(u.item_id for u in updates) == list(range(300))


def test_rejected_lines_carry_their_number_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    too_long = b" " * RECORD_BYTES_MAX + b'x{"item_id": 3, "version": 1}'
    file.write_bytes(
        b'{"item_id": 1, "version": 1}\n\xff\xfe\n{"item_id": 1, "version": -1}\n'
        + too_long
        + b'\n{"item_id": 2, "version": 2}\n\n{"item_id": "a", "version": 2}'
    )
    read: list[int] = []
    lines = JsonLines(file, ItemFeaturesUpdate, IdKind.INT64, read.append)
    assert [u.item_id for u in lines] == [1, 2] and sum(read) == file.stat().st_size
    assert lines.rejected == 4
    assert [reason.split(":")[0] for reason in lines.reasons] == ["line 2", "line 3", "line 4", "line 7"]
    assert "version" in lines.reasons[1]
    assert "line_too_long" in lines.reasons[2]
    assert "bad_id" in lines.reasons[3]


def test_a_time_in_seconds_is_rejected_and_small_times_of_trials_are_not(tmp_path: Path) -> None:
    file, times = tmp_path / "behaviours.jsonl", (0, 5, 1_795_810_040, 1_795_810_040_047)
    file.write_text("\n".join(json.dumps({"user_id": 1, "item_id": 2, "kind": "click", "time_ms": t}) for t in times))
    lines = JsonLines(file, Behaviour, IdKind.INT64)
    assert [b.time_ms for b in lines] == [0, 5, 1_795_810_040_047]
    assert lines.reasons == [
        "line 3: bad_event: time_ms 1795810040 is a day of 1970, and looks like seconds; expected milliseconds since 1970"
    ]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 8 + b"{}", (2).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_no_checkpoint_is_not_announced(prefix: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    run_aif("topics", "apply")
    for flag in ("--check", "--no-check"):
        with pytest.raises(AifError, match="checkpoint_"):
            run_aif("publish", "checkpoint", str(tmp_path / "x"), flag)


def test_publishing_without_topics_says_what_to_do(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "items").write_text("")
    with pytest.raises(AifError, match="aif topics apply"):
        run_aif("publish", "items", str(tmp_path / "items"))


@pytest.mark.parametrize("id_kind", ["int64", "text"])
def test_a_published_checkpoint_is_in_the_index_store_or_it_is_not_announced(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_kind: str
) -> None:
    monkeypatch.setenv("AIF_INDEX__ID_KIND", id_kind)
    run_aif("topics", "apply")
    (path := tmp_path / "anywhere.safetensors").write_bytes(data := checkpoint_bytes())
    sha256 = hashlib.sha256(data).hexdigest()
    if id_kind == "text":
        with pytest.raises(AifError, match="checkpoint_id_kind"):
            run_aif("publish", "checkpoint", str(path))
        assert list(read_topic(bootstrap_servers, MODEL_CHECKPOINTS, prefix=prefix)) == []
        return
    assert run_aif("publish", "checkpoint", str(path), "--no-check", "--label", "first")["version"] == 0
    [record] = read_topic(bootstrap_servers, MODEL_CHECKPOINTS, prefix=prefix)
    announced = decode_record(CheckpointRecord, record.value)
    assert announced.uri == f"index:checkpoints/{sha256}.safetensors" and announced.sha256 == sha256
    assert (announced.size_bytes, announced.model_id, announced.label) == (len(data), "model-0", "first")
    assert open_index_store(os.environ["AIF_INDEX__STORE"]).get(f"checkpoints/{sha256}.safetensors") == data


def test_no_checkpoint_is_announced_to_a_store_without_an_index(
    prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_aif("topics", "apply")
    (path := tmp_path / "m.safetensors").write_bytes(checkpoint_bytes())
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path / "another"))
    with pytest.raises(AifError, match="no_index"):
        run_aif("publish", "checkpoint", str(path))
    assert list(read_topic(bootstrap_servers, MODEL_CHECKPOINTS, prefix=prefix)) == []
