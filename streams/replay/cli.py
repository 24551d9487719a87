"""`aif replay`: read the topics again and compare, forecast, or adopt the result as a version. Only typer and the standard library here."""

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.clock import SystemClock
from infra.command import AsJson, print_parts, print_table, say

if TYPE_CHECKING:
    from infra.index.store import IndexStore
    from infra.settings import InfraSettings
    from schemas.events import CheckpointRecord
    from schemas.index.control import ControlState, VersionStatus
    from streams.encoder import RowEncoder
    from streams.replay.points import ReplayPlan, ReplaySource
    from streams.replay.replay import Replayed, ReplayPace
    from streams.replay.replayed_rows import Adoption


def register(app: typer.Typer) -> None:
    """Register `replay` onto the `aif` application."""
    app.command("replay", short_help="Rebuild a version from the topics, and compare.")(replay)


def replay(
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, snapshot, an offset, or a time (2026-01-31T12:00, UTC where it names no zone): the newest base not after it.",
        ),
    ] = "earliest",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="live, V.R or a token (compared with it); end, an offset, item-features=1,2;new-items=3,4 (one a shard), or a time.",
        ),
    ] = "live",
    adopt: Annotated[str | None, typer.Option(help="Make the result a version with this label, built and promoted as any other.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Encode with this checkpoint; default: the one of --to, or of the served version."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Keep nothing: show offsets, records, and the time estimated from the first 2,000.")
    ] = False,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Records a second at most, to leave live traffic its share.")] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Working directory, kept. A replay in the same one continues; `aif index diff` reads it.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Records of one batch; not the worker's.")] = 97,
    store: Annotated[str | None, typer.Option(help="The index store: a folder, or s3://bucket/prefix (default: AIF_INDEX__STORE).")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a version from the topics, in parallel with live traffic, and compare its digest with the manifest's.

    Exit code 1 if the replayed digest differs from that of the manifest.
    """
    from infra.settings import InfraSettings, load_settings
    from streams.replay.adopted_parts import check_label
    from streams.replay.replay import ReplayPace

    settings = load_settings(InfraSettings, {"index": {"store": store}})
    run = _Run(settings, start, to, checkpoint, ReplayPace(batch_size, rate))
    if adopt is not None:
        check_label(run.store, adopt)
    with contextlib.ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aif-replay-")))
        plan = run.plan(None if dry_run else folder)
        if dry_run:
            _print_forecast(run, plan, as_json)
            return
        _say_plan(plan, rate)
        if directory is not None:
            say(f"working in {directory}: the same command continues an interrupted replay there")
        began = time.monotonic()
        outcome, version = run.run(plan, folder, adopt, directory is not None)
    _print(outcome, version, batch_size, time.monotonic() - began, as_json)
    if outcome.manifest is not None and not outcome.digest_equal:
        raise typer.Exit(1)


class _Run:
    """One command: its options, and their meaning on this index."""

    def __init__(self, settings: "InfraSettings", start: str, to: str, checkpoint: Path | None, pace: "ReplayPace") -> None:
        from infra.index.control_log import ControlLog
        from infra.index.store import find_index_store
        from streams.replay.points import open_replay_source

        self.settings, self.start, self.to, self.pace = settings, start, to, pace
        self.store = find_index_store(settings.index.store)
        self.state: ControlState = ControlLog(self.store).refresh()
        self.source: ReplaySource = open_replay_source(settings.connection(), settings.kafka.topic_prefix, self.store, self.state)
        self.given = b""  # the file of --checkpoint, which the store has no copy of yet
        self.record, self.encoder = self._choose_checkpoint(checkpoint)

    def _choose_checkpoint(self, file: Path | None) -> "tuple[CheckpointRecord, RowEncoder]":
        """The checkpoint to encode with, and the record that announces the store's copy of it when the replay is adopted."""
        from infra.index.checkpoint_upload import describe_checkpoint
        from schemas.model.checkpoint import read_checkpoint
        from streams.encoder import EncoderCache, RowEncoder
        from streams.kernels import load_kernels

        if file is not None:
            load_kernels()
            self.given = file.read_bytes()
            checkpoint = read_checkpoint(self.given)
            return describe_checkpoint(checkpoint.info), RowEncoder(-1, checkpoint)
        status = self._status_of_target()
        return _announce(self.store, status), EncoderCache(self.store).get(status.version, status.checkpoint_sha256)

    def _status_of_target(self) -> "VersionStatus":
        """The version whose checkpoint is meant: that of the seal that `--to` names, else the one that is served."""
        from schemas.errors import Unavailable

        number = self.to.partition(".")[0]
        named = self.state.versions.get(int(number)) if "." in self.to and number.isdecimal() else None
        status = named or self.state.current
        if status is None:
            raise Unavailable("no_version", "no version is live yet; publish a checkpoint and wait for it, or give --checkpoint")
        return status

    def plan(self, folder: Path | None) -> "ReplayPlan":
        """The plan; of an interrupted replay in `folder`, its own."""
        from streams.replay.points import ReplayPlan, choose_manifest, plan_replay
        from streams.replay.replay import keep_plan, read_plan

        asked = {"from": self.start, "to": self.to, "checkpoint": self.encoder.checkpoint_sha256}
        kept = read_plan(folder, asked) if folder is not None else None
        if kept is not None:
            plan = ReplayPlan(kept.shards, choose_manifest(self.store, self.state, kept.seal) if kept.seal else None)
        else:
            plan = plan_replay(self.source, self.state, self.start, self.to)
            if folder is not None:
                keep_plan(folder, plan, asked)
        same = plan.manifest is not None and plan.manifest.checkpoint_sha256 == self.encoder.checkpoint_sha256
        return plan if same else dataclasses.replace(plan, manifest=None)

    def run(self, plan: "ReplayPlan", folder: Path, adopt: str | None, keep_rows: bool) -> "tuple[Replayed, int | None]":
        """The outcome, and the version that adopts it. The rows stay in the folder if it is one that stays."""
        from infra.clock import SystemClock
        from infra.progress import open_progress, tell_parts
        from streams.replay.replay import run_replay
        from streams.replay.replayed_rows import Adoption, KeptRows

        clock = SystemClock()
        adoption = Adoption(self.store, adopt, self.encoder) if adopt is not None else None
        rows = KeptRows(folder, self.encoder) if keep_rows and adoption is None else None
        keep = adoption.keep if adoption is not None else rows.keep if rows is not None else None
        with open_progress() as progress:
            outcome = run_replay(self.source, plan, self.encoder, folder, clock, self.pace, tell_parts(progress), keep)
        if rows is not None:
            rows.finish(outcome, clock.now_ms())
        return outcome, None if adoption is None else self._publish(adoption)

    def _publish(self, adoption: "Adoption") -> int:
        from infra.index.checkpoint_upload import keep_checkpoint
        from infra.kafka.publisher import Publisher

        if self.given:
            keep_checkpoint(self.store, self.record.sha256, self.given)
        init = self.source.init
        with Publisher(self.source.bootstrap, self.source.prefix, "replay", init.shards, init.user_partitions, init.id_kind) as publisher:
            return adoption.publish(publisher, self.record)


def _announce(store: "IndexStore", status: "VersionStatus") -> "CheckpointRecord":
    """A record for the store's own copy of a version's checkpoint."""
    from schemas.events import CheckpointRecord
    from schemas.index.manifest import checkpoint_path, checkpoint_uri

    return CheckpointRecord(
        uri=checkpoint_uri(status.checkpoint_sha256),
        size_bytes=store.stat(checkpoint_path(status.checkpoint_sha256)).size_bytes,
        sha256=status.checkpoint_sha256,
        model_id=status.model_id,
        feature_schema=status.feature_schema,
    )


def _say_plan(plan: "ReplayPlan", rate: float | None) -> None:
    for one in plan.shards:
        base = f"snapshot {one.snapshot}" if one.snapshot else "nothing"
        say(f"shard {one.shard}: from {base} at {dict(one.start)} to {dict(one.end)}, {one.records} records")
    if rate is not None:
        say(f"at {rate:g} records a second it takes at least {sum(one.records for one in plan.shards) / rate:.0f} s")


def _print_forecast(run: _Run, plan: "ReplayPlan", as_json: bool) -> None:
    from infra.index.parts import read_manifest
    from streams.replay.forecast import forecast_replay

    current = run.state.current
    like = plan.manifest or (read_manifest(run.store, current) if current is not None else None)
    found = forecast_replay(run.source, plan, run.encoder, SystemClock(), run.pace, like)
    data = {name: round(value, 3) for name, value in (*dataclasses.asdict(found).items(), ("total_s", found.total_s))}
    shards = [{**dataclasses.asdict(s), "records": s.records} for s in plan.shards]
    print_parts(data, {"shards": shards}, as_json)


def _print(outcome: "Replayed", version: int | None, batch_size: int, seconds: float, as_json: bool) -> None:
    from streams.replay.replay import replay_figures

    if as_json:
        replay_figures(outcome, version, batch_size, seconds).print_json()
        return
    rows: list[dict[str, object]] = [
        {
            "shard": s.shard,
            "records": s.records,
            "rows": s.rows,
            "replayed": s.digest[:16],
            "live": s.seal.digest[:16] if s.seal else "",
            "equal": "" if s.equal is None else s.equal,
        }
        for s in outcome.shards
    ]
    print_table("shards", rows, False)
    if version is not None:
        typer.echo(f"adopted as version {version}; `aif index list` shows when it is published")
    _print_digests(outcome)


def _print_digests(outcome: "Replayed") -> None:
    manifest = outcome.manifest
    if manifest is None:
        typer.echo(f"digest       {outcome.digest}\ndata digest  {outcome.data_digest}")
        return
    for name, ours, live in (("digest", outcome.digest, manifest.digest), ("data digest", outcome.data_digest, manifest.data_digest)):
        typer.echo(f"{name:<12} replayed {ours}\n{'':<12} live     {live}   {'equal' if ours == live else 'DIFFERENT'}")
    if not outcome.digest_equal and outcome.data_digest_equal:
        typer.echo(
            f"same inputs, other arithmetic: encoder here {outcome.encoder_fingerprint}, of the version {manifest.encoder_fingerprint}"
        )
