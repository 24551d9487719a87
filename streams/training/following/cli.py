"""`aif eval online`. Only typer and the standard library at module level."""

from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson, command_group, print_figures, register_measured, say
from streams.training.evaluation.cli import use_one_thread


def register(app: typer.Typer) -> None:
    """Adds the command to `aif eval`."""
    register_measured("streams.training.following.drift:ONLINE", "streams.training.following.live_bench:LIVE")
    command_group(app, "eval", "Prove: how good the models are.").command(
        "online", short_help="A world that moves: frozen model against a follower."
    )(online)


def online(
    out: Annotated[Path, typer.Option(help="Folder of the picture; seeds that are there are not computed again.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed and a small world: two minutes.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Instead: a broker, a worker and a follower, and how long its checkpoint takes to be live.")
    ] = False,
    items: Annotated[int, typer.Option(min=1_000, help="Items with --live.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """A world that moves: HR@100 over time of a frozen model and of the same one that follows, and the share of the loss that is recovered."""
    use_one_thread()
    if live:
        from streams.training.following.live_bench import measure_live

        print_figures(measure_live(items).as_dict(), as_json)
        return
    from streams.training.following.drift_program import run_online

    figures = run_online(out, quick)
    say(f"wrote {out / 'online.png'}")
    print_figures(figures.as_dict(), as_json)
