"""The file that says what to train: its choices, and errors that name the file and the place."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from schemas.errors import Incompatible, Misconfigured
from schemas.ids import IdKind
from schemas.model.checkpoint import write_checkpoint
from schemas.train_choices import TrainChoices, decode_assignments
from streams.training.following.follower_program import FollowPlan
from streams.training.following.learner import follower_choices
from streams.training.model_file import default_spec, read_model_file, read_train_choices
from streams.training.training_program import TrainPlan
from tests.schemas.catalogue import small_schema
from tests.streams.training.following.stream import TasteStream


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "does not read"),
        ("[]", "list"),
        ("{}", r"no \[schema\]"),
        ('{"schema": 3}', "schema is int"),
        ('{"schema": {"features": 3}}', r"\[schema\]"),
        ('{"schema": {"features": [], "bid": "cost"}}', r"\[schema\].*bid.*cost"),
        ('{"schema": {"features": [{"name": "a", "scope": "item", "kind": "colour"}]}}', r"\[schema\].*colour"),
        ('{"schema": SCHEMA, "model": []}', "model is list"),
        ('{"schema": SCHEMA, "model": {"depth": 3}}', r"\[model\].*depth"),
        ('{"schema": SCHEMA, "model": {"schema": 3}}', r"\[model\].*schema"),
        ('{"schema": SCHEMA, "model": {"width": "wide"}}', r"\[model\].*width.*wide"),
        ('{"schema": SCHEMA, "model": {"width": 0}}', r"\[model\].*width"),
        ('{"schema": SCHEMA, "model": {"rank_by": "luck"}}', r"\[model\].*rank_by.*luck"),
        ('{"schema": SCHEMA, "model": {"item_hidden": [64, -3]}}', r"item_hidden = 64, -3, expected each 1 to 8,192"),
        ('{"schema": SCHEMA, "model": {"head_hidden": [0.5]}}', r"head_hidden = 0.5, expected 1 to"),
        ('{"schema": SCHEMA, "model": {"user_hidden": [1,1,1,1,1,1,1,1,1]}}', r"user_hidden has 9 layers, expected at most 8"),
        ('{"schema": SCHEMA, "model": {"embedding_width": 0}}', r"embedding_width = 0, expected 1 to 512"),
        ('{"schema": SCHEMA, "model": {"item_id_buckets": 1000000000000}}', r"item_id_buckets = 1000000000000, expected 0 to"),
        ('{"schema": SCHEMA, "model": {"sim_behaviours": -1}}', r"sim_behaviours = -1, expected 1 to"),
        ('{"schema": SCHEMA, "model": {"tier_edges": [NaN]}}', r"tier_edges = nan, expected 1 to 63 ascending numbers from 0 to 1"),
        ('{"schema": SCHEMA, "model": {"hash_bit": 3}}', r"\[model\].*did you mean 'hash_bits'"),
        ('{"schema": SCHEMA, "tain": {}}', r"\[tain\].*did you mean 'train'"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text.replace("SCHEMA", json.dumps(small_schema().to_dict())))
    with pytest.raises(Misconfigured, match=rf"model\.json.*{words}"):
        read_model_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.toml"):
        read_model_file(tmp_path / "nowhere.toml")


def test_a_file_may_change_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "model": {"width": 12, "recency": [5, 20], "rank_by": "click"}}))
    spec = read_model_file(path)
    assert (spec.width, spec.recency, spec.rank_by, spec.schema) == (12, (5, 20), "click", small_schema())


@pytest.mark.parametrize("recency", [[5, 5], [20, 5], [0], [2.5], [10**6], list(range(1, 10)), 5, ["5"]])
def test_scales_of_recency_that_mean_nothing_are_refused(tmp_path: Path, recency: object) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "model": {"recency": recency}}))
    with pytest.raises(Misconfigured, match=r"model\.json \[model\].*recency = "):
        read_model_file(path)


def test_toml_says_the_same_as_json(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        """
        [schema]
        id_kind = "text"
        [schema.features.colour]
        scope = "item"
        kind = "categorical"
        buckets = 9
        """
    )
    spec = read_model_file(path)
    assert spec == default_spec(spec.schema) and spec.rank_by == "click"
    assert spec.schema.id_kind is IdKind.TEXT and spec.schema.item("colour").buckets == 9


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"learning_rat": 1}, r"learning_rat .*did you mean 'learning_rate'"),
        ({"steps": 2.5}, "steps = 2.5"),
        ({"learning_rate": 0}, "learning_rate = 0"),
        ({"copr": -1}, "copr = -1"),
        ({"copr": 0, "click": 0}, "nothing would be learnt"),
        ({"start": "warm"}, "start = 'warm'.*similarity"),
        ({"soft_labels": 1}, "soft_labels = 1"),
        ({"fits": 0}, "fits = 0"),
        ({"half_life_days": 1e-300}, "half_life_days = 1e-300"),
    ],
)
def test_a_bad_choice_of_train_is_refused_with_its_name(tmp_path: Path, choices: dict[str, object], words: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "train": choices}))
    with pytest.raises(Misconfigured, match=rf"model\.json \[train\].*{words}"):
        read_train_choices(path)


def test_the_command_line_comes_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "train": {"learning_rate": 0.01, "softmax": 1, "steps": 9}}))
    given = decode_assignments(["softmax = 0.5", "soft_labels=true"]) | {"steps": 3}
    plan = TrainPlan(tmp_path, path, None, "aif", 0, 1, 1, False, given=given)
    assert plan.train == TrainChoices(learning_rate=0.01, softmax=0.5, steps=3, soft_labels=True)
    result = CliRunner().invoke(build_app(), ["train", "--model", str(path), "--set", "softmax=0.5", "--dry-run", "--json"])
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)["train"]}
    assert rows["softmax"] == (0.5, "command line") and rows["steps"] == (9, f"file {path} [train]") and rows["copr"] == (0.3, "default")
    for text, words in (
        ("softmx=1", "did you mean 'softmax'"),
        ("behaviours_max=9", r"belongs in \[model\]"),
        ("steps=many", "expected int"),
        ("steps", "name=value"),
    ):
        with pytest.raises(Misconfigured, match=words):
            decode_assignments([text])


def test_without_a_file_what_is_learnt_is_what_the_checkpoint_was_taught(tmp_path: Path) -> None:
    base, stream = tmp_path / "base.safetensors", TasteStream()
    taught = TrainChoices(copr=0.0, click=0.0, softmax=1.0, soft_labels=True, steps=7, learning_rate=0.1)
    write_checkpoint(base, stream.network(), "base", {"train": taught.to_dict()})
    plan = TrainPlan(tmp_path, None, base, "aif", 0, 1, 1, False, given={"softmax": 0.5})
    expected = TrainChoices(copr=0.0, click=0.0, softmax=0.5, soft_labels=True)
    assert plan.train == expected
    assert FollowPlan(tmp_path, given={"softmax": 0.5, "learning_rate": 4e-3}).learning({"train": taught.to_dict()}) == expected
    shown = CliRunner().invoke(build_app(), ["train", "--warm-start", str(base), "--dry-run", "--json"])
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)["train"]}
    assert rows["copr"] == (0.0, "card of the checkpoint") and rows["steps"] == (0, "default")
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"schema": stream.spec.schema.to_dict(), "model": {"width": 4}, "train": {"copr": 0.7}}))
    assert dataclasses.replace(plan, model=model, given={}).train == TrainChoices(copr=0.7)
    refused = CliRunner().invoke(build_app(), ["train", "--warm-start", str(base), "--model", str(model), "--out", str(tmp_path)])
    assert isinstance(refused.exception, Incompatible) and "other_model" in str(refused.exception)


def test_a_fit_ends_by_what_was_named_last() -> None:
    passes = TrainChoices(seconds=3.0).replaced({"passes": 2, "batch_requests": 16})
    assert [passes.with_steps(requests).steps for requests in (0, 500, 5_600, 10**6)] == [100, 100, 700, 2_000]
    assert passes.replaced({"steps": 9}).with_steps(5_600).steps == 9
    by_the_clock = passes.replaced({"seconds": 4.0})
    assert by_the_clock.with_steps(5_600) == by_the_clock == TrainChoices(seconds=4.0, batch_requests=16)
    assert TrainChoices(steps=9).replaced({"passes": 2}).steps == TrainChoices(steps=9).replaced({"seconds": 2}).steps == 0
    assert TrainChoices().replaced({"steps": 9, "passes": 2, "seconds": 5}).with_steps(5_600).steps == 9


def test_only_a_dry_run_needs_no_folder_for_checkpoints(tmp_path: Path) -> None:
    refused = CliRunner().invoke(build_app(), ["train", "--seconds", "1"])
    assert refused.exit_code == 2 and "folder for the checkpoints" in refused.stderr


def test_a_follower_takes_choices_that_mean_something_to_it() -> None:
    assert follower_choices({"learning_rate": 0.002, "softmax": 1}).softmax == 1
    assert follower_choices({}) == TrainChoices(learning_rate=1e-3)
    with pytest.raises(Misconfigured, match="steps has no meaning with --follow"):
        follower_choices({"steps": 5})


def test_a_follower_takes_the_file_of_its_model_with_a_quarter_of_a_fits_rate_unless_a_rate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "train": {"learning_rate": 0.008, "copr": 0, "steps": 9}}))
    followed = follower_choices({}, read_train_choices(path))
    assert (followed.learning_rate, followed.copr, followed.batch_requests) == (0.002, 0.0, TrainChoices().batch_requests)
    assert follower_choices({"learning_rate": 0.003}, read_train_choices(path)).learning_rate == 0.003
    shown = CliRunner().invoke(build_app(), ["train", "--follow", "--model", str(path), "--out", str(tmp_path), "--dry-run", "--json"])
    rows = {row["name"]: row["value"] for row in json.loads(shown.stdout)["train"]}
    assert rows["learning_rate"] == 0.002 and rows["copr"] == 0 and "steps" not in rows


def test_all_settings_are_shown_with_the_choices_of_a_models_file_and_the_origin_of_each(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "train": {"learning_rate": 0.008}}))

    def shown(*options: str) -> dict[str, tuple[object, str]]:
        rows = json.loads(CliRunner().invoke(build_app(), ["config", "show", *options, "--json"]).stdout)["settings"]
        return {row["name"]: (row["value"], row["origin"]) for row in rows}

    rows = shown("--model", str(path))
    assert rows["train.learning_rate"] == (0.008, f"file {path} [train]") and rows["train.copr"] == (0.3, "default")
    assert rows["train.status_every_s"][1] == "default" and shown()["train.learning_rate"] == (TrainChoices().learning_rate, "default")


def test_a_training_starts_at_low_priority_so_that_a_server_beside_it_keeps_its_cores(tmp_path: Path) -> None:
    code = (
        "import os, sys, streams.training.training_program as program\n"
        "program.run_training = lambda *_: print('nice', os.nice(0)) or sys.exit()\n"
        "from infra.cli import main\n"
        "main()"
    )
    before = os.nice(0)
    shown = subprocess.run([sys.executable, "-c", code, "train", "--out", str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(shown.stdout.split()[1]) == max(10, before)
