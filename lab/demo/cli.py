"""`aif demo` and `aif demo stop`. Only typer and the standard library at module level."""

from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson, print_data

demo_app = typer.Typer(
    help="From nothing to ranked answers: broker, catalogue, training, index version, server, one ranking, and measurements.",
    invoke_without_command=True,
)


@demo_app.callback()
def demo(
    context: typer.Context,
    items: Annotated[int, typer.Option(min=1_000, max=10_000_000, help="Items of the synthetic world.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic world: the same seed is the same world.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder with CSV, JSON-lines or Parquet files instead of the synthetic world."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The TOML file that maps them (docs/IMPORT.md).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running in the background, until `aif demo stop`.")] = False,
    train_steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, hidden=True, help="Of the first training; for tests of the demo itself.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """From nothing to ranked answers: broker, catalogue, training, index version, server, one ranking, and measurements."""
    if context.invoked_subcommand is not None:
        return
    if (data is None) != (mapping is None):
        raise typer.BadParameter("--data and --mapping belong together; docs/IMPORT.md shows how to write a mapping")
    from lab.demo.keeper import detach

    keeper = detach() if keep else None  # before anything starts a thread
    from lab.demo.program import DemoOptions, run_demo

    run_demo(DemoOptions(items, seed, data, mapping, train_steps), keeper, as_json)


@demo_app.command()
def stop(as_json: AsJson = False) -> None:
    """End the demo that `aif demo --keep` left running, and remove its files."""
    from lab.demo.keeper import end_kept_demo

    print_data(end_kept_demo(), as_json)
