"""`aif demo`. Only typer and the standard library at module level."""

from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson


def demo(
    items: Annotated[int, typer.Option(min=1_000, max=10_000_000, help="Items of the synthetic world.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic world: the same seed is the same world.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder with CSV, JSON-lines or Parquet files instead of the synthetic world."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The TOML file that maps them (docs/IMPORT.md).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running at the end and say what to try next.")] = False,
    train_seconds: Annotated[
        float | None, typer.Option(min=0.1, max=600.0, hidden=True, help="Of the first training; for tests of the demo itself.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """From nothing to ranked answers: broker, catalogue, training, index version, server, and what they measure."""
    if (data is None) != (mapping is None):
        raise typer.BadParameter("--data and --mapping belong together; docs/IMPORT.md shows how to write a mapping")
    from lab.demo.program import DemoOptions, run_demo

    figures = run_demo(DemoOptions(items, seed, data, mapping, keep, train_seconds))
    if as_json:
        figures.print_json()
