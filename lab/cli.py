"""The `aif` commands of `lab`: demo, bench, eval. Only typer and the standard library at module level; heavy imports belong inside the commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.command import AsJson, print_figures, print_table, say
from lab.demo.cli import demo_app
from lab.evaluation.cli import register as register_eval

if TYPE_CHECKING:
    from infra.figures import Figures

Docs = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="The folder of BENCHMARKS.md; the runs are in benchmarks next to it.")
]

Quick = Annotated[bool, typer.Option("--quick", help="Fewer calls: a look, not a measurement.")]


def commands(app: typer.Typer) -> None:
    """Register the commands of `lab` onto the `aif` application."""
    app.add_typer(demo_app, name="demo", short_help="From nothing to ranked answers, measured.")
    group = typer.Typer(help="Run benchmarks and compare them with their lower bounds.", no_args_is_help=True, callback=log_warnings_only)
    app.add_typer(group, name="bench")
    group.command("keep", short_help="File what --json printed among the runs in docs/benchmarks.")(keep)
    group.command("report", short_help="Write docs/BENCHMARKS.md from the runs that are kept.")(report)
    group.command("freshness", short_help="From publish to visible in an answer.")(freshness)
    group.command("statistics", short_help="From a behaviour to the score that its count gives.")(statistics)
    group.command("crash", short_help="Kills under traffic; then every event is counted.")(crash)
    group.command("soak", short_help="Mixed load for long: does anything grow?")(soak)
    group.command("scale", short_help="Build, disk and memory by number of items.")(scale)
    group.command("rank", short_help="Engine, ports and peers, compared with the lower bound.")(bench_rank)
    group.command("device", short_help="The engine on a CUDA device, compared with the CPU.")(bench_device)
    group.command("overload", short_help="Ten times the load that a server carries.")(bench_overload)
    group.command("allocation", short_help="A spike of three times the load: who is ranked, and with how much work.")(bench_allocation)
    group.command("table1", short_help="The paper's Table 1, measured.")(bench_table1)
    group.command("table4", short_help="The paper's Table 4, row for row.")(bench_table4)
    group.command("switch", short_help="Latency while versions load and flip.")(bench_switch)
    group.command("relay", short_help="A ranker's prefix computed before its candidates.")(bench_relay)
    group.command("affinity", short_help="Several servers, some of them killed.")(bench_affinity)
    group.command("nearline", short_help="Builds and increments, compared with their lower bounds.")(nearline)
    register_eval(app)


def log_warnings_only() -> None:
    """Run benchmarks and compare them with their lower bounds."""
    from infra.logs import open_logs

    open_logs("bench", "warning")  # a line per request would be measured too


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


def nearline(
    items: Annotated[int, typer.Option(min=1_000, help="Items of the synthetic catalogue.")] = 50_000,
    updates: Annotated[int, typer.Option(min=1_000, help="Increments, one per record and again 256 per record.")] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Items/s of a full build, compared with the bare network; updates/s of a worker, one and 256 per record; memory; start."""
    from lab.system.nearline import measure_nearline

    print_figures(measure_nearline(items, updates).as_dict(), as_json)


def bench_rank(
    items: Annotated[int, typer.Option(min=10_000, help="Items of the synthetic catalogue, made in memory.")] = 1_000_000,
    candidates: Annotated[str, typer.Option(help="Sizes of the requests, with commas.")] = "1000,10000,100000",
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Latency of the engine, compared with torch on the same rows and products; SimTier per pair; parity with the fp64 reference."""
    from lab.serving.rank import measure_rank

    sizes = tuple(int(size) if size.strip().isdecimal() else 0 for size in candidates.split(","))
    if not all(1 <= size <= items for size in sizes):
        raise typer.BadParameter(f"--candidates {candidates}: expected numbers from 1 to {items} (--items), with commas between")
    print_figures(measure_rank(items, sizes, quick).as_dict(), as_json)


def bench_device(
    items: Annotated[int, typer.Option(min=100_000, help="Items of the synthetic catalogue, made in memory.")] = 1_000_000,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Latency of the engine with a CUDA device, for 1,000 to 100,000 candidates, compared with this machine's processor."""
    from lab.serving.device import CANDIDATES, measure_device
    from lab.serving.world import Plan

    print_figures(measure_device(items, Plan(CANDIDATES, 3 if quick else 12, 20 if quick else 100)).as_dict(), as_json)


def bench_overload(
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each turn.")] = 10.0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each kind; steady and overload alternate.")] = 8,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates of each request.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Ten times the load a server carries against 80% of it: admitted_p99_ratio with its interval, refused_p99_ms, rss_growth_mb. Three minutes."""
    from lab.serving.overload import OverloadPlan, measure_overload

    print_figures(measure_overload(OverloadPlan(seconds=seconds, turns=turns, candidates=candidates)).as_dict(), as_json)


def bench_allocation(
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each phase: before the spike, in it, after it.")] = 10.0,
    turns: Annotated[int, typer.Option(min=1, help="Turns; in each one all variants get the same trace.")] = 3,
    candidates: Annotated[int, typer.Option(min=1_000, help="Candidates of each request.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """A spike of three times the load, with the queue's price, with admission alone and with static lists: ranked_share, p99_ratio, value_kept,
    value_kept_static, errors, decision_p99_us. Eight minutes."""
    from lab.serving.allocation import AllocationPlan, measure_allocation

    print_figures(measure_allocation(AllocationPlan(candidates=candidates, seconds=seconds, turns=turns)).as_dict(), as_json)


def bench_table1(
    items: Annotated[int, typer.Option(min=1, help="Items of the catalogue whose cost is computed.")] = 1_000_000,
    updates: Annotated[float, typer.Option(min=0.001, help="Item updates a second.")] = 1_000.0,
    requests: Annotated[float, typer.Option(min=0.001, help="Requests a second.")] = 100.0,
    candidates: Annotated[int, typer.Option(min=1, max=50_000, help="Candidates of each request.")] = 10_000,
    behaviours: Annotated[int, typer.Option(min=1, help="Behaviours of each user.")] = 1_000,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """The paper's Table 1: compute, storage, latency and timeliness of the four ways of computing, measured on the same traffic."""
    from lab.serving.table1 import Traffic, measure_table1, table_rows

    traffic = Traffic(items=items, updates_per_s=updates, requests_per_s=requests, candidates=candidates, behaviours=behaviours)
    figures = measure_table1(traffic, world_items=50_000, calls=8 if quick else 40)
    _print("table1", figures, table_rows(figures), as_json)


