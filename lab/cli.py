"""The `aif` commands of `lab`: demo, bench, eval. Only typer and the standard library at module level; heavy imports belong inside the commands."""

from pathlib import Path
from typing import Annotated

import typer

from infra.command import AsJson, print_figures, say
from lab.demo.cli import demo_app
from lab.evaluation.cli import register as register_eval
from lab.serving.cli import register as register_serving

Docs = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="The folder of BENCHMARKS.md; the runs are in benchmarks next to it.")
]


def commands(app: typer.Typer) -> None:
    """Register the commands of `lab` onto the `aif` application."""
    app.add_typer(demo_app, name="demo", short_help="From nothing to ranked answers, measured.")
    group = typer.Typer(help="Run benchmarks and compare them with their lower bounds.", no_args_is_help=True)
    app.add_typer(group, name="bench")
    group.command("keep", short_help="File what --json printed among the runs in docs/benchmarks.")(keep)
    group.command("report", short_help="Write docs/BENCHMARKS.md from the runs that are kept.")(report)
    group.command("freshness", short_help="From publish to visible in an answer.")(freshness)
    group.command("statistics", short_help="From a behaviour to the score that its count gives.")(statistics)
    group.command("crash", short_help="Kills under traffic; then every event is counted.")(crash)
    group.command("soak", short_help="Mixed load for long: does anything grow?")(soak)
    group.command("scale", short_help="Build, disk and memory by number of items.")(scale)
    register_serving(group)
    group.command("nearline", short_help="Builds and increments, compared with their lower bounds.")(bench_nearline)
    register_eval(app)


def freshness(
    rate: Annotated[float, typer.Option(min=1.0, help="Updates per second, one per record.")] = 2_000.0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of the measurement without a build.")] = 20.0,
    items: Annotated[int, typer.Option(min=1_000, help="Items of the synthetic catalogue.")] = 50_000,
    builds: Annotated[int, typer.Option(min=0, help="Full builds during the measurement that follows.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Publish to visible in a server's answers: visible_p50_ms, visible_p99_ms, visible_during_build_p99_ms, rate_per_s, lost."""
    from lab.system.freshness import measure_freshness

    print_figures(measure_freshness(rate, seconds, items, builds).as_dict(), as_json)


def statistics(
    rate: Annotated[float, typer.Option(min=1.0, help="Behaviours per second, one per record.")] = 2_000.0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of the measurement.")] = 30.0,
    items: Annotated[int, typer.Option(min=1_000, help="Items of the synthetic catalogue.")] = 20_000,
    kills: Annotated[int, typer.Option(min=0, help="Faults meanwhile: kill -9, a freeze, a third process, in turn.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Behaviour to statistic in a served score, and streamed statistics against imported ones: visible_p99_ms, rate_per_s, parity_bits."""
    from lab.system.statistics import measure_statistics

    print_figures(measure_statistics(rate, seconds, items, kills).as_dict(), as_json)


def crash(
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="How often something is killed.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the kills, their places, and the published updates.")] = 0,
    items: Annotated[int, typer.Option(min=100, help="Items of the synthetic catalogue.")] = 2_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Updates per second all the while.")] = 200.0,
    as_json: AsJson = False,
) -> None:
    """Kill worker and broker and fail the disk under traffic, then count: kills, acknowledged, lost, doubled, dead_letters_missing, dead_letters_wrong,
    catch_up_p50_s, digest_equal."""
    from lab.system.crash import measure_crash

    print_figures(measure_crash(kills, seed, items, rate).as_dict(), as_json)


def soak(
    seconds: Annotated[float, typer.Option(min=10.0, help="Seconds of mixed load.")] = 7_200.0,
    settle_s: Annotated[float, typer.Option(min=0.0, help="Seconds of load before the slopes begin.")] = 1_800.0,
    items: Annotated[int, typer.Option(min=1_000, help="Items of the synthetic catalogue.")] = 5_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Item updates per second.")] = 200.0,
    version_every_s: Annotated[float, typer.Option(min=10.0, help="Seconds between two new versions.")] = 180.0,
    as_json: AsJson = False,
) -> None:
    """Growth an hour of memory, open files, table files and store files: worker_rss_mib_per_h, shards_table_files_per_h, store_files_per_h, ..."""
    from lab.system.soak import measure_soak

    print_figures(measure_soak(seconds, settle_s, items, rate, version_every_s).as_dict(), as_json)


def scale(sizes: Annotated[str, typer.Option(help="Numbers of items, with commas.")] = "100000,1000000", as_json: AsJson = False) -> None:
    """Time of a full build, bytes on disk and memory by number of items: build_s_N, disk_bytes_per_item_N, raw_bytes_per_item_N, rss_mb_N."""
    from lab.system.scale import measure_scale

    numbers = [int(size) if size.strip().isdecimal() else 0 for size in sizes.split(",")]
    if not all(numbers):
        raise typer.BadParameter(f"--sizes {sizes}: expected numbers from 1 on, with commas between, for example 100000,1000000")
    print_figures(measure_scale(numbers).as_dict(), as_json)


def bench_nearline(
    items: Annotated[int, typer.Option(min=1_000, help="Items of the synthetic catalogue.")] = 50_000,
    updates: Annotated[int, typer.Option(min=1_000, help="Increments, one per record and again 256 per record.")] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Items/s of a full build, compared with the bare network; updates/s of a worker, one and 256 per record; memory; start."""
    from lab.system.nearline import measure_nearline

    print_figures(measure_nearline(items, updates).as_dict(), as_json)


def keep(
    files: Annotated[list[str], typer.Argument(help="What commands printed with --json, a file each; - is standard input.")],
    docs: Docs = Path("docs"),
) -> None:
    """File runs of anything that measures, also `aif demo`, `train`, `replay`, `verify-answers` and `eval`, in docs/benchmarks/NAME.json.

    The last few runs that were asked the same are kept; a run that was asked something else (--quick, fewer rows) replaces none of them.
    """
    from lab.figures.declared import read_benches
    from lab.figures.kept import keep_run

    benches = read_benches().values()
    for file in files:
        try:
            text = typer.get_text_stream("stdin").read() if file == "-" else Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{file}: {error}; expected what a command printed with --json") from error
        say(keep_run(docs / "benchmarks", benches, text, "standard input" if file == "-" else Path(file).name))


def report(docs: Docs = Path("docs")) -> None:
    """Write docs/BENCHMARKS.md: every figure that is declared, its goal, and the runs that are kept."""
    from lab.figures.declared import read_benches
    from lab.figures.document import render_benchmarks

    path = docs / "BENCHMARKS.md"
    path.write_text(render_benchmarks(tuple(read_benches().values()), docs / "benchmarks"))
    say(f"wrote {path}")
