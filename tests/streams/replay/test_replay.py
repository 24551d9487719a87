"""A live version and its replay from the topics, on a real broker."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from infra.clock import SystemClock
from infra.index.control_log import ControlLog
from infra.index.diff import diff_versions, open_side
from infra.index.parts import read_full_part
from infra.kafka.reader import TopicFollower, read_topic
from schemas.errors import AifError, Incompatible, Misconfigured, Unavailable
from schemas.index.lifecycle import Cause, State
from schemas.model.checkpoint import read_checkpoint
from schemas.model.item_network import encoder_fingerprint
from schemas.topics import INDEX_DELTAS, INDEX_EVENTS, ITEM_FEATURES, MODEL_CHECKPOINTS, NEW_ITEMS
from streams.builders.full_part import build_full_part
from streams.builders.jobs import BuildJob
from streams.core.shard_state import encode_identity
from streams.encoder import EncoderCache
from streams.replay.cli import register
from streams.replay.forecast import _measure
from streams.replay.points import choose_manifest, open_replay_source, plan_replay
from streams.replay.replay import ReplayPace
from streams.shard.log_ends import LogEnds
from streams.shard.shard import Shard, open_shard
from streams.shard.snapshot_files import list_snapshots, write_snapshot
from streams.versions.checkpoints import CheckpointGate, handle_checkpoints
from streams.versions.publication import Publication
from tests.streams.digests import digest_blocks
from tests.streams.replay.nearline import ITEMS, SHARDS, Nearline, make_nearline, replay


@pytest.fixture(scope="module")
def nearline(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Nearline:
    return make_nearline(bootstrap_servers, tmp_path_factory.mktemp("nearline"))


@pytest.mark.parametrize("batch_records", [1, 97])
def test_a_replay_from_the_log_start_has_the_digest_of_the_live_version(nearline: Nearline, tmp_path: Path, batch_records: int) -> None:
    outcome = replay(nearline, tmp_path, pace=ReplayPace(batch_records))
    assert outcome.digest_equal and outcome.data_digest_equal and all(s.equal for s in outcome.shards)
    assert sum(s.rows for s in outcome.shards) == nearline.manifest.rows == ITEMS - 9


def test_a_planted_change_of_one_row_is_seen_and_makes_the_exit_code_1(
    nearline: Nearline, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams.encoder import RowEncoder

    encode = RowEncoder.encode

    def one_wrong(self: RowEncoder, raw: Any, embeddings: Any) -> Any:
        rows = encode(self, raw, embeddings)
        rows["bid"][:1] += 1
        return rows

    monkeypatch.setattr(RowEncoder, "encode", one_wrong)
    outcome = replay(nearline, tmp_path)
    assert not outcome.digest_equal and outcome.data_digest_equal
    assert command(exit_code=1)["figures"]["digest_equal"]["value"] == 0


def test_dead_letters_and_index_events_are_on_the_broker(nearline: Nearline) -> None:
    letters = list(read_topic(nearline.bootstrap, f"dlq.{MODEL_CHECKPOINTS}", prefix=nearline.prefix))
    assert [dict(r.headers)["__connect.errors.offset"] for r in letters] == [b"0"]
    kinds = {json.loads(r.value or b"")["kind"] for r in read_topic(nearline.bootstrap, INDEX_EVENTS, prefix=nearline.prefix)}
    assert kinds >= {"rejected", "wanted", "building", "built", "sealed", "published", "promoted"}


def test_every_seal_names_a_delta_position_inside_the_log(nearline: Nearline) -> None:
    ends = LogEnds(nearline.bootstrap, nearline.prefix)
    with TopicFollower(
        nearline.bootstrap, INDEX_DELTAS, {s.shard: s.delta_position for s in nearline.manifest.seals}, prefix=nearline.prefix
    ):
        assert all(0 < s.delta_position <= ends.deltas_end(s.shard) for s in nearline.manifest.seals)


@pytest.fixture
def command(nearline: Nearline, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `aif replay`and returns its JSON. Raises its error."""
    app = typer.Typer()
    app.callback()(lambda: None)  # otherwise a single command has no name
    register(app)
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", nearline.bootstrap)
    monkeypatch.setenv("AIF_KAFKA__TOPIC_PREFIX", nearline.prefix)

    def run(*arguments: str, exit_code: int = 0) -> Any:
        words = ["replay", *arguments, "--store", nearline.store.url, "--json"]
        with ThreadPoolExecutor(1) as own_thread:
            result = own_thread.submit(CliRunner().invoke, app, words).result()
        if isinstance(result.exception, AifError):
            raise result.exception
        assert result.exit_code == exit_code, (result.output, result.exception)
        return json.loads(result.stdout.splitlines()[-1])

    return run


