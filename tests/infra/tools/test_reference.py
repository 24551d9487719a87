"""The reference pages are those of the code, and no setting, error or metric is without its explanation."""

import ast
import re
import tomllib
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Any

from infra.cli import build_app
from infra.command import SETTINGS_CLASSES
from infra.tools.reference import ERROR_TEXTS, ROOT, stale_pages

CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+|overloaded|pinned|diverged|abandoned|unauthorized|unreachable|stopping")
ROOMS = ("aif", "schemas", "infra", "streams", "serving", "lab")
CLASSES = ("RejectedInput", "Unavailable", "Incompatible", "Corrupted", "Misconfigured")
RAISED_BY = {"corrupted_as": "Corrupted", **dict(zip(CLASSES, CLASSES, strict=True))}
# Codes that schemas/index puts together from the kind of a file, a block or a record.
COMPOSED = {f"{kind}_format" for kind in ("block", "delta", "manifest", "replay", "sample", "seal", "snapshot")} | {
    "bad_block_checksum",
    "bad_delta",
    "bad_delta_checksum",
}


def _error_trees() -> list[ast.Module]:
    """The syntax trees of the files that name an error class."""
    texts = [path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [ast.parse(text) for text in texts if any(name in text for name in RAISED_BY)]


def _raised(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """The classes that each code is raised as, where the code is a literal."""
    found: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and node.args and (name := getattr(node.func, "id", getattr(node.func, "attr", ""))) in RAISED_BY:
            choices = [node.args[0].body, node.args[0].orelse] if isinstance(node.args[0], ast.IfExp) else [node.args[0]]
            for code in choices:
                if isinstance(code, ast.Constant):
                    found.setdefault(code.value, set()).add(RAISED_BY[name])
    return found


def _named_in_docstrings(trees: Iterable[ast.Module]) -> set[str]:
    """Codes that docstrings promise: "Raises Unavailable (`not_delivered`)"."""
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            for group in re.findall(rf"(?:{'|'.join(CLASSES)}) \(((?:`\w+`(?:, | or | and )?)+)", text):
                found |= {code for code in re.findall(r"`(\w+)`", group) if CODE.fullmatch(code)}
    return found


def test_the_reference_pages_are_current() -> None:
    assert not list(stale_pages()), "run python -m infra.tools.reference"


def test_the_catalogue_has_every_error_code_below_its_class_and_no_other() -> None:
    catalogue = tomllib.loads(ERROR_TEXTS.read_text())
    kinds = {code: kind for kind, texts in catalogue.items() for code in texts}
    trees = _error_trees()
    raised = _raised(trees)
    literals = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert (raised.keys() | COMPOSED | _named_in_docstrings(trees)) - kinds.keys() == set(), "add them to infra/tools/errors.toml"
    assert kinds.keys() - COMPOSED - literals == set(), "remove texts of codes that are gone"
    assert [code for code, kind in kinds.items() if kind not in raised.get(code, {kind})] == []
    assert len(kinds) == sum(map(len, catalogue.values())) > 250


def test_every_error_code_has_a_cause_and_a_remedy() -> None:
    texts = {code: text for kind in tomllib.loads(ERROR_TEXTS.read_text()).values() for code, text in kind.items()}
    assert [
        code for code, text in texts.items() if text.keys() != {"cause", "remedy"} or not all(t.endswith(".") for t in text.values())
    ] == []


def test_every_setting_has_a_description() -> None:
    build_app()
    sections: dict[str, Any] = {
        name: field.annotation for path in SETTINGS_CLASSES for name, field in resolve_name(path).model_fields.items()
    }
    assert [(s, n) for s, kind in sections.items() for n, field in kind.model_fields.items() if not field.description] == []
