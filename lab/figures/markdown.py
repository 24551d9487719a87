"""Markdown of the documents that lab writes, docs/BENCHMARKS.md and docs/RESULTS.md: figures as text, and functions that give one block each."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LINE = 140
Span = tuple[float, float, float]  # value, low, high


class Lookup:
    """The figures of a run by name, as text; a figure that the run does not have is a dash. `raw`: the output of a command with --json."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.values: Mapping[str, float | None] = {name: entry["value"] for name, entry in raw["figures"].items()}

    def number(self, name: str) -> float | None:
        """A figure as a number; None if the run does not have it."""
        return self.values.get(name)

    def text(self, name: str, digits: int, scale: float = 1.0, sign: str = "") -> str:
        """A figure times `scale`, with so many digits after the point."""
        value = self.number(name)
        return "-" if value is None else f"{scale * value:{sign}.{digits}f}"

    def interval(self, name: str, digits: int = 4, scale: float = 1.0, sign: str = "") -> str:
        """A figure with its interval, if it has one."""
        value, low, high = (self.text(f"{name}{end}", digits, scale, sign) for end in ("", "_low", "_high"))
        return value if "-" in (value, low, high) else f"{value} [{low}, {high}]"

    def span(self, name: str) -> Span | None:
        """(value, low, high) of a figure; None if the run does not have all three."""
        value, low, high = (self.number(f"{name}{end}") for end in ("", "_low", "_high"))
        return None if value is None or low is None or high is None else (value, low, high)


def heading(text: str, level: int = 2) -> str:
    """A title; level 1 is the document's."""
    return "#" * level + " " + text


def paragraph(text: str) -> str:
    """Sentences, wrapped. Line breaks in `text` have no meaning."""
    return textwrap.fill(" ".join(text.split()), LINE, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as text; every row has as many cells as the header."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [header, ["---"] * len(header), *rows])


def picture(title: str, file: str) -> str:
    """A link to a PNG file in the folder of the document."""
    return f"![{title}]({file})"


def join_blocks(blocks: Iterable[str]) -> str:
    """The document."""
    return "\n\n".join(blocks) + "\n"