def bench_table4(
    items: Annotated[int, typer.Option(min=10_000, help="Items of the synthetic catalogue, made in memory.")] = 200_000,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates of each request.")] = 10_000,
    behaviours: Annotated[int, typer.Option(min=1, help="Behaviours of each user.")] = 1_000,
    p99_ms: Annotated[float, typer.Option(min=0, help="The p99 at which throughput is compared; 0 = five times the base's mean.")] = 0.0,
    rows: Annotated[
        str, typer.Option(help="Only these and the base, with commas, for example sim,aif (default: all; eight minutes, aif alone two).")
    ] = "",
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """The paper's Table 4 row for row: response time, throughput at a fixed p99, extra storage, against the sequential base of the same run."""
    from lab.serving.table4 import ROW_NAMES, Table4Plan, measure_table4, table_rows

    chosen = tuple(name for name in rows.split(",") if name)
    if unknown := set(chosen) - set(ROW_NAMES):
        raise typer.BadParameter(f"--rows: there is no {', '.join(sorted(unknown))}, expected some of {', '.join(ROW_NAMES)}")
    plan = Table4Plan(items, min(candidates, items), behaviours, p99_ms=p99_ms, rows=chosen)
    figures = measure_table4(plan.quick() if quick else plan)
    _print("table4", figures, table_rows(figures), as_json)


def _print(name: str, figures: "Figures", rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """The figures as JSON, or the paper's table made of them."""
    if as_json:
        print_figures(figures.as_dict(), True)
    else:
        print_table(name, rows, False)


def bench_switch(
    items: Annotated[int, typer.Option(min=1_000, help="Items of every version.")] = 200_000,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates of each request.")] = 1_000,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 100.0,
    answers: Annotated[int, typer.Option(min=10, help="Answers on each side: at rest, and while versions switch.")] = 6_000,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two versions.")] = 3.0,
    mixed: Annotated[
        int,
        typer.Option(
            min=0, help="Instead: judge this many answers, as fast as they come while versions flip as fast as they load; 0 = no."
        ),
    ] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Latency while versions load and flip every few seconds, against the same server at rest: flips, answers, mixed_versions, p99_ratio."""
    if mixed:
        from lab.serving.switch import MixedPlan, measure_mixed

        print_figures(measure_mixed(MixedPlan(mixed)).as_dict(), as_json)
        return
    from lab.serving.switch import SwitchPlan, measure_switch

    plan = SwitchPlan(items, min(candidates, items), rate_per_s=rate, answers=answers, every_s=every)
    print_figures(measure_switch(plan.quick() if quick else plan).as_dict(), as_json)


def bench_affinity(
    servers: Annotated[int, typer.Option(min=2, max=16, help="Server processes on this machine.")] = 12,
    kills: Annotated[int, typer.Option(min=1, help="How many of them are killed, each at a time of its own.")] = 3,
    users: Annotated[int, typer.Option(min=1, help="Users, whose requests come in turn.")] = 3_000,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second, each with both calls.")] = 40.0,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds with all servers, and seconds in which some are killed.")] = 90.0,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Several servers behind the Merger's routing, some of them killed under load: share of call 2 that finds its state, recomputes, failures, who moved."""
    from lab.serving.affinity import AffinityPlan, measure_affinity

    plan = AffinityPlan(servers, min(kills, servers - 1), users=users, rate_per_s=rate, seconds=seconds)
    print_figures(measure_affinity(plan.quick() if quick else plan).as_dict(), as_json)


def bench_relay(
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each window.")] = 15.0, quick: Quick = False, as_json: AsJson = False
) -> None:
    """Longest history and most requests within 30 ms, with prefixes computed during retrieval and without; about 8 minutes.

    Example: aif bench relay --quick
    """
    from dataclasses import replace

    from lab.serving.relay import RelayPlan, measure_relay

    plan = replace(RelayPlan(), seconds=seconds)
    print_figures(measure_relay(plan.quick() if quick else plan).as_dict(), as_json)


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
