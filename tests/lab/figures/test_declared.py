"""Every figure is declared once, in lab/benches.toml, and every declared figure can be measured."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.figures import Measured
from lab.figures.declared import Bench, Figure, Goal, read_benches
from serving.audit.parity import VERIFY_ANSWERS
from streams.replay.replay import REPLAY
from streams.training.training_program import TRAIN

ROOT = Path(__file__).parents[3]
ADD = {"add", "add_interval", "add_ratio"}
BENCHES = read_benches()


def test_holes_stand_for_what_has_no_dot_but_that_of_a_number() -> None:
    bench = Bench("shop", "", tuple(Figure(name, "", "") for name in ("{model}.gauc", "bits_for_{points}_by_law", "bits_for_{points}")))
    found = {
        name: bench.figure_of(name)
        for name in ("base.gauc", "ab.base.gauc", "bits_for_0.1", "bits_for_1_by_law", "bits_for_0.1_by_law", "x")
    }
    assert [figure and figure.name for figure in found.values()] == [
        "{model}.gauc",
        None,
        "bits_for_{points}",
        "bits_for_{points}_by_law",
        "bits_for_{points}_by_law",
        None,
    ]
    assert bench.declares("base.gauc_low") and not bench.declares("base.gauc_mid")


@pytest.mark.parametrize(
    ("text", "values", "met"),
    [
        ("a <= 1.1", {"a": 1.1}, True),
        ("a < 1.1", {"a": 1.1}, False),
        ("a >= 2 x b", {"a": 4.0, "b": 2.0}, True),
        ("a == 0", {"a": 1}, False),
        ("a == 0", {"a": None}, None),
        ("a <= 2 x b", {"a": 1.0}, None),
    ],
)
def test_a_goal_is_met_or_missed_or_cannot_be_judged(text: str, values: dict[str, float | None], met: bool | None) -> None:
    assert Goal.parse(text).is_met(values) is met


@pytest.mark.parametrize("text", ["a", "a ~ 1", "a <= 1 of b", "a <= b", "a <= 1 x"])
def test_a_goal_that_is_not_of_the_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"goal|float"):
        Goal.parse(text)


@pytest.mark.parametrize("bench", BENCHES.values(), ids=lambda bench: bench.name)
def test_a_goal_is_of_a_figure_that_the_bench_declares(bench: Bench) -> None:
    bench.parsed_goals()
    names = [figure.name for figure in bench.figures]
    assert len(names) == len(set(names)) and all(figure.meaning for figure in bench.figures)


@pytest.mark.parametrize("bench", BENCHES.values(), ids=lambda bench: bench.name)
def test_no_figure_stands_behind_one_that_takes_its_names(bench: Bench) -> None:
    assert [figure.name for figure in bench.figures if bench.figure_of(re.sub(r"\{\w+\}", "x", figure.name)) is not figure] == []


def test_a_bench_adds_what_it_declares_and_declares_what_it_can_add() -> None:
    added = {path: list(_added(path)) for part in ("infra", "streams", "serving", "lab") for path in (ROOT / part).rglob("*.py")}
    measuring = {path: patterns for path, patterns in added.items() if patterns}
    texts = {path: path.read_text() for path in added}
    owners = {command: _owners(command, texts) for command in BENCHES}
    unclaimed = dict(measuring)
    for command in BENCHES:
        own = owners[command]
        helpers = {
            path for path in measuring if not any(path in one for one in owners.values()) and any(_dotted(path) in texts[o] for o in own)
        }
        patterns = [pattern for path in (own | helpers) & set(measuring) for pattern in measuring[path]]
        names = [figure.name for figure in BENCHES[command].figures]
        assert [name for name in names if not any(re.fullmatch(p, name) for p in patterns)] == [], (
            f"{command} declares a figure that it never adds"
        )
        for path in (own | helpers) & set(unclaimed):
            unclaimed[path] = [p for p in unclaimed[path] if not any(re.fullmatch(p, name) for name in names)]
    unclaimed = {path: left for path, left in unclaimed.items() if left}
    assert not unclaimed, "these are added and not declared"


@pytest.mark.parametrize("measured", [TRAIN, REPLAY, VERIFY_ANSWERS], ids=lambda measured: measured.command)
def test_a_command_outside_lab_has_the_declared_figures_with_their_units(measured: Measured) -> None:
    assert measured.units == {figure.name: figure.unit for figure in BENCHES[measured.command].figures}


def _owners(command: str, texts: dict[Path, str]) -> set[Path]:
    """The module that holds the command's bench in a constant, and those that import the constant."""
    held = rf'^(\w+) = (?:read_bench|Measured)\(\s*"{command}"'
    path, name = next((path, found[1]) for path, text in texts.items() if (found := re.search(held, text, re.MULTILINE)))
    imports = rf"from {re.escape(_dotted(path))} import [^\n]*\b{name}\b"
    return {path} | {other for other, text in texts.items() if re.search(imports, text)}


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _added(path: Path) -> Iterator[str]:
    """A pattern for the name of every `figures.add...(name, ...)`. A name is written there, at least in part, so that a reader finds who adds it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADD):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "figures"):
            continue
        name = node.args[0]
        parts = name.values if isinstance(name, ast.JoinedStr) else [name]
        literals = [str(part.value) if isinstance(part, ast.Constant) else None for part in parts]
        assert any(literals), f"{path}:{node.lineno}: write the figure's name there, not a variable"
        yield "".join(".+" if literal is None else re.escape(literal) for literal in literals)
