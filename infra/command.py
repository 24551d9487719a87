"""What every `aif` command shares: JSON on request, settings, and the names of settings classes. Standard library and typer only.

Each command is in the cli.py next to the code that it drives.
Exit codes: 0 done, 1 an error of ours (its code is printed), 2 wrong usage, 130 Ctrl-C.
"""

import itertools
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from infra.settings import InfraSettings

# The type of the flag that every command has which prints data: `def show(as_json: AsJson = False)`.
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

_CELL_MIN = 16  # characters of a cell that are never folded

# What the parts register, each its own in its `commands(app)`, read when all have. Nothing is imported before it is shown.
# "module:Class" of every process's settings, for `aif config show`.
SETTINGS_CLASSES: list[str] = ["infra.settings:InfraSettings"]
# "module:function" that explains a section of a model's file, for `aif config show --model FILE`: it gives rows with name, value and origin.
CHOICES: dict[str, str] = {}


def register_choices(section: str, path: str) -> None:
    """Name what explains a section of a model's file ("streams.training.model_file:explain_choices"), for `aif config show`."""
    CHOICES[section] = path


def register_settings(path: str) -> None:
    """Name a settings class ("streams.settings:WorkerSettings") for `aif config show`; to be called in a `commands(app)`."""
    if path not in SETTINGS_CLASSES:
        SETTINGS_CLASSES.append(path)


def group_of(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """A group of commands that several parts share: the part that registers first makes it."""
    known = next((group.typer_instance for group in app.registered_groups if group.name == name), None)
    if known is not None:
        return known
    made = typer.Typer(help=about, no_args_is_help=True)
    app.add_typer(made, name=name)
    return made


def read_settings() -> "InfraSettings":
    """The settings of a command that runs no process of its own. Raises Misconfigured."""
    from infra.settings import InfraSettings, load_settings

    return load_settings(InfraSettings)


def print_data(data: Mapping[str, Any], as_json: bool) -> None:
    """Print `data` on standard output: as one JSON object, or as lines `name  value`, in which lists and mappings are JSON."""
    if as_json:
        typer.echo(json.dumps(data, default=str))
        return
    width = max((len(_title(name)) for name in data), default=0)
    for name, value in data.items():
        first, *more = _fold(str(_shown(name, value)), max(_CELL_MIN, _columns_max() - width - 2))
        typer.echo(f"{_title(name):<{width}}  {first}".rstrip())
        for line in more:
            typer.echo(f"{'':<{width}}  {line}")


def _title(name: str) -> str:
    return name.removesuffix("_ms") if name.endswith("_at_ms") else name


def _shown(name: str, value: object) -> object:
    """A value as text; a time in milliseconds since 1970 (`rejected_at_ms`) as people read it, and 0 as none.

    An id, a label or a reason may hold what ends a line or speaks to the terminal: it is escaped.
    """
    if isinstance(value, str):
        return escape(value)
    if name.endswith("_at_ms") and isinstance(value, int):
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if value else ""
    return json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else value


def print_table(name: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print `rows` (all with the same keys) on standard output: as {name: rows}, or as aligned columns under their keys.

    Cells with parts are JSON, as in `print_data`. That there are none is said on standard error, so that standard output stays data.
    """
    if as_json:
        typer.echo(json.dumps({name: list(rows)}, default=str))
        return
    if not rows:
        say(f"no {name.replace('_', ' ')}")
        return
    columns = list(rows[0])
    cells = [[_title(column) for column in columns], *([str(_shown(column, row[column])) for column in columns] for row in rows)]
    widths = _fit([max(len(line[i]) for line in cells) for i in range(len(columns))], _columns_max())
    for line in cells:
        folded = [_fold(cell, width) for cell, width in zip(line, widths, strict=True)]
        for part in itertools.zip_longest(*folded, fillvalue=""):
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(part, widths, strict=True)).rstrip())


def _columns_max() -> int:
    """Columns of the terminal; where the output goes elsewhere lines are never folded."""
    return shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else sys.maxsize


def _fit(widths: list[int], columns_max: int) -> list[int]:
    """The widths of a table's columns, the widest made narrower until two spaces between them leave room for all. The first, a name, stays as it is."""
    first, rest = widths[0], widths[1:]
    while first + sum(rest) + 2 * len(rest) > columns_max and rest and max(rest) > _CELL_MIN:
        rest[rest.index(max(rest))] -= 1
    return [first, *rest]


def _fold(text: str, width: int) -> list[str]:
    """The lines of a cell."""
    return textwrap.wrap(text, max(1, width)) if len(text) > width else [text]


def print_parts(data: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]], as_json: bool) -> None:
    """Print `data` and its tables: as one JSON object, or as `print_data` and, behind an empty line each, the tables that have rows."""
    if as_json:
        print_data({**data, **tables}, True)
        return
    print_data(data, False)
    for name, rows in tables.items():
        if rows:
            typer.echo("")
            print_table(name, rows, False)


def print_figures(report: Mapping[str, Any], as_json: bool) -> None:
    """Print what `Figures.as_dict` gives: the whole object as JSON, or a line a figure, which ends with its interval where there is one."""
    if as_json:
        typer.echo(json.dumps(report, default=str, allow_nan=False))
        return
    figures = report["figures"]
    bounds = {name: (f"{name}_low", f"{name}_high") for name in figures if f"{name}_low" in figures and f"{name}_high" in figures}
    within = {bound for pair in bounds.values() for bound in pair}
    rows = [
        {"figure": name, "value": _number(figure), "unit": figure["unit"]}
        | ({"interval": " to ".join(_number(figures[bound]) for bound in bounds.get(name, ()))} if bounds else {})
        for name, figure in figures.items()
        if name not in within
    ]
    print_table("figures", rows, as_json)


def _number(figure: Mapping[str, Any]) -> str:
    return "-" if figure["value"] is None else f"{figure['value']:,.6g}"


def escape(text: str, keep: str = "") -> str:
    """The text with each character that is not printable as in Python's strings, except those to `keep`."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def say(message: str) -> None:
    """Lines of progress, on standard error so that standard output stays data. They may quote a file, so control characters are escaped."""
    print(escape(message, keep="\n"), file=sys.stderr, flush=True)
