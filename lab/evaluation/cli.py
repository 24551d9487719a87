"""`aif eval tables`, `data`, `history`, `relay`, `online` and `allocation`. Only typer and the standard library at module level."""

import os
from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson, print_figures, say


def register(app: typer.Typer) -> None:
    """Adds the group `aif eval`."""
    group = typer.Typer(help="Measure the quality of models.", no_args_is_help=True)
    app.add_typer(group, name="eval")
    group.command("tables", short_help="The paper's Tables 2 and 3, and its figure on bridges.")(tables)
    group.command("data", short_help="One model on your own files, against plain scores.")(data)
    group.command("history", short_help="The worth of a longer history, and its cost.")(history)
    group.command("relay", short_help="The gain of the ranker over AIF's order.")(relay)
    group.command("online", short_help="A world that moves: frozen model against a follower.")(online)
    group.command("allocation", short_help="Computation allocation: value for cost, by true values.")(allocation)


def tables(
    out: Annotated[Path, typer.Option(help="Folder of the results; cells that are there are not computed again.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed and few models: minutes instead of hours.")] = False,
    processes: Annotated[int, typer.Option(min=0, help="Cells side by side, one thread each. 0 = one per core.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each training, if not the usual number.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each model, if not the usual number.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Train nothing: report on the cells of the plan that are there.")] = False,
    saved: Annotated[
        bool, typer.Option("--saved", help="Write the report from the figures.json of the last run; compute nothing.")
    ] = False,
    data_figures: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A saved `aif eval data --json` (and NAME.tried.toml next to it), to stand in the report; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and measure the models of the paper's tables on the synthetic world; write RESULTS.md and pictures, with the paper's numbers."""
    _use_one_thread()
    from lab.evaluation.program import run_tables

    cores = len(os.sched_getaffinity(0))
    figures = run_tables(out, quick, processes or cores, steps, seeds, finished, saved, data_figures or ())
    say(f"wrote {out / 'RESULTS.md'}")
    print_figures(figures.as_dict(), as_json)


def data(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The folder with the CSV, JSON-lines or Parquet files.")],
    mapping: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="The TOML file that maps them (docs/IMPORT.md).")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the training (default: as many as learn each request twice, 100 to 2,000).")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="copr, click, or softmax, which suits sampled negatives (default: the mapping's).")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(min=1e-6, help="Highest learning rate (default: 0.002).")] = None,
    batch_requests: Annotated[int | None, typer.Option(min=1, help="Requests of a batch (default: 16).")] = None,
    hash_bits: Annotated[int | None, typer.Option(min=8, help="Bits of a signature (default: 256).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and batches (default: 0).")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Measure from this date or time on, like 2011-10-01; nothing later is learned from.")
    ] = None,
    end: Annotated[str | None, typer.Option("--until", help="Measure interactions before this date or time.")] = None,
    split: Annotated[
        str | None, typer.Option(help="time, or user: hold out the latest fifth of each user's behaviours (default: the mapping's).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model here, its figures in the card.")] = None,
    rungs: Annotated[bool, typer.Option("--rungs", help="Measure the quality on each rung of the serving ladder, too.")] = False,
    live: Annotated[
        float,
        typer.Option(
            "--live", min=0.0, help="Then serve the model while so many hours of the log go on, with kept, stale and fresh statistics."
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Train one model on mapped files and measure it on their held-out users against popularity and repeats, with paired intervals.

    Options that are not given come from the mapping's [evaluation], [train] and [model].
    """
    _use_one_thread()
    from lab.evaluation.mapped_data import LOSSES, DataOptions, run_data

    if loss is not None and loss not in LOSSES:
        raise typer.BadParameter(f"{loss!r}, expected one of {sorted(LOSSES)}", param_hint="--loss")
    if split not in (None, "time", "user"):
        raise typer.BadParameter(f"{split!r}, expected time or user", param_hint="--split")
    options = DataOptions(
        directory, mapping, steps, loss, learning_rate, batch_requests, hash_bits, seed, out, start, end, split, rungs, live
    )
    print_figures(run_data(options).as_dict(), as_json)


def history(
    out: Annotated[Path, typer.Option(help="Folder of the cells; those that are there are not computed again.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="Histories of 300 behaviours in the median instead of 8,327: minutes.")] = False,
    processes: Annotated[int, typer.Option(min=0, help="Cells side by side, one thread each. 0 = one per core.")] = 0,
    rungs: Annotated[bool, typer.Option("--rungs", help="Instead: the quality of one model by rung of the serving ladder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure GAUC and HR@100 against the number of behaviours that a model reads, with the time of both calls."""
    _use_one_thread()
    from lab.evaluation.history import run_history, run_rungs

    figures = run_rungs(quick) if rungs else run_history(out, quick, processes or len(os.sched_getaffinity(0)))
    print_figures(figures.as_dict(), as_json)


def relay(as_json: AsJson = False) -> None:
    """Train AIF and two rankers on a world with long histories; measure the final order against AIF's, and 16 and 8 bits of keys and values. 5 minutes."""
    _use_one_thread()
    from lab.evaluation.relay import RelayPlan, run_relay

    print_figures(run_relay(RelayPlan()).as_dict(), as_json)


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
    _use_one_thread()
    if live:
        from lab.evaluation.live_bench import measure_live

        print_figures(measure_live(items).as_dict(), as_json)
        return
    from lab.evaluation.drift import run_online

    figures = run_online(out, quick)
    say(f"wrote {out / 'online.png'}")
    print_figures(figures.as_dict(), as_json)


def allocation(
    out: Annotated[Path, typer.Option(help="Folder of the picture allocation.svg.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="Half of the requests: two minutes on one core.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=8, help="Seeds of requests, users, days and outcomes.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them; 0 to 2 chose the constants.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The worth of computation allocation on simulated requests whose true values are known, with costs of docs/BENCHMARKS.md.

    Value at equal cost and cost at equal value against the best static mix and today's path; the controls over a day; cached answers; dropped requests.
    """
    _use_one_thread()
    from lab.evaluation.allocation.program import run_allocation

    figures = run_allocation(out, quick, range(first_seed, first_seed + seeds))
    say(f"wrote {out / 'allocation.svg'}")
    print_figures(figures.as_dict(), as_json)


def _use_one_thread() -> None:
    """Sets the number of threads of the numerical libraries to one, before they are imported: each process computes with one thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
