"""The sections of a model's file as plain values, and how its [train] says to train, with the origin of each choice.

Here: reading and checking what needs no network, so that `aif config show` loads none. Not here: [schema] and [model] (model_file.py), what a choice
does (trainer.py, following/learner.py).
"""

import contextlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemas.errors import Misconfigured, suggest
from schemas.train_choices import TrainChoices

_SECTIONS = ("schema", "model", "train")


def read_train_choices(path: Path | None) -> TrainChoices:
    """How the file says to train, defaults for the rest (None: for all). Raises Misconfigured (`bad_model_file`)."""
    if path is None:
        return TrainChoices()
    with named(f"{path} [train]"):
        return TrainChoices().replaced(_train_section(path))


def explain_choices(path: Path | None, given: Mapping[str, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    """Every choice of [train] with its value and where it is from: the command line (`given`), the file, the defaults. Raises Misconfigured."""
    chosen, of_file = read_train_choices(path).replaced(given), {} if path is None else _train_section(path)

    def origin(name: str) -> str:
        if name in given:
            return "command line"
        return f"file {path} [train]" if name in of_file else "default"

    return [{"name": name, "value": value, "origin": origin(name)} for name, value in chosen.to_dict().items()]


def _train_section(path: Path) -> Mapping[str, Any]:
    return section_of(path, read_sections(path), "train") or {}


def read_sections(path: Path) -> Any:
    """All sections; TOML, or JSON by the file's name. Raises Misconfigured (`bad_model_file`)."""
    try:
        raw = path.read_text()
        sections = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise Misconfigured("bad_model_file", f"{path} does not read: {error}") from error
    unknown = [name for name in sections if name not in _SECTIONS] if isinstance(sections, dict) else []
    if unknown and "schema" in sections:
        raise Misconfigured("bad_model_file", f"{path} has [{unknown[0]}], which is no section of it; {suggest(unknown[0], _SECTIONS)}")
    return sections


def section_of(path: Path, sections: Any, name: str) -> Mapping[str, Any] | None:
    """One of them, None if the file has none of that name. Raises Misconfigured (`bad_model_file`)."""
    found = sections.get(name) if isinstance(sections, dict) else sections
    if found is not None and not isinstance(found, dict):
        raise Misconfigured("bad_model_file", f"{path}: {name} is {type(found).__name__}, expected a table with names")
    return found


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Says where in which file what was refused stands."""
    try:
        yield
    except Misconfigured as error:
        raise Misconfigured("bad_model_file", f"{where}: {error.message}") from error