def test_the_command_prints_both_digests(nearline: Nearline, command: Callable[..., Any], tmp_path: Path) -> None:
    printed = command("--from", "earliest", "--to", "live", "--directory", str(tmp_path / "kept"))
    assert printed["figures"]["digest_equal"]["value"] == 1
    assert printed["config"]["digest"] == printed["config"]["live_digest"] == nearline.manifest.digest
    assert (tmp_path / "kept" / "00000" / "CURRENT").exists()
    log = ControlLog(nearline.store)
    log.refresh()
    assert diff_versions(open_side("1.0", log), open_side(str(tmp_path / "kept"), log)).is_equal


def test_a_directory_that_is_not_empty_is_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "replay" / "something").mkdir(parents=True)
    with pytest.raises(Misconfigured, match="not empty"):
        command("--directory", str(tmp_path / "replay"))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("calls", [1, 3, 9])
def test_a_replay_that_was_killed_goes_on_from_its_own_offsets(
    calls: int, nearline: Nearline, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[int] = []
    apply = Shard.apply

    def count(self: Shard, records: Any) -> Any:
        if len(applied) == calls:
            raise Killed
        applied.append(len(records))
        return apply(self, records)

    folder = str(tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "apply", count)
        with pytest.raises(Killed):
            command("--directory", folder, "--batch-size", "2")
    before = sum(applied)
    applied.clear()
    monkeypatch.setattr(Shard, "apply", lambda self, records: (applied.append(len(records)), apply(self, records))[1])
    told: list[str] = []
    monkeypatch.setattr("infra.progress.LINE_EVERY_S", 0.0)
    monkeypatch.setattr("infra.progress.say", told.append)
    printed = command("--directory", folder, "--batch-size", "2", "--rate", "1e6")
    assert any(line.startswith("shard 1: apply: ") for line in told)  # where no terminal shows a bar
    assert printed["figures"]["digest_equal"]["value"] == 1
    assert before + sum(applied) == printed["figures"]["records"]["value"] and before > 0
    with pytest.raises(Misconfigured, match=r"other_replay: .* holds a replay with to live, not end:"):
        command("--directory", folder, "--to", "end")


def test_a_dry_run_forecasts_the_records_and_writes_nothing(nearline: Nearline, command: Callable[..., Any], tmp_path: Path) -> None:
    forecast = command("--dry-run", "--directory", str(tmp_path / "none"), "--rate", "10")
    assert forecast["records"] == sum(sum(s.source_offsets.values()) for s in nearline.manifest.seals)
    assert forecast["rows"] == nearline.manifest.rows and forecast["apply_s"] >= forecast["records"] / 10
    assert not (tmp_path / "none").exists()


def test_a_throttled_replay_keeps_its_rate(nearline: Nearline, tmp_path: Path) -> None:
    clock, records = SystemClock(), sum(sum(s.source_offsets.values()) for s in nearline.manifest.seals)
    began = clock.monotonic()
    outcome = replay(nearline, tmp_path, pace=ReplayPace(5, rate=records / 2))
    assert clock.monotonic() - began >= 2.0 and outcome.digest_equal and sum(s.records for s in outcome.shards) == records


@pytest.mark.parametrize("form", ["vector", "time"])
def test_a_replay_to_offsets_or_a_time_ends_there(form: str, nearline: Nearline, tmp_path: Path) -> None:
    records = list(read_topic(nearline.bootstrap, ITEM_FEATURES, prefix=nearline.prefix))
    if form == "vector":
        outcome = replay(nearline, tmp_path, to="item-features=2,1;new-items=0,1")
        assert [dict(s.source_offsets) for s in outcome.shards] == [
            {ITEM_FEATURES: 2, NEW_ITEMS: 0},
            {ITEM_FEATURES: 1, NEW_ITEMS: 1},
        ]
    else:
        time_ms = max(r.timestamp_ms for r in records) + 1_000_000
        outcome = replay(nearline, tmp_path, to=datetime.fromtimestamp(time_ms / 1000, UTC).isoformat())
        assert outcome.digest == nearline.manifest.digest  # a time after the last record is the end, which is the seal's here


def snapshot_at(nearline: Nearline, folder: Path, to: str) -> None:
    """Snapshots of both shards as they are at some offsets, put into the store."""
    for one in replay(nearline, folder, to=to).shards:
        shard = open_shard(folder / "replay" / f"{one.shard:05d}", one.shard, nearline.init, SystemClock())
        shard.create_checkpoint(folder / f"checkpoint-{one.shard}")
        shard.close()
        write_snapshot(nearline.store, one.shard, encode_identity(one.shard, nearline.init).decode(), folder / f"checkpoint-{one.shard}")


def test_a_replay_from_a_snapshot_has_the_digest_of_the_live_version_and_reads_only_the_rest(nearline: Nearline, tmp_path: Path) -> None:
    snapshot_at(nearline, tmp_path / "base", "item-features=2,2;new-items=1,1")
    outcome = replay(nearline, tmp_path, start="snapshot")
    whole = sum(sum(s.source_offsets.values()) for s in nearline.manifest.seals)
    assert outcome.digest_equal and sum(s.records for s in outcome.shards) == whole - 6
    by_offset = replay(nearline, tmp_path / "by-offset", start="3")
    assert by_offset.digest_equal and sum(s.records for s in by_offset.shards) == whole - 6
    too_early = replay(nearline, tmp_path / "too-early", start="0")
    assert too_early.digest_equal and sum(s.records for s in too_early.shards) == whole


def test_the_sample_of_a_forecast_counts_no_updates_of_the_snapshot(nearline: Nearline, tmp_path: Path) -> None:
    snapshot_at(nearline, tmp_path / "base", "item-features=2,2;new-items=1,1")
    source, state = nearline.source, ControlLog(nearline.store).refresh()
    encoder, updates = EncoderCache(nearline.store).get(1, nearline.manifest.checkpoint_sha256), list[int]()
    for number, start in enumerate(("earliest", "snapshot")):
        plan = plan_replay(source, state, start, "1.0")
        plan = dataclasses.replace(plan, shards=plan.shards[:1])
        updates.append(_measure(source, plan, encoder, SystemClock(), 10, tmp_path / str(number)).updates)
    before = next(one.snapshot.updates for one in list_snapshots(nearline.store, 0)[0] if one.snapshot.unique == plan.shards[0].snapshot)
    assert before > 0 and updates[1] == updates[0] - before


def test_a_replay_from_a_snapshot_that_was_killed_goes_on_from_its_own_offsets(
    nearline: Nearline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_at(nearline, tmp_path / "base", "item-features=2,2;new-items=1,1")
    applied: list[int] = []
    apply = Shard.apply

    def count(self: Shard, records: Any) -> Any:
        if len(applied) == 2:
            raise Killed
        applied.append(len(records))
        return apply(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "apply", count)
        with pytest.raises(Killed):
            replay(nearline, tmp_path, start="snapshot", pace=ReplayPace(1))
    monkeypatch.setattr(Shard, "apply", lambda self, records: (applied.append(len(records)), apply(self, records))[1])
    outcome = replay(nearline, tmp_path, start="snapshot", pace=ReplayPace(1))
    assert outcome.digest_equal and sum(applied) == sum(s.records for s in outcome.shards) > 2


def test_of_a_snapshot_with_rows_of_a_version_a_replay_keeps_none(nearline: Nearline, tmp_path: Path) -> None:
    for seal in nearline.manifest.seals:
        shard = open_shard(nearline.folder / f"shard-{seal.shard}", seal.shard, nearline.init, SystemClock())
        assert shard.versions
        shard.create_checkpoint(tmp_path / f"checkpoint-{seal.shard}")
        shard.close()
        write_snapshot(
            nearline.store, seal.shard, encode_identity(seal.shard, nearline.init).decode(), tmp_path / f"checkpoint-{seal.shard}"
        )
    outcome = replay(nearline, tmp_path, start="snapshot")
    assert outcome.digest_equal and sum(s.records for s in outcome.shards) == 0
    for seal in nearline.manifest.seals:
        shard = open_shard(tmp_path / "replay" / f"{seal.shard:05d}", seal.shard, nearline.init, SystemClock())
        assert not shard.versions
        shard.close()


def test_an_adopted_replay_becomes_a_version_that_has_everything_newer(
    nearline: Nearline, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = command("--to", "item-features=2,2;new-items=1,1", "--adopt", "backfill")
    with pytest.raises(Misconfigured, match="label_taken"):
        command("--to", "end", "--adopt", "backfill")
    version = printed["config"]["adopted"]
    gate = CheckpointGate(
        ControlLog(nearline.store), nearline.store, SystemClock(), encoder_fingerprint, (), 0.0, lambda *_: None, read_checkpoint
    )
    asyncio.run(handle_checkpoints(gate, list(read_topic(nearline.bootstrap, MODEL_CHECKPOINTS, prefix=nearline.prefix))))
    status = ControlLog(nearline.store).refresh().versions[version]
    assert (status.state, status.cause, status.label) == (State.WANTED, Cause.ADOPT, "backfill")
    publication = Publication(ControlLog(nearline.store), nearline.store, SystemClock(), "test")
    bases = [publication.find_base(status, n) for n in range(SHARDS)]
    encoder, reused = EncoderCache(nearline.store).get(version, status.checkpoint_sha256), 0
    for seal, base in zip(nearline.manifest.seals, bases, strict=True):
        checkpoint = nearline.folder / f"adopt-{seal.shard}"
        shard = open_shard(nearline.folder / f"shard-{seal.shard}", seal.shard, nearline.init, SystemClock())
        shard.create_checkpoint(checkpoint)
        shard.close()
        job = BuildJob(version, seal.shard, status.checkpoint_sha256, status.encoder_fingerprint, str(checkpoint), base=base)
        result = build_full_part(nearline.store, encoder, job)
        reused += result.reused
        assert digest_blocks(encoder, read_full_part(nearline.store, result.part, encoder.layout)).hexdigest == seal.digest
    assert 0 < reused < nearline.manifest.rows


def test_a_seal_is_named_by_version_and_revision(nearline: Nearline) -> None:
    state = ControlLog(nearline.store).refresh()
    token = str(state.versions[1].token)
    assert choose_manifest(nearline.store, state, "1.0") == choose_manifest(nearline.store, state, token) == nearline.manifest
    for none in ("newest", "1.0-00000000"):
        with pytest.raises(Misconfigured, match="replay_point"):
            choose_manifest(nearline.store, state, none)
    with pytest.raises(Unavailable):
        choose_manifest(nearline.store, state, "1.7")


def test_topics_of_another_index_are_refused(nearline: Nearline) -> None:
    other = dataclasses.replace(nearline, init=dataclasses.replace(nearline.init, topic_ids={ITEM_FEATURES: "another"}))
    state = dataclasses.replace(ControlLog(nearline.store).refresh(), init=other.init)
    with pytest.raises(Incompatible, match="another"):
        open_replay_source(nearline.bootstrap, nearline.prefix, nearline.store, state)


def test_a_log_that_has_lost_its_beginning_is_refused_with_the_oldest_offset(nearline: Nearline, tmp_path: Path) -> None:
    """The last test of this module: it cuts the log."""
    admin = AdminClient({"bootstrap.servers": nearline.bootstrap})
    for future in admin.delete_records([TopicPartition(nearline.prefix + ITEM_FEATURES, 1, 2)]).values():
        future.result()
    with pytest.raises(Incompatible, match=r"begins at \{1: 2\}"):
        replay(nearline, tmp_path)
