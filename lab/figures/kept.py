"""The runs that are kept in docs/benchmarks: NAME.json for each bench, the newest run first.

Runs that were asked the same (`config`) are repetitions, of which the last few stay. A run with other options (`--quick`, fewer rows, another
number of items) replaces none of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.files import write_file_durably
from lab.figures.declared import Bench
from schemas.errors import Misconfigured

KEPT_RUNS = 5  # of the same config: enough to see how far runs differ
_DIGITS = 6  # of a value, more than any two runs share


@dataclass(frozen=True)
class Run:
    """One run of a bench: values by figure, bounds of intervals among them; null where it could not be measured."""

    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    values: Mapping[str, float | None]


def kept_path(folder: Path, bench: Bench) -> Path:
    """Where its runs are."""
    return folder / f"{bench.name}.json"


def read_runs(folder: Path, bench: Bench) -> list[Run]:
    """Its kept runs, the newest first; empty if there are none."""
    path = kept_path(folder, bench)
    return [Run(**raw) for raw in json.loads(path.read_text())["runs"]] if path.exists() else []


def group_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs that were asked the same together, in the order in which each was asked last."""
    groups: list[list[Run]] = []
    for run in runs:
        same = next((group for group in groups if group[0].config == run.config), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    return groups


def differing(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The difference of each group from the others: the part of its config in which they differ, `calls 36`."""
    configs = [group[0].config for group in groups]
    names = [
        name
        for name in dict.fromkeys(name for one in configs for name in one)
        if any(one.get(name) != configs[0].get(name) for one in configs)
    ]
    return [describe_config({name: one[name] for name in names if name in one}) for one in configs]


def describe_config(config: Mapping[str, Any]) -> str:
    """`items 1000000, candidates 1000 10000`; a value with parts of its own is left to the file."""
    shown = {name: _shown(value) for name, value in config.items() if not isinstance(value, Mapping)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "all"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def keep_run(folder: Path, benches: Iterable[Bench], printed: str, origin: str) -> str:
    """Files one object that a command printed with `--json`; returns a sentence about the result.

    Raises Misconfigured (`not_figures`, `unknown_bench`, `undeclared_figures`).
    """
    try:
        raw = json.loads(printed)
        command = raw["command"]
        values = {name: _shortened(figure["value"]) for name, figure in raw["figures"].items()}
        run = Run(raw["date"], raw["machine"], raw["versions"], raw["config"], values)
    except (ValueError, KeyError, TypeError) as error:
        raise Misconfigured(
            "not_figures", f"{origin} is not the output of a command with --json ({error!r}); nothing of it was kept"
        ) from error
    bench = next((one for one in benches if one.command == command), None)
    if bench is None:
        raise Misconfigured("unknown_bench", f"{origin} is of `aif {command}`, which declares no figures")
    if undeclared := [name for name in values if not bench.declares(name)]:
        raise Misconfigured(
            "undeclared_figures",
            f"{origin} has {', '.join(undeclared[:3])}, which `aif {command}` does not declare: run it again with this code",
        )
    if bench.asked:
        run = replace(run, config={name: run.config.get(name) for name in bench.asked})
    before = read_runs(folder, bench)
    if run in before:
        return f"{origin}: this run of `aif {command}` is kept already"
    groups = group_runs([run, *before])
    text = json.dumps({"command": command, "runs": [vars(one) for group in groups for one in group[:KEPT_RUNS]]}, indent=1)
    write_file_durably(kept_path(folder, bench), (text + "\n").encode())
    said = f"{origin}: kept in {kept_path(folder, bench)} as run {min(len(groups[0]), KEPT_RUNS)} that was asked the same"
    return said if len(groups) == 1 else f"{said} ({differing(groups)[0]}); {len(groups) - 1} other sets of options have runs, too"


def _shortened(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
