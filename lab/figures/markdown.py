"""Markdown of the documents that lab writes, docs/BENCHMARKS.md and docs/RESULTS.md: each function gives one block."""

import textwrap
from collections.abc import Iterable, Sequence

LINE = 140


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
