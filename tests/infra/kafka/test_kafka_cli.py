"""`aif topics` and `aif publish` against the real broker."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from infra.kafka.json_lines import JsonLines
from infra.kafka.reader import read_topic
from schemas.errors import AifError
from schemas.events import CheckpointRecord, ItemFeaturesRecord, ItemFeaturesUpdate, decode_record
from schemas.ids import IdKind
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import MODEL_CHECKPOINTS, TOPICS
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
    monkeypatch.setenv("AIF_INDEX__SHARDS", "3")
    with pytest.raises(AifError, match=r"topic_change_refused.*--allow-growth"):
        run_aif("topics", "apply")
    with pytest.raises(AifError, match="other_index"):
        run_aif("topics", "apply", "--allow-growth")


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


def test_a_checkpoint_file_becomes_a_pointer_to_it(prefix: str, bootstrap_servers: str, tmp_path: Path) -> None:
    import hashlib

    import numpy as np
    from safetensors.numpy import save_file

    run_aif("topics", "apply")
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(3)}, path, {"aif": json.dumps({"model_id": "m-1", "schema_fingerprint": "0123456789abcdef"})})
    assert run_aif("publish", "checkpoint", str(path), "--no-check", "--label", "first")["version"] == 0
    (record,) = read_topic(bootstrap_servers, "model-checkpoints", prefix=prefix)
    pointer = decode_record(CheckpointRecord, record.value)
    assert pointer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (pointer.size_bytes, pointer.model_id, pointer.label) == (path.stat().st_size, "m-1", "first")
    assert pointer.uri == path.as_uri()


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


@pytest.mark.parametrize(
    ("roots", "id_kind", "refusal"), [("other", "int64", "checkpoint_outside_root"), ("", "text", "checkpoint_id_kind"), ("", "int64", "")]
)
def test_a_checkpoint_that_a_worker_would_not_read_is_not_announced(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roots: str, id_kind: str, refusal: str
) -> None:
    (path := tmp_path / "m.safetensors").write_bytes(checkpoint_bytes())
    monkeypatch.setenv("AIF_BUILD__CHECKPOINT_ROOTS", json.dumps([str(tmp_path / roots)]))
    monkeypatch.setenv("AIF_INDEX__ID_KIND", id_kind)
    if refusal:
        with pytest.raises(AifError, match=refusal):
            run_aif("publish", "checkpoint", str(path))
    else:
        run_aif("topics", "apply")
        assert run_aif("publish", "checkpoint", str(path))["version"] == 0
