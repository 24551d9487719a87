"""Declarations of everything that measures, read from lab/benches.toml: figures (name, unit, meaning) and the goals they are held to.

A name may have holes: `engine_p50_ms_{candidates}` is one figure for each number of candidates. The text of a hole has no dot, except in a number.
"""

import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
_FILE = Path(__file__).parents[1] / "benches.toml"
_HOLE = re.compile(r"\{\w+\}")
_BOUNDS = ("_low", "_high")


@dataclass(frozen=True)
class Figure:
    """One figure, or one for everything that its holes may stand for. An interval's bounds, NAME_low and NAME_high, are not declared themselves."""

    name: str
    unit: str
    meaning: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The form of its names; a group for each hole."""
        literals = (re.escape(literal) for literal in _HOLE.split(self.name))
        return re.compile(r"([^.]+?(?:\.\d+)?)".join(literals))


@dataclass(frozen=True)
class Goal:
    """`figure` <= `factor`, or <= `factor` times the figure `base` of the same run; `sign` may be another comparison."""

    figure: str
    sign: str
    factor: float
    base: str | None

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """From `name <= 1.1` or `name <= 2 x name`. ValueError for anything else."""
        words = text.split()
        if len(words) not in (3, 5) or words[1] not in _SIGNS or words[3:4] not in ([], ["x"]):
            raise ValueError(f"goal {text!r}: expected `figure <= 1.1` or `figure <= 2 x figure`, with one of {' '.join(_SIGNS)}")
        return cls(words[0], words[1], float(words[2]), words[4] if len(words) == 5 else None)

    def __str__(self) -> str:
        bound = f"{self.sign} {self.factor:,.10g}"
        return bound if self.base is None else f"{bound} x `{self.base}`"

    def is_met(self, values: Mapping[str, float | None]) -> bool | None:
        """Whether a run with these values reaches it; None where one of the figures is not there."""
        value, base = values.get(self.figure), 1.0 if self.base is None else values.get(self.base)
        return None if value is None or base is None else _SIGNS[self.sign](value, self.factor * base)


@dataclass(frozen=True)
class Bench:
    """A command that measures: its words after `aif`, the usual `options`, and `about`, a short paragraph.

    `asked`: the parts of its config that are questions, () = all; the others are answers. Of two figures whose holes both fit a
    name, the first is meant.
    """

    command: str
    about: str
    figures: tuple[Figure, ...]
    goals: tuple[str, ...] = ()
    options: str = ""
    asked: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`rank` of `bench rank`, `eval-online-live` of `eval online --live`: of its file."""
        return "-".join(re.findall(r"\w+", self.command.removeprefix("bench ")))

    def figure_of(self, name: str) -> Figure | None:
        """The declared figure whose name, or one of whose names, this is."""
        return next((figure for figure in self.figures if figure.pattern.fullmatch(name)), None)

    def unit_of(self, name: str) -> str | None:
        """The unit of a declared figure, else None."""
        figure = self.figure_of(name)
        return None if figure is None else figure.unit

    def declares(self, name: str) -> bool:
        """Whether it is a figure's name, or that of a bound of one."""
        ends = [name.removesuffix(end) for end in ("", *_BOUNDS) if name.endswith(end)]
        return any(self.figure_of(one) for one in ends)

    def parsed_goals(self) -> list[Goal]:
        """The goals. ValueError where one is not of the form, or of a figure that is not declared."""
        goals = [Goal.parse(text) for text in self.goals]
        for goal in goals:
            if unknown := [name for name in (goal.figure, goal.base) if name is not None and not self.declares(name)]:
                raise ValueError(f"{self.command}: a goal names {unknown[0]}, which is not declared")
        return goals


@dataclass(frozen=True)
class SummaryLine:
    """A line of the summary: a figure of a command in the runs that were `asked` so, and figures to compare, by title."""

    question: str
    measure: str
    command: str
    asked: str
    figure: str
    beside: Mapping[str, str]


@cache
def _read_file() -> Mapping[str, Any]:
    return tomllib.loads(_FILE.read_text())


def read_summary() -> list[SummaryLine]:
    """The lines of the summary, in order."""
    return [SummaryLine(*line) for line in _read_file()["summary"]]


@cache
def read_benches() -> Mapping[str, Bench]:
    """Every declared bench by its command, in the order of docs/BENCHMARKS.md."""
    return {
        command: Bench(
            command,
            table["about"],
            tuple(Figure(name, unit, meaning) for name, (unit, meaning) in table["figures"].items()),
            tuple(table.get("goals", ())),
            table.get("options", ""),
            tuple(table.get("asked", ())),
        )
        for command, table in _read_file().items()
        if command != "summary"
    }


def read_bench(command: str) -> Bench:
    """The declared bench of a command ("bench rank"). Raises KeyError for an undeclared command."""
    return read_benches()[command]
