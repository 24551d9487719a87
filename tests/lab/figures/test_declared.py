"""Every figure is declared once, beside the code that measures it, and what is declared can be measured."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli import build_app
from infra.command import BENCHES as REGISTERED
from infra.declared import Bench, Figure, Goal
from lab.cli import declared_benches

ROOT = Path(__file__).parents[3]
ADD = {"add", "add_interval", "add_ratio"}
build_app()  # the parts register what they declare
BENCHES = dict(zip(REGISTERED, declared_benches(), strict=True))


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
    unclaimed = set(measuring)
    for where, bench in BENCHES.items():
        mine = {path for path in measuring if _adds_for(path, where)}
        unclaimed -= mine
        patterns = [pattern for path in mine for pattern in measuring[path]]
        names = [figure.name for figure in bench.figures]
        assert [name for name in names if not any(re.fullmatch(p, name) for p in patterns)] == [], f"{where} declares what it never adds"
        assert [p for p in patterns if not any(re.fullmatch(p, name) for name in names)] == [], f"{where} adds what it does not declare"
    assert not unclaimed, "these add figures and neither declare a bench nor are named by one"


def _adds_for(path: Path, where: str) -> bool:
    """Whether a module adds to a bench: it declares it, or imports it, or the module that declares it names this one."""
    module, _, variable = where.partition(":")
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    text = path.read_text()
    if dotted == module or re.search(rf"from {re.escape(module)} import [^\n]*\b{variable}\b", text):
        return True
    declares_its_own = any(
        other.startswith(f"{dotted}:") or f"from {other.partition(':')[0]} import {other.partition(':')[2]}" in text for other in BENCHES
    )
    return not declares_its_own and dotted in Path(str(importlib.import_module(module).__file__)).read_text()


def _added(path: Path) -> Iterator[str]:
    """A pattern for the name of every `figures.add...(name, ...)`. A name is written there, at least in part: else nobody finds who adds it."""
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
