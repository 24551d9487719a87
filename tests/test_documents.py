"""What the documents name is there: files, links, commands and their options."""

import ast
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer

from infra.cli import build_app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "schemas/index/FORMAT.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
PARTS = ("aif", "infra", "lab", "streams", "serving", "schemas", "tests")
FILES = [path.relative_to(ROOT).as_posix() for part in (*PARTS, "docs") for path in (ROOT / part).rglob("*")]
GROUPS = {"aif broker", "aif bench", "aif demo", "aif index", "aif eval", "aif publish"}  # named as a whole


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    path, text = ROOT / document, (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (path.parent / link).exists()]
    files = [name for name in re.findall(r"`([\w./]+\.py)`", text) if not any(f"/{file}".endswith(f"/{name}") for file in FILES)]
    whole = re.findall(rf"(?<![\w/.-])((?:{'|'.join(PARTS)})/[\w./]*\w)", text)
    assert links + files + [name for name in whole if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_that_a_document_names_is_there_with_its_options(document: str) -> None:
    text = (ROOT / document).read_text()
    stated = re.findall(r"`(?:uv run )?(aif [^`\n]+)`|^ {4,}(?:uv run )?(aif [^\n#]+)", text, re.MULTILINE)
    assert find_unknown_commands(" ".join(found) for found in stated) == []


@pytest.mark.parametrize("room", PARTS[:-1])
def test_every_command_that_a_message_names_is_there_with_its_options(room: str) -> None:
    """What an error, a log line or an option's help advises can be typed in."""
    calls = [node for path in (ROOT / room).rglob("*.py") for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    texts = {_text_of(part) for call in calls for part in ast.walk(call) if isinstance(part, ast.Constant | ast.JoinedStr)}
    texts |= {path.read_text() for path in (ROOT / room).rglob("errors.toml")}
    assert find_unknown_commands(line for text in texts for line in re.findall(r"`(aif [a-z][^`\n]*)`", text)) == []


def _text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """The text, with VALUE for each value that is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)


def find_unknown_commands(lines: Iterable[str]) -> list[tuple[str, str]]:
    """(line, the command or option in it that is not there) of lines that begin with `aif`."""
    wrong: list[tuple[str, str]] = []
    for line in {line.strip() for line in lines}:
        words = re.sub(r"[\[\]\\]", " ", line.replace("\\|", "|")).split()[1:]
        names = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z][\w|-]*", word), words))
        for alternative in itertools.product(*(name.split("|") for name in names)):
            command, taken = typer.main.get_command(build_app()), "aif"
            for name in alternative:
                if not hasattr(command, "commands"):
                    break  # what follows are its arguments
                command, taken = command.commands.get(name), f"{taken} {name}"
                if command is None:
                    break
            is_group = hasattr(command, "commands") and not command.invoke_without_command
            if command is None or (is_group and taken not in GROUPS):
                wrong.append((line, taken))
                continue
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            wrong += [(line, word) for word in words if word.startswith("--") and word not in options]
    return wrong
