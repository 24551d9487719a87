"""docs/BENCHMARKS.md: the declarations of all benches with their kept runs. All of it is written here, nothing by hand."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from lab.figures.declared import Bench, Figure, Goal, read_summary
from lab.figures.kept import KEPT_RUNS, Run, describe_config, differing, group_runs, read_runs
from lab.figures.markdown import heading, join_blocks, table

_MET = " **met**"
_NAMES_MAX = 12  # of one figure with holes, that a cell lists
_HEAD = f"""# Benchmarks

`aif bench report` writes this page from the declarations in lab/benches.toml and the runs in [benchmarks](benchmarks). Measure again and keep the run:

    aif bench rank --json > rank.json
    aif bench keep rank.json
    aif bench report

The last {KEPT_RUNS} runs with the same options are kept. A cell is their median, and in brackets the lowest and the highest value; where a run
states a 95% interval, the brackets contain it. `-`: not measured. Ratios are 0 to 1. Machines differ and are shared: compare figures within a run, not
the times of two runs. [EXPERIMENTS.md](EXPERIMENTS.md) says what limits each figure."""


def render_benchmarks(benches: Sequence[Bench], kept: Path) -> str:
    """The whole document; `kept` is the folder of the runs."""
    measured = [(bench, group_runs(read_runs(kept, bench))) for bench in benches]
    sections = (block for bench, groups in measured for block in _section(bench, groups, kept))
    return join_blocks(
        [_HEAD, *_summary({bench.command: (bench, groups) for bench, groups in measured}), *_open_goals(measured), *sections]
    )


def _summary(measured: Mapping[str, tuple[Bench, Sequence[Sequence[Run]]]]) -> Iterator[str]:
    """Yield the figures that a reader asks for first, each with figures of the same runs to compare."""
    rows = []
    for line in read_summary():
        if line.command not in measured:
            continue
        bench, groups = measured[line.command]
        for label, group in zip(differing(groups), groups, strict=True):
            if label == line.asked:
                beside = "; ".join(f"{title} {_value(name, group)}" for title, name in line.beside.items())
                unit = bench.unit_of(line.figure) or ""
                rows.append([line.question, line.measure, unit, _value(line.figure, group), beside, f"`aif {line.command}`"])
    if rows:
        yield heading("How fast, how fresh, how exact")
        yield table(["", "measure", "unit", "this system", "in the same runs", "command"], rows)


def _open_goals(measured: Sequence[tuple[Bench, list[list[Run]]]]) -> Iterator[str]:
    """How many goals there are, and a table of those that a kept run misses, or that no kept run has measured."""
    count, rows = 0, list[list[str]]()
    for bench, groups in measured:
        for goal in bench.parsed_goals():
            count += 1
            verdicts = [_verdict([goal], group) for group in groups]
            values = [
                (f"{label}: " if len(groups) > 1 else "") + _value(goal.figure, group) + verdict
                for label, group, verdict in zip(differing(groups), groups, verdicts, strict=True)
                if verdict not in ("", _MET)
            ]
            if values or not any(verdicts):
                rows.append([f"`aif {bench.command}`", f"`{goal.figure}`", str(goal), "; ".join(values) or "not kept yet"])
    yield heading("Goals")
    yield f"Of {count} goals {count - len(rows)} are met in every kept run. The others:"
    yield table(["command", "figure", "goal", "kept runs"], rows)


def _section(bench: Bench, groups: Sequence[Sequence[Run]], kept: Path) -> Iterator[str]:
    yield heading(f"`aif {bench.command}`")
    yield bench.about
    yield f"    aif {bench.command}{bench.options and ' '}{bench.options} --json"
    if not groups:
        yield "No run is kept yet."
    elif len(groups) == 1:
        yield f"{_when(groups[0])} Asked: `{describe_config(groups[0][0].config)}`. All of it: [{bench.name}.json]({kept.name}/{bench.name}.json)."
    else:
        common = {name: value for name, value in groups[0][0].config.items() if all(group[0].config.get(name) == value for group in groups)}
        yield "\n".join(f"- {label}: {_when(group)}" for label, group in zip(differing(groups), groups, strict=True))
        asked = f"Asked of all: `{describe_config(common)}`. " if common else ""
        yield f"{asked}All of it: [{bench.name}.json]({kept.name}/{bench.name}.json)."
    columns = ["figure", "unit", "meaning", "goal", *(["kept runs"] if len(groups) == 1 else differing(groups))]
    goals = bench.parsed_goals()
    rows = (_rows(bench, figure, [goal for goal in goals if _is_of(bench, goal, figure)], groups) for figure in bench.figures)
    yield table(columns, chain.from_iterable(rows))


def _when(group: Sequence[Run]) -> str:
    """`2 runs: 2026-11-22, 2026-11-22 on AMD EPYC, 2 cores.`; where machines differ, each says its own."""
    machines = [f"{run.machine['processor']}, {run.machine['cores']} cores" for run in group]
    if len(set(machines)) == 1:
        dates = ", ".join(dict.fromkeys(run.date for run in group))
        return f"{len(group)} run{'s' * (len(group) > 1)}, {dates}, on {machines[0]}."
    return f"{len(group)} runs: {'; '.join(f'{run.date} on {machine}' for run, machine in zip(group, machines, strict=True))}."


def _is_of(bench: Bench, goal: Goal, figure: Figure) -> bool:
    """Whether the goal is of the figure, or of a bound of its interval."""
    return (bench.figure_of(goal.figure) or bench.figure_of(goal.figure.rpartition("_")[0])) is figure


def _rows(bench: Bench, figure: Figure, goals: Sequence[Goal], groups: Sequence[Sequence[Run]]) -> Iterator[list[str]]:
    """A line for the figure with all of its values, and one for each name of it that has a goal of its own."""
    own = [goal for goal in goals if goal.figure == figure.name]
    apart = [goal for goal in goals if goal.figure != figure.name]
    texts = ["; ".join(str(goal) for goal in own)]
    texts.extend(_values(figure, _names_of(bench, figure, group), group) + _verdict(own, group) for group in groups)
    yield [f"`{figure.name}`", figure.unit, figure.meaning, *texts]
    for goal in apart:
        values = [_value(goal.figure, group) + _verdict([goal], group) for group in groups]
        yield [f"`{goal.figure}`", figure.unit, "", str(goal), *values]


def _names_of(bench: Bench, figure: Figure, group: Sequence[Run]) -> list[str]:
    """The names under which the runs have this figure, but for bounds."""
    names = dict.fromkeys(name for run in group for name in run.values)
    bounds = {f"{name}{end}" for name in names for end in ("_low", "_high") if f"{name}_low" in names}
    return [name for name in names if name not in bounds and bench.figure_of(name) is figure]


def _values(figure: Figure, names: Sequence[str], group: Sequence[Run]) -> str:
    if not names:
        return "-"
    if figure.pattern.groups == 0:
        return _value(figure.name, group)
    if len(names) > _NAMES_MAX:
        return f"{len(names)} values"
    return "; ".join(f"{' '.join(_holes(figure, name))}: {_value(name, group)}" for name in names)


def _holes(figure: Figure, name: str) -> Iterable[str]:
    found = figure.pattern.fullmatch(name)
    return found.groups() if found else ()


def _value(name: str, group: Sequence[Run]) -> str:
    """The median of the runs, and in brackets the lowest and the highest value, or bound of an interval, where they differ."""
    values = [value for run in group if (value := run.values.get(name)) is not None]
    if not values:
        return "-"
    bounds = [bound for run in group for end in ("_low", "_high") if (bound := run.values.get(f"{name}{end}")) is not None]
    low, high = min(values + bounds), max(values + bounds)
    return _number(statistics.median(values)) + ("" if low == high else f" [{_number(low)}, {_number(high)}]")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1_000 else f"{value:.4g}"


def _verdict(goals: Sequence[Goal], group: Sequence[Run]) -> str:
    """` **met**`, ` **missed**`, or in how many of the runs that could be judged the goals were met."""
    judged = [all(found) for run in group if goals and None not in (found := [goal.is_met(run.values) for goal in goals])]
    if not judged:
        return ""
    if len(set(judged)) == 1:
        return _MET if judged[0] else " **missed**"
    return f" **met in {sum(judged)} of {len(judged)}**"
