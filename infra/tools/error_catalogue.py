"""Every error code of the code, with its cause and its remedy: read from the source, so that no code is forgotten.

Codes and message templates are found in the syntax trees of all rooms. The hand-written texts of errors.toml win.
A message has the form "what failed; what to do next" (schemas/errors.py): its first part is the cause, its second the remedy. Values that a message fills
in are shown as NAMES.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).with_name("errors.toml")
# Who must act, and the remedy where neither the message nor errors.toml has one.
CLASSES = {
    "RejectedInput": ("the sender", "Correct the record or the request, and send it again."),
    "Unavailable": ("retry later", "Try again after `retry_after_s` seconds; if it stays, read the log of the process."),
    "Incompatible": ("the operator", ""),
    "Corrupted": ("the owner of the data", "Drop the damaged file or directory, and rebuild it from its source."),
    "Misconfigured": ("whoever started the process", ""),
}
_VALUE = "…"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One code: the class that raises it, what happened, and what to do next ("" where it is not known)."""

    code: str
    kind: str
    cause: str
    remedy: str


def read_catalogue(files: Iterable[Path]) -> list[ErrorEntry]:
    """The errors that these files raise, by code."""
    raised: dict[str, list[tuple[str, str]]] = {}
    for tree in error_trees(files):
        for code, kind, message in _raised(tree):
            raised.setdefault(code, []).append((kind, message))
    texts = tomllib.loads(TEXTS.read_text())
    for code, text in texts.items():
        if code not in raised and "kind" in text:  # a code that is put together when it is raised
            raised[code] = [(text["kind"], "")]
    return [_entry(code, raised[code], texts.get(code, {})) for code in sorted(raised)]


def error_trees(files: Iterable[Path]) -> Iterator[ast.Module]:
    """The syntax trees of the files that name an error at all."""
    for path in files:
        text = path.read_text()
        if any(name in text for name in CLASSES):
            yield ast.parse(text)


def _entry(code: str, raised: list[tuple[str, str]], text: dict[str, str]) -> ErrorEntry:
    kind, message = max(raised, key=lambda one: (bool(_parts(one[1])[1]), len(one[1])))
    cause, remedy = _parts(message)
    return ErrorEntry(code, kind, text.get("cause") or cause, text.get("remedy") or remedy or CLASSES[kind][1])


def _parts(message: str) -> tuple[str, str]:
    """Cause and remedy of a message; "" for a part that is only a value."""
    cause, *rest = message.split("; ")
    while rest and rest[0].startswith("expected"):
        cause += "; " + rest.pop(0)
    return _sentence(cause), _sentence("; ".join(rest))


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(" :;")
    if len(re.findall(r"\b[a-z]{2,}\b", text)) < 2:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def _raised(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in CLASSES:
                message = _template(node.args[1]) if len(node.args) > 1 else ""
                for code in _codes(node.args[0]):
                    yield code, name, message


def _codes(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*_codes(node.body), *_codes(node.orelse))


def _template(node: ast.expr) -> str:
    """The text of a message, with the name of each value in capitals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _name(part.value) if isinstance(part, ast.FormattedValue) else _VALUE
            for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return _VALUE


def _name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id.strip("_").upper()
    return node.attr.strip("_").upper() if isinstance(node, ast.Attribute) else _VALUE
