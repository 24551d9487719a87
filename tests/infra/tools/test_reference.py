"""The reference pages are those of the code, and no setting, error or metric is without its explanation."""

import ast
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from infra.cli import build_app
from infra.command import SETTINGS_CLASSES
from infra.tools.error_catalogue import CLASSES, TEXTS, error_trees, read_catalogue
from infra.tools.reference import source_files, stale_pages

CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+|overloaded|pinned|diverged|abandoned|unauthorized|unreachable|stopping")


def _named_in_docstrings(files: Iterable[Path]) -> set[str]:
    """Codes that docstrings promise: "Raises Unavailable (`not_delivered`)"."""
    found: set[str] = set()
    for tree in error_trees(files):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                for group in re.findall(rf"(?:{'|'.join(CLASSES)}) \(((?:`\w+`(?:, | or | and )?)+)", text):
                    found |= {code for code in re.findall(r"`(\w+)`", group) if CODE.fullmatch(code)}
    return found


def test_the_reference_pages_are_current() -> None:
    assert not list(stale_pages()), "run python -m infra.tools.reference"


def test_every_error_code_has_a_cause_and_a_remedy_also_those_that_docstrings_name() -> None:
    entries = read_catalogue(source_files())
    assert len(entries) > 250
    assert [one.code for one in entries if not one.cause or not one.remedy] == [], "add them to infra/tools/errors.toml"
    assert set(tomllib.loads(TEXTS.read_text())) <= {one.code for one in entries}, "remove texts of codes that are gone"
    assert _named_in_docstrings(source_files()) - {one.code for one in entries} == set()


def test_every_setting_has_a_description() -> None:
    build_app()
    sections: dict[str, Any] = {
        name: field.annotation for path in SETTINGS_CLASSES for name, field in resolve_name(path).model_fields.items()
    }
    assert [(s, n) for s, kind in sections.items() for n, field in kind.model_fields.items() if not field.description] == []
