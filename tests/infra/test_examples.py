"""Each command's help ends with an example, and the example names the command and options that it has."""

import typer.main
from typer.testing import CliRunner

from infra.cli import build_app
from infra.examples import EXAMPLES, commands_of


def _paths() -> list[str]:
    """Every command, and the groups that are commands themselves."""
    app = build_app()
    return [path for path, info in commands_of(app) if not isinstance(info, typer.models.TyperInfo) or path == "demo"]


def test_there_is_an_example_for_each_command_and_for_nothing_else() -> None:
    assert sorted(_paths()) == sorted(EXAMPLES)


def test_an_example_names_its_command_and_options_that_the_command_has() -> None:
    root = typer.main.get_command(build_app())
    for path, lines in EXAMPLES.items():
        command = root
        for word in path.split():
            command = command.commands[word]  # type: ignore[attr-defined] # a group
        options = {name for parameter in command.params for name in parameter.opts}
        for line in lines:
            assert line == f"aif {path}" or line.startswith(f"aif {path} "), line
            assert {word for word in line.split() if word.startswith("--")} <= options, line


def test_help_ends_with_the_example() -> None:
    app = build_app()
    for path in ("shards", "index diff", "demo", "demo stop"):
        shown = CliRunner().invoke(app, [*path.split(), "--help"]).output
        assert [line.strip() for line in shown.splitlines() if line.strip()][-len(EXAMPLES[path]) :] == list(EXAMPLES[path])
