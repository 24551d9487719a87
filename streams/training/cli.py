"""`aif train`. Only typer and the standard library at module level."""

from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson

_MODEL_HELP = "What to train: a TOML or JSON file with [schema] and, optionally, [model]. Not needed with --warm-start."


def register(app: typer.Typer) -> None:
    """Registers the command onto the `aif` application."""
    app.command("train")(train)


def train(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoints.")],
    model: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=_MODEL_HELP)] = None,
    warm_start: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Go on from this checkpoint.")] = None,
    name: Annotated[str, typer.Option(help="Model id; a number is added to each checkpoint.")] = "aif",
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of the fit.")] = 20.0,
    steps: Annotated[
        int, typer.Option(min=0, help="Limit in steps instead, for a result that can be repeated; a tenth for each of --more. 0 = none.")
    ] = 0,
    more: Annotated[int, typer.Option(min=0, max=1000, help="Further checkpoints, each from a short warm start.")] = 0,
    more_seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of each of them.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of weights, hash planes and batches.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch. More than the free cores makes it slower.")] = 1,
    publish: Annotated[bool, typer.Option("--publish", help="Publish each checkpoint to model-checkpoints.")] = False,
    wait_impressions: Annotated[
        int,
        typer.Option(min=0, help="Start reading when the impressions topic holds this many records; publish them last. 0 = do not wait."),
    ] = 0,
    state: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Keep the state of the first fit here, and go on from it if it is there. Needs --steps."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the network to the impressions topic (COPR, bridge vectors included) and write checkpoints."""
    from infra.logs import open_logs
    from infra.settings import InfraSettings, load_settings
    from streams.training.program import TrainPlan, run_training

    settings = load_settings(InfraSettings)
    open_logs("train", settings.log.level, settings.log.format)
    plan = TrainPlan(out, model, warm_start, name, seconds, steps, more, more_seconds, seed, threads, publish, wait_impressions, state)
    figures = run_training(settings, plan)
    if as_json:
        figures.print_json()
