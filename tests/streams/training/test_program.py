"""`aif train` as a process on the real broker: checkpoints that may be served, published, and gone on from; text ids too."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.files import sha256_of_file
from infra.kafka.admin import apply_topics
from infra.kafka.reader import read_topic
from infra.settings import InfraSettings, load_settings
from schemas.errors import Incompatible, Misconfigured
from schemas.events import CheckpointRecord, decode_record
from schemas.ids import IdKind
from schemas.model.checkpoint import read_checkpoint
from streams.training.program import TrainPlan, run_training
from streams.training.snapshot import write_snapshot
from streams.training.topic_events import LogAddress
from tests.schemas.catalogue import small_schema
from tests.streams.training.shop import publish_shop

AIF = [sys.executable, "-c", "from infra.cli import main; main()"]


def write_model(folder: Path, kind: IdKind) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps({"schema": small_schema(kind).to_dict(), "model": {"width": 4, "bridges": 2, "hash_bits": 16}}))
    return path


@pytest.fixture
def variables(bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> dict[str, str]:
    return {
        "AIF_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers,
        "AIF_KAFKA__TOPIC_PREFIX": topic_prefix,
        "AIF_INDEX__STORE": str(tmp_path / "store"),
        "AIF_INDEX__SHARDS": "2",
        "AIF_INDEX__USER_PARTITIONS": "2",
    }


def train(variables: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = [*AIF, "train", *arguments, "--json"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_trains_publishes_and_goes_on_from_a_checkpoint(
    variables: dict[str, str], bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    model = ("--model", str(write_model(tmp_path, IdKind.INT64)), "--out", str(tmp_path / "a"))
    report = train(variables, *model, "--steps", "20", "--more", "1", "--wait-impressions", "4", "--publish")
    assert report["command"] == "train"
    assert {name: report["figures"][name]["value"] for name in ("requests", "skipped_items", "steps")} == {
        "requests": 3,
        "skipped_items": 2,
        "steps": 20,
    }
    files = sorted((tmp_path / "a").iterdir())
    assert [f.name for f in files] == ["aif-0000.safetensors", "aif-0001.safetensors"]
    first, second = (read_checkpoint(f).network.state_dict() for f in files)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    records = [decode_record(CheckpointRecord, r.value) for r in read_topic(bootstrap_servers, "model-checkpoints", prefix=topic_prefix)]
    assert [(r.uri, r.sha256, r.model_id) for r in records] == [(f.as_uri(), sha256_of_file(f), f.stem) for f in files]
    report = train(variables, "--warm-start", str(files[0]), "--name", "next", "--out", str(tmp_path / "b"), "--steps", "3")
    (again,) = (tmp_path / "b").iterdir()
    network = read_checkpoint(again).network
    assert again.name == "next-0000.safetensors" and report["figures"]["steps"]["value"] == 3
    assert (network.w_hash_KM == read_checkpoint(files[0]).network.w_hash_KM).all()  # signatures that exist stay right


def test_text_ids_train_alike_and_the_same_steps_give_the_same_file(
    variables: dict[str, str], bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**variables, "AIF_INDEX__ID_KIND": "text"}.items():
        monkeypatch.setenv(name, value)
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.TEXT)
    model = write_model(tmp_path, IdKind.TEXT)
    files = []
    for folder in ("a", "b"):
        plan = TrainPlan(tmp_path / folder, model, None, "aif", 0, 1, threads=1, publish=False, given={"steps": 4, "seed": 5})
        figures = run_training(load_settings(InfraSettings), plan)
        assert figures.value("requests") == 3
        files.append(read_checkpoint(tmp_path / folder / "aif-0000.safetensors").network.state_dict())
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    log = LogAddress(bootstrap_servers, topic_prefix, 2, 2, IdKind.TEXT)
    write_snapshot(tmp_path / "snapshot", log, log.range_now())
    run_training(load_settings(InfraSettings), dataclasses.replace(plan, out=tmp_path / "c", snapshot=tmp_path / "snapshot"))
    of_topics, of_snapshot = (read_checkpoint(tmp_path / folder / "aif-0000.safetensors").info for folder in ("b", "c"))
    assert of_topics.tensors_sha256 == of_snapshot.tensors_sha256
    data = of_snapshot.card["data"]
    assert of_topics.card["train"]["steps"] == 4 and of_topics.card["train"]["seed"] == 5
    assert data == of_topics.card["data"] and (data["from_ms"], data["until_ms"]) == (100, 300)
    assert sum(data["offsets"]["impressions"].values()) == 4


def test_nothing_to_train_and_nothing_to_learn_from_are_said(
    variables: dict[str, str], bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(InfraSettings)
    with pytest.raises(Misconfigured, match="no_model"):
        run_training(settings, TrainPlan(tmp_path, None, None, "aif", 0, 1, 1, False, given={"steps": 1}))
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    with pytest.raises(Misconfigured, match="nothing_to_learn"):
        run_training(settings, TrainPlan(tmp_path, write_model(tmp_path, IdKind.INT64), None, "aif", 0, 1, 1, False, given={"steps": 1}))


def test_a_killed_run_goes_on_with_the_same_offsets_and_weights_whatever_was_published_since(
    variables: dict[str, str],
    bootstrap_servers: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from streams.training import trainer

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    settings, model = load_settings(InfraSettings), write_model(tmp_path, IdKind.INT64)

    def plan(folder: str, state: str | None) -> TrainPlan:
        given = {"steps": 50, "seed": 5}
        return TrainPlan(tmp_path / folder, model, None, "aif", 0, 1, 1, False, state=state and tmp_path / state, given=given)

    run_training(settings, plan("whole", None))
    step, done = trainer.train_step, 0

    def killed(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == 30:
            raise KeyboardInterrupt
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, plan("killed", "state"))
    assert f"{tmp_path / 'state'} has the state of the fit: the same command goes on from it" in capsys.readouterr().err
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    run_training(settings, plan("resumed", "state"))
    whole, resumed = (read_checkpoint(tmp_path / folder / "aif-0000.safetensors") for folder in ("whole", "resumed"))
    assert whole.info.tensors_sha256 == resumed.info.tensors_sha256
    with pytest.raises(Incompatible, match="other_run"):
        run_training(settings, dataclasses.replace(plan("other", "state"), given={"steps": 50, "seed": 6}))
    with pytest.raises(Misconfigured, match="state_needs_steps"):
        run_training(settings, dataclasses.replace(plan("other", "state"), given={"seed": 5}))
