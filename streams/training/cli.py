"""`aif train` and `aif export`. Only typer and the standard library at module level."""

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.command import AsJson, print_data, print_table, read_settings, register_choices, register_settings

_MODEL_HELP = (
    "What to train: a TOML or JSON file with [schema] and, optionally, [model] and [train]. Not needed with --warm-start or --follow."
)

_NICENESS = 10
_Steps = Annotated[
    int | None,
    typer.Option(
        min=0, help="Limit in steps instead, for a result that can be repeated. Each checkpoint of --more gets a tenth of these steps."
    ),
]
_WaitImpressions = Annotated[
    int, typer.Option(min=0, help="Start reading when the impressions topic holds this many records; publish them last. 0 = do not wait.")
]
_State = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Keep the state of the first fit here, and continue from it if present. Needs --steps; --follow always keeps it.",
    ),
]
_Snapshot = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Read the output of `aif export` here instead of the topics.")
]
_HeldOut = Annotated[
    float,
    typer.Option(min=0.0, max=0.5, help="Share of users kept out of training; the card's GAUC and recall are of them. 0: none."),
]
_Seconds = Annotated[float | None, typer.Option(min=0.1, help="Time limit of the fit, in seconds (default: the model file's, or 20).")]
_Processes = Annotated[
    int,
    typer.Option(
        min=1,
        max=64,
        help="Processes that share each batch (DDP over gloo), on this machine, a thread each; torchrun starts them on several.",
    ),
]
_Choose = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any choice of the model file's section [train], for example --set learning_rate=0.002; repeatable, before the file's.",
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Train nothing: show the model and every choice of [train], with its origin.")]
_Follow = Annotated[
    bool, typer.Option("--follow", help="Train continuously: start from the live version's checkpoint, learn new impressions and publish.")
]
_LateAfter = Annotated[
    float | None, typer.Option(min=1.0, help="With --follow: publish nothing while the newest impressions are older than this, in seconds.")
]


def register(app: typer.Typer) -> None:
    """Registers the command onto the `aif` application."""
    register_settings("streams.training.settings:TrainSettings")
    register_choices("train", "streams.training.model_file:explain_choices")
    app.command("train", short_help="Train a model on the impressions topic, once or continuously.")(train)
    app.command("export", short_help="Write the topics that training reads to files.")(export)


