"""The reference pages of docs/reference, made from the code: settings, error codes, metrics, command line.

    python -m infra.tools.reference            writes the pages that are stale

A test compares the pages with the code.
"""

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command

from infra.cli import build_app
from infra.command import SETTINGS_CLASSES, say
from infra.folders import user_data_dir
from infra.metrics import METRICS
from infra.settings import ProcessSettings, unit_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
ERROR_TEXTS = Path(__file__).with_name("errors.toml")
_MADE = "*Made from the code by `python -m infra.tools.reference`; do not edit.*"
# Who must act, by the class of an error.
_ACTORS = {
    "RejectedInput": "the sender",
    "Unavailable": "retry later",
    "Incompatible": "the operator",
    "Corrupted": "the owner of the data",
    "Misconfigured": "whoever started the process",
}


def pages() -> dict[str, str]:
    """Every page: its file name and its text."""
    return {"settings.md": settings_page(), "errors.md": errors_page(), "metrics.md": metrics_page(), "cli.md": cli_page()}


def stale_pages() -> dict[str, str]:
    """The pages that differ from the code."""
    return {name: text for name, text in pages().items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text}


def _head(title: str, *about: str) -> list[str]:
    return [f"# {title}", "", _MADE, "", *about]


# --- settings ----------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """A table per section: name, type, default, unit, meaning."""
    build_app()  # the parts register their settings
    sections: dict[str, type[Any]] = {}
    users: dict[str, list[str]] = {}
    for path in SETTINGS_CLASSES:
        kind: type[ProcessSettings] = resolve_name(path)
        for section, field in kind.model_fields.items():
            sections[section] = field.annotation  # type: ignore[assignment]
            users.setdefault(section, []).append(kind.__name__)
    lines = _head(
        "Settings",
        "A command's option comes first. Then `AIF_<SECTION>__<NAME>` in the environment counts, then the TOML file that `AIF_CONFIG` names",
        "(`[section]`, `name = value`), then the default. `aif config show` prints each value and its origin.",
    )
    for section in sorted(sections):
        about = inspect.getdoc(sections[section]) or ""
        lines += ["", f"## {section}", "", about.partition("\n\n")[0].replace("\n", " "), ""]
        rows = [
            (f"`AIF_{section.upper()}__{name.upper()}`", _type(field), _default(field), unit_of(name), field.description or "")
            for name, field in sections[section].model_fields.items()
        ]
        lines += _table(("name", "type", "default", "unit", "meaning"), rows)
    return "\n".join(lines) + "\n"


def _type(field: FieldInfo) -> str:
    """The type in words, with its bounds."""
    text = str(field.annotation)
    if "Literal" in text:
        kind = " or ".join(f"`{choice}`" for choice in get_args(field.annotation))
    elif "tuple" in text:
        kind = "list of paths"
    else:
        kind = next((word for part, word in _TYPE_WORDS.items() if part in text), text)
    bounds = {name: getattr(one, name) for one in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(one, name)}
    low = f"{_number(bounds['ge'])}" if "ge" in bounds else f"above {_number(bounds['gt'])}" if "gt" in bounds else ""
    high = f"{_number(bounds['le'])}" if "le" in bounds else f"below {_number(bounds['lt'])}" if "lt" in bounds else ""
    if low and high:
        return f"{kind}, {low} to {high}"
    return f"{kind}, {low} or more" if "ge" in bounds else f"{kind}, {low or high}" if low or high else kind


_TYPE_WORDS = {"Secret": "secret", "Path": "path", "bool": "true or false", "int": "integer", "float": "number", "str": "text"}


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"`{_without_home(text)}`" if text else "empty"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


def _without_home(text: str) -> str:
    return text.replace(str(user_data_dir()), "~/.local/share/aif").replace(str(Path.home()), "~")


# --- errors ------------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """A table per class of errors: code, cause, remedy."""
    lines = _head(
        "Error codes",
        "An error has a class, which says who must act, a stable `code`, and a message with the values and the next step. Commands print `error CODE: MESSAGE`",
        'and exit with 1; the HTTP routes answer `{"code": ..., "message": ...}`; a dead letter names the code in its headers.',
    )
    for kind, texts in tomllib.loads(ERROR_TEXTS.read_text()).items():
        lines += ["", f"## {kind}: {_ACTORS[kind]}", ""]
        lines += _table(("code", "cause", "remedy"), [(f"`{code}`", text["cause"], text["remedy"]) for code, text in texts.items()])
    return "\n".join(lines) + "\n"


# --- metrics -----------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """One table: name, kind, labels, meaning."""
    lines = _head(
        "Metrics",
        "A server shows its metrics at `/metrics`; a worker and a follower at `AIF_WORKER__METRICS_PORT` and `AIF_TRAIN__METRICS_PORT`. Units are base units:",
        "seconds and bytes. Next to them stand the client's `process_...` (memory, processor time, open files).",
        "",
    )
    rows = [
        (
            f"`aif_{one.name}{'_total' if one.kind == 'counter' else ''}`",
            one.kind,
            ", ".join(f"`{label}`" for label in one.labels),
            one.help,
        )
        for one in METRICS
    ]
    return "\n".join([*lines, *_table(("name", "kind", "labels", "meaning"), rows)]) + "\n"


# --- command line ------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its help, arguments and options."""
    lines = _head(
        "Command line",
        "Every command has `--help`. Exit codes: 0 done, 1 an error or something found wrong, 2 wrong usage, 130 Ctrl-C.",
    )
    for names, command in _commands(["aif"], get_command(build_app())):
        lines += _describe(names, command)
    return "\n".join(lines) + "\n"


def _commands(names: list[str], command: Any) -> Iterable[tuple[list[str], Any]]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield names, command
    for name in sorted(children):
        yield from _commands([*names, name], children[name])


def _describe(names: list[str], command: Any) -> list[str]:
    lines = ["", f"## {' '.join(names)}", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if "\b" in paragraph:  # an example, printed as it is
            lines += [*(f"    {line}".rstrip() for line in paragraph.replace("\b", "").strip("\n").split("\n")), ""]
        else:
            lines += [_escaped(" ".join(paragraph.split())), ""]
    context = command.context_class(command)
    rows = []
    for one in command.params:
        if one.name != "help" and (record := one.get_help_record(context)) is not None:
            hidden = one.default is None or one.default is ... or callable(one.default) or getattr(one, "is_flag", False)
            default = "" if hidden else f"`{_without_home(str(one.default))}`"
            rows.append((f"`{record[0]}`", default, _without_home(one.help or "")))
    return lines + (_table(("argument or option", "default", "meaning"), rows) if rows else [])


# --- Markdown ----------------------------------------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(_escaped(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]


def _escaped(text: str) -> str:
    """Text with < and [ as they are, which Markdown would take for its own; text between backticks stays."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*").replace("\n", " ") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in stale_pages().items():
        (FOLDER / name).write_text(text)
        say(f"written: {FOLDER / name}")
