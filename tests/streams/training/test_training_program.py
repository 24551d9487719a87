"""`aif train` as a process on the real broker: checkpoints that may be served, published, and continued from; text ids too."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.files import sha256_of_file
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics
from infra.kafka.reader import read_topic
from infra.settings import InfraSettings, load_settings
from schemas.decoding import decode_record
from schemas.errors import Incompatible, Misconfigured
from schemas.events import CheckpointRecord
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.manifest import checkpoint_path, checkpoint_uri
from schemas.model.checkpoint import read_checkpoint
from schemas.train_choices import TrainChoices
from streams.training.topic_events import TopicEvents
from streams.training.topic_snapshot import write_snapshot
from streams.training.training_program import TrainPlan, choose_for_fit, run_training
from tests.schemas.catalogue import small_schema
from tests.streams.training.shop import publish_shop

AIF = [sys.executable, "-c", "from infra.cli import main; main()"]


def write_model(folder: Path, kind: IdKind) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps({"schema": small_schema(kind).to_dict(), "model": {"width": 4, "bridges": 2, "hash_bits": 16}}))
    return path


@pytest.fixture
def settings(bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InfraSettings:
    """Those of this process and of its children."""
    for name, value in {
        "KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers,
        "KAFKA__TOPIC_PREFIX": topic_prefix,
        "INDEX__STORE": str(tmp_path / "store"),
        "INDEX__SHARDS": "2",
        "INDEX__USER_PARTITIONS": "2",
    }.items():
        monkeypatch.setenv(f"AIF_{name}", value)
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    return load_settings(InfraSettings)


def plan_of(out: Path, model: Path | None, **more: Any) -> TrainPlan:
    given = {"steps": 1, **more.pop("given", {})}
    return TrainPlan(out, model, None, "aif", 0, 1, threads=1, publish=False, given=given, **more)


def test_a_process_trains_publishes_and_goes_on_from_a_checkpoint(
    settings: InfraSettings, bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    ensure_init(ControlLog(open_index_store(settings.index.store)), Init(2, 2, IdKind.INT64, {}), 0, "test")
    options = ["--out", str(tmp_path / "a"), "--steps", "20", "--more", "1", "--wait-impressions", "4", "--publish", "--json"]
    command = [*AIF, "train", "--model", str(write_model(tmp_path, IdKind.INT64)), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
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
    assert [(r.uri, r.sha256, r.model_id) for r in records] == [
        (checkpoint_uri(sha256_of_file(f)), sha256_of_file(f), f.stem) for f in files
    ]
    store = open_index_store(settings.index.store)
    assert [store.get(checkpoint_path(r.sha256)) for r in records] == [f.read_bytes() for f in files]
    warm = dataclasses.replace(plan_of(tmp_path / "b", None, held_out=0.5, given={"steps": 3}), warm_start=files[0], name="next")
    figures = run_training(settings, warm)
    (again,) = (tmp_path / "b").iterdir()
    network, card = read_checkpoint(again).network, read_checkpoint(again).info.card
    assert read_checkpoint(files[0]).info.card["held_out"] is None  # of two users, 2% are none
    assert card["requests"] == 1 and card["held_out"]["requests"] == 2 and 0 <= card["held_out"]["gauc"][0] <= 1
    assert again.name == "next-0000.safetensors" and figures.value("steps") == 3
    assert (network.w_hash_KM == read_checkpoint(files[0]).network.w_hash_KM).all()  # signatures that exist stay right


def test_text_ids_train_alike_and_the_same_steps_give_the_same_file(
    settings: InfraSettings, bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIF_INDEX__ID_KIND", "text")
    settings = load_settings(InfraSettings)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.TEXT)
    model = write_model(tmp_path, IdKind.TEXT)
    files = []
    for folder in ("a", "b"):
        plan = plan_of(tmp_path / folder, model, given={"steps": 4, "seed": 5})
        figures = run_training(settings, plan)
        assert figures.value("requests") == 3
        files.append((tmp_path / folder / "aif-0000.safetensors").read_bytes())
    assert files[0] == files[1]
    log = TopicEvents(bootstrap_servers, topic_prefix, 2, 2, IdKind.TEXT)
    write_snapshot(tmp_path / "snapshot", log, log.range_now())
    run_training(settings, dataclasses.replace(plan, out=tmp_path / "c", snapshot=tmp_path / "snapshot"))
    of_topics, of_snapshot = (read_checkpoint(tmp_path / folder / "aif-0000.safetensors").info for folder in ("b", "c"))
    assert of_topics.tensors_sha256 == of_snapshot.tensors_sha256
    with_ranker = json.loads(model.read_text())
    with_ranker["model"]["ranker"] = {"width": 8, "layers": 1, "history_max": 8, "history_step": 4}
    model.write_text(json.dumps(with_ranker))
    plan = plan_of(tmp_path / "d", model, given={"steps": 4, "seed": 5, "ranker_steps": 3})
    run_training(settings, dataclasses.replace(plan, snapshot=tmp_path / "snapshot"))
    ranked = read_checkpoint(tmp_path / "d" / "aif-0000.safetensors")
    assert ranked.network.ranker is not None and ranked.network.ranker.head.weight.any() and ranked.info.card["ranker_loss"] > 0
    data = of_snapshot.card["data"]
    assert of_topics.card["train"]["steps"] == 4 and of_topics.card["train"]["seed"] == 5
    assert data == of_topics.card["data"] and (data["from_ms"], data["until_ms"]) == (100, 300)
    assert sum(data["offsets"]["impressions"].values()) == 4


def test_only_a_fit_of_new_weights_holds_its_rate(tmp_path: Path) -> None:
    chosen, new = TrainChoices(steps=100), plan_of(tmp_path, None)
    warm = dataclasses.replace(new, warm_start=tmp_path / "a.safetensors")
    assert choose_for_fit(new, chosen, 0) == chosen and chosen.hold > 0
    assert [choose_for_fit(*of).hold for of in ((new, chosen, 1), (warm, chosen, 0), (warm, chosen, 1))] == [0, 0, 0]


def test_nothing_to_train_and_nothing_to_learn_from_are_said(settings: InfraSettings, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no_model"):
        run_training(settings, plan_of(tmp_path, None))
    with pytest.raises(Misconfigured, match="nothing_to_learn"):
        run_training(settings, plan_of(tmp_path, write_model(tmp_path, IdKind.INT64)))


def test_a_log_that_would_be_read_as_of_other_ids_is_refused_and_nothing_becomes_a_dead_letter(
    settings: InfraSettings, bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    publish_shop(bootstrap_servers, topic_prefix, IdKind.TEXT)
    with pytest.raises(Misconfigured, match="id_kind_differs: the model has text ids, the log would be read as of int64 ids"):
        run_training(settings, plan_of(tmp_path, write_model(tmp_path, IdKind.TEXT)))
    assert not list(read_topic(bootstrap_servers, "dlq.impressions", prefix=topic_prefix))


def test_a_killed_run_goes_on_with_the_same_offsets_and_weights_whatever_was_published_since(
    settings: InfraSettings,
    bootstrap_servers: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from streams.training import trainer

    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    model = write_model(tmp_path, IdKind.INT64)

    def plan(folder: str, state: str | None) -> TrainPlan:
        return plan_of(tmp_path / folder, model, state=state and tmp_path / state, given={"steps": 50, "seed": 5})

    run_training(settings, plan("whole", None))
    step, done = trainer.Learner.take_step, 0

    def killed(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == 30:
            raise KeyboardInterrupt
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Learner, "take_step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, plan("killed", "state"))
    assert f"{tmp_path / 'state'} has the state of the fit: the same command continues from it" in capsys.readouterr().err
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    run_training(settings, plan("resumed", "state"))
    whole, resumed = (read_checkpoint(tmp_path / folder / "aif-0000.safetensors") for folder in ("whole", "resumed"))
    assert whole.info.tensors_sha256 == resumed.info.tensors_sha256
    with pytest.raises(Incompatible, match="other_run"):
        run_training(settings, dataclasses.replace(plan("other", "state"), given={"steps": 50, "seed": 6}))
    with pytest.raises(Misconfigured, match="state_needs_steps"):
        run_training(settings, dataclasses.replace(plan("other", "state"), given={"seed": 5}))
