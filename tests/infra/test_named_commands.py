"""Every `aif ...` that a message, a help text or a document names is a command that there is, with options that it has."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from infra.cli import build_app

ROOT = Path(__file__).parents[2]
ROOMS = ("aif", "schemas", "streams", "serving", "infra", "lab")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "docs/PROTOCOL.md", "schemas/index/FORMAT.md")
_NAMED = re.compile(r"`aif( [^`\n]*)?`")


@cache
def root_command() -> Any:
    return get_command(build_app())


def texts_of(path: Path) -> Iterator[str]:
    """The string constants of a module, with 0 for each value that a message fills in; or a whole document."""
    if path.suffix != ".py":
        yield path.read_text()
        return
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            inside |= set(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


def find_unknown(words: list[str]) -> str:
    """What of a command line there is not; empty if all of it is there. Arguments of a command are not looked at."""
    command = root_command()
    for word in words:
        if hasattr(command, "get_command") and not word.startswith("-"):
            if word.isupper() or word in ("...", "0"):  # a place for a name
                return ""
            found = [command.get_command(command.context_class(command), choice) for choice in word.split("|")]
            if None in found:
                return f"{command.name} has no command {word}"
            command = found[0]
        elif word.startswith("--"):
            options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            if word.partition("=")[0] not in {*options, "--help"}:
                return f"{command.name} has no option {word}"
    return ""


@pytest.mark.parametrize("room", [*ROOMS, "documents"])
def test_commands_that_are_named_exist(room: str) -> None:
    paths = [ROOT / name for name in DOCUMENTS] if room == "documents" else sorted((ROOT / room).rglob("*.py"))
    wrong = []
    for path in paths:
        for text in texts_of(path):
            for named in _NAMED.findall(text):
                try:
                    unknown = find_unknown(shlex.split(re.sub(r"[\[\]]", "", named)))
                except ValueError as error:
                    unknown = str(error)
                if unknown:
                    wrong.append(f"{path.relative_to(ROOT)}: `aif{named}`: {unknown}")
    assert not wrong, "\n".join(wrong)
