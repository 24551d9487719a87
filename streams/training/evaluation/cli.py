"""`aif eval tables`. Only typer and the standard library at module level."""

import os
from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson, command_group, print_figures, say


def register(app: typer.Typer) -> None:
    """Adds `aif eval tables`."""
    command_group(app, "eval", "Prove: how good the models are.").command("tables")(tables)


def tables(
    out: Annotated[Path, typer.Option(help="Folder of the results; cells that are there are not computed again.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed and few models: minutes instead of hours.")] = False,
    processes: Annotated[int, typer.Option(min=0, help="Cells side by side, one thread each. 0 = one per core.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each training, if not the usual number.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each model, if not the usual number.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train and measure the models of the paper's tables on the synthetic world; write RESULTS.md and pictures beside the paper's numbers."""
    # Several libraries would each start as many threads as there are cores: cells are what runs side by side here.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from streams.training.evaluation.program import TablesOptions, run_tables

    cores = len(os.sched_getaffinity(0))
    figures = run_tables(TablesOptions(out, quick, processes or cores, steps, seeds))
    say(f"wrote {out / 'RESULTS.md'}")
    print_figures(figures.as_dict(), as_json)
