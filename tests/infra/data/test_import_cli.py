"""`aif import`: what a dry run shows is what is then published."""

import contextlib
import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.kafka.reader import read_topic
from schemas.decoding import decode_record
from schemas.errors import AifError
from schemas.events import RECORDS
from schemas.features import decode_feature_schema
from schemas.train_choices import FOR_SHOWN
from streams.training.model_file import read_train_choices
from tests.infra.aif_command import run_aif
from tests.infra.data.shops import write_items, write_number_shop, write_text_shop

COUNTED = ("item-features", "new-items", "user-features", "user-behaviours", "impressions")


_run = functools.partial(run_aif, "import")


def test_a_dry_run_shows_counts_three_events_of_each_kind_and_rejected_rows(tmp_path: Path) -> None:
    mapping = write_text_shop(tmp_path)
    report = _run(str(tmp_path), "--mapping", str(mapping), "--dry-run")
    assert set(report["counts"]) == set(COUNTED) and all(report["counts"].values())
    assert all(len(samples) == 3 for samples in report["samples"].values())
    assert report["items"] == 36 and report["rejected"] == 2
    assert report["rejections"][1] == "log.csv row 1502 [behaviours]: no usable time: column 'at' is 'yesterday'"


def test_many_rejected_rows_are_counted_by_section_and_reason(tmp_path: Path) -> None:
    mapping = write_items(
        tmp_path, '[items]\nfile = "items.csv"\nid = "id"\n[embeddings]\ncolumn = "v"\n', id=["a", *[""] * 30], v=["1 2"] * 31
    )
    result = CliRunner().invoke(build_app(), ["import", str(tmp_path), "--mapping", str(mapping), "--dry-run"])
    assert result.stderr.count("rejected items.csv") == 20
    assert "and 40 more rows; in all [items] no usable id: 30, [embeddings] no usable id: 30" in result.stderr
    assert _run(str(tmp_path), "--mapping", str(mapping), "--dry-run")["rejected_by_reason"]["[items] no usable id"] == 30


def test_items_alone_publish_without_impressions(tmp_path: Path) -> None:
    mapping = write_items(tmp_path, '[items]\nfile = "items.csv"\nid = "id"\n', id=["a", "b"])
    result = CliRunner().invoke(build_app(), ["import", str(tmp_path), "--mapping", str(mapping), "--dry-run"])
    assert result.exit_code == 0 and "no impressions" in result.stderr
    assert [int(line.split()[1]) for line in result.stdout.splitlines()[:5]] == [2, 2, 0, 0, 0], "items and their marks"


def test_the_model_file_holds_the_schema_and_the_choices(tmp_path: Path) -> None:
    mapping = write_number_shop(tmp_path)
    report = _run(str(tmp_path), "--mapping", str(mapping), "--dry-run", "--model-out", str(tmp_path / "new" / "model.json"))
    written = json.loads((tmp_path / "new" / "model.json").read_text())
    assert decode_feature_schema(written["schema"]).fingerprint == report["schema"]["fingerprint"]
    assert written["model"] == {"rank_by": "click * shown * bid", "hash_bits": 256, "tasks": ["click", "shown"]}
    of_shown = dataclasses.replace(FOR_SHOWN, batch_requests=25)  # of eight items each
    assert read_train_choices(tmp_path / "new" / "model.json") == of_shown


@pytest.mark.usefixtures("prefix")
def test_ids_that_the_index_was_not_made_for_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = write_text_shop(tmp_path)
    run_aif("topics", "apply")
    monkeypatch.setenv("AIF_INDEX__ID_KIND", "text")
    with pytest.raises(AifError, match=r"was made for int64 ids .* AIF_KAFKA__TOPIC_PREFIX of its own"):
        _run(str(tmp_path), "--mapping", str(mapping))


def test_what_is_imported_is_on_the_topics(prefix: str, bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = write_text_shop(tmp_path)
    with pytest.raises(AifError, match="AIF_INDEX__ID_KIND=text"):
        _run(str(tmp_path), "--mapping", str(mapping))
    monkeypatch.setenv("AIF_INDEX__ID_KIND", "text")
    with pytest.raises(AifError, match="`aif topics apply`"):
        _run(str(tmp_path), "--mapping", str(mapping))
    run_aif("topics", "apply")
    planned = _run(str(tmp_path), "--mapping", str(mapping), "--dry-run")
    monkeypatch.setenv("AIF_INDEX__SHARDS", "5")  # the broker's topics say how many there are
    published = _run(str(tmp_path), "--mapping", str(mapping))
    assert published["counts"] == planned["counts"]
    for topic in COUNTED:
        records = [decode_record(RECORDS[topic], r.value) for r in read_topic(bootstrap_servers, topic, prefix=prefix)]
        assert sum(len(getattr(r, "updates", [r])) for r in records) == planned["counts"][topic]
    again = CliRunner().invoke(build_app(), ["import", str(tmp_path), "--mapping", str(mapping)])
    assert f"{prefix}user-behaviours holds records already; if these files were imported before" in again.stderr


@pytest.mark.parametrize(("topic", "can_again"), [("item-features", True), ("user-behaviours", False), ("impressions", False)])
def test_an_interrupted_import_says_what_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], topic: str, can_again: bool
) -> None:
    from infra.data import cli
    from infra.progress import open_progress

    def interrupted(events: object) -> int:
        raise KeyboardInterrupt

    names = ("items", "new_items", "users", "behaviours", "impressions")
    publisher = SimpleNamespace(flush=lambda: None, **{f"publish_{name}": interrupted for name in names})
    publisher.publish_new_items = lambda _: 7
    monkeypatch.setattr(cli, "_open_publisher", lambda _: contextlib.nullcontext(publisher))
    with pytest.raises(KeyboardInterrupt):
        cli._publish(None, [("new-items", lambda: iter(())), (topic, lambda: iter(()))], open_progress())  # type: ignore[arg-type]
    told = capsys.readouterr().err
    assert f"stopped while {topic} was sent, after the whole of new-items" in told and ("counts twice" not in told) is can_again