def train(
    out: Annotated[Path | None, typer.Option(help="Folder for the checkpoints; only --dry-run needs none.")] = None,
    model: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=_MODEL_HELP)] = None,
    warm_start: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Continue from this checkpoint.")] = None,
    name: Annotated[str, typer.Option(help="Model id; a number is added to each checkpoint.")] = "aif",
    seconds: _Seconds = None,
    steps: _Steps = None,
    more: Annotated[int, typer.Option(min=0, max=1000, help="Further checkpoints, each from a short warm start.")] = 0,
    more_seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of each of them.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, hash planes and batches.")] = None,
    choose: _Choose = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch. More than the free cores makes it slower.")] = 1,
    publish: Annotated[
        bool, typer.Option("--publish", help="Upload each checkpoint to the index store and announce it on model-checkpoints.")
    ] = False,
    wait_impressions: _WaitImpressions = 0,
    state: _State = None,
    snapshot: _Snapshot = None,
    processes: _Processes = 1,
    held_out: _HeldOut = 0.02,
    dry_run: _DryRun = False,
    follow: _Follow = False,
    every: Annotated[float, typer.Option(min=0.1, help="With --follow: seconds between two published checkpoints.")] = 300.0,
    late_after: _LateAfter = None,
    metrics_port: Annotated[int | None, typer.Option(help="With --follow: port of the Prometheus page, on loopback; 0: none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the network to the impressions topic (COPR, bridge vectors included) and write checkpoints.

    With --follow it runs until SIGTERM or Ctrl-C, prints one JSON line now and then, and continues exactly where it was killed.
    """
    if out is None and not dry_run:
        raise typer.BadParameter("names the folder for the checkpoints; only --dry-run needs none", param_hint="--out")
    out = out or Path()
    from infra.logs import open_logs
    from infra.settings import load_settings
    from schemas.train_choices import decode_assignments
    from streams.training.settings import TrainSettings

    settings = load_settings(TrainSettings, {"train": {"metrics_port": metrics_port, "late_s_max": late_after}})
    open_logs("train", settings.log.level, settings.log.format)
    named = {name: value for name, value in (("seconds", seconds), ("steps", steps), ("seed", seed)) if value is not None}
    given = decode_assignments(choose or []) | named
    if dry_run:
        _print_plan(model, warm_start, given, follow, as_json)
        return
    # Before torch is imported: that takes a core for seconds, which a server on this machine may need.
    os.nice(max(0, _NICENESS - os.nice(0)))
    if follow:
        from streams.training.following.follower_program import FollowPlan, run_follower

        following = FollowPlan(out, name, every, warm_start, model, state, threads, given)
        run_follower(settings, following, lambda line: print(line, flush=True))
        return
    from streams.training.team import open_group
    from streams.training.training_program import TrainPlan, run_training

    plan = TrainPlan(
        out, model, warm_start, name, more, more_seconds, threads, publish, wait_impressions, state, snapshot, processes, held_out, given
    )
    with open_group() as group:
        figures = run_training(settings, plan, group)
    if as_json and group.leads:
        figures.print_json()


def _print_plan(path: Path | None, warm_start: Path | None, given: Mapping[str, Any], follow: bool, as_json: bool) -> None:
    """Prints the model's sizes and each choice of [train] with where it is from. Raises what a training, or a follower, would raise for them."""
    from schemas.model.checkpoint_file import read_checkpoint_file
    from streams.training.model_file import explain_choices, read_model_file, read_train_choices, require_model

    base = read_checkpoint_file(warm_start) if warm_start is not None else None
    if base is not None and path is not None:
        require_model(base.spec, base.info.model_id, path)
    model = read_model_file(path).to_dict() if path is not None else base.spec.to_dict() if base is not None else {}
    schema = model.pop("schema", {})
    rows = explain_choices(path, given, {} if base is None else base.info.card)
    if follow:
        from streams.training.following.learner import OF_A_FIT, follower_choices

        rate = follower_choices(given, read_train_choices(path)).learning_rate
        rows = [row | ({"value": rate} if row["name"] == "learning_rate" else {}) for row in rows if row["name"] not in OF_A_FIT]
    if as_json:
        print_data({"schema": schema, "model": model, "train": rows}, True)
        return
    print_data(model, False)
    typer.echo("")
    print_table("train", rows, False)


def export(
    directory: Annotated[Path | None, typer.Argument(help="A folder that does not exist yet (default: aif-export-DATE-TIME here).")] = None,
    like: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Take the offsets of this snapshot: the same bytes again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the topics that training reads to Parquet files, for `aif train --snapshot`. The same offsets give the same bytes.

    It also says from which topics retention has removed records, how many, and from when on they are complete.
    """
    from infra.progress import open_progress, tell_parts
    from streams.training.topic_events import TopicEvents
    from streams.training.topic_snapshot import SnapshotEvents, write_snapshot

    directory = directory or Path(f"aif-export-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}")
    log = TopicEvents.of(read_settings())
    wanted = log.range_now() if like is None else SnapshotEvents(like).range
    counts: dict[str, int] = {}
    with open_progress() as progress:
        tell = tell_parts(progress)

        def count(topic: str, records: int) -> None:
            counts[topic] = records
            offsets = sum(wanted.ends[topic].values()) - sum(wanted.begins[topic].values())
            tell(topic, records, offsets)  # of a compacted topic the log holds fewer records than offsets

        write_snapshot(directory, log, wanted, count)
    written = SnapshotEvents(directory)
    removed = written.removed()
    for one in removed:
        typer.echo(f"warning: {one}", err=True)
    print_data(
        {"snapshot": str(directory), "digest": written.digest, "records": counts, "removed": {one.topic: str(one) for one in removed}},
        as_json,
    )
