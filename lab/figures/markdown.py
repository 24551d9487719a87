"""A report as a list of blocks, and its two output forms: Markdown, and one self-contained HTML file.

Here: the blocks and their encoding. Not here: the content of a report (report.py), drawing (pictures.py).
The only mark-up in texts is `code` between backquotes. The HTML file contains its pictures as data URLs and loads nothing, so it can be sent by
mail and opened without a network.
"""

import base64
import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LINE = 140
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}td,th{border:1px solid #ccc;padding:.25rem .6rem;text-align:right}
td:first-child,th:first-child{text-align:left}th{background:#f3f3f3}tr:hover td{background:#fafafa}img{max-width:100%}code{background:#f3f3f3}"""


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the report's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Sentences. Line breaks in `text` have no meaning."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as text; every row has as many cells as the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG file in the folder of the report."""

    title: str
    file: str


Block = Heading | Paragraph | Table | Picture


def encode_markdown(blocks: Sequence[Block]) -> str:
    """The report as Markdown, which links to its pictures."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return "#" * level + " " + text
        case Paragraph(text):
            return textwrap.fill(" ".join(text.split()), LINE, break_long_words=False, break_on_hyphens=False)
        case Picture(title, file):
            return f"![{title}]({file})"
        case Table(header, rows):
            lines = [header, ["---"] * len(header), *rows]
            return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def encode_html(blocks: Sequence[Block], folder: Path) -> str:
    """The report as one HTML file, with the pictures of `folder` inside."""
    title = next((b.text for b in blocks if isinstance(b, Heading)), "Report")
    body = "\n".join(_html(block, folder) for block in blocks)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _html(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Picture(title, file):
            data = base64.b64encode((folder / file).read_bytes()).decode()
            return f'<p><img alt="{html.escape(title, quote=True)}" src="data:image/png;base64,{data}"></p>'
        case Table(header, rows):
            top = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
            lines = "\n".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            return f"<table><thead><tr>{top}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(" ".join(text.split())))
