"""The file that says what to train: `[schema]` (a FeatureSchema) and, if anything differs from the defaults, `[model]` (fields of a ModelSpec) and
`[train]` (schemas/train_choices.py).

TOML, or the same as JSON. `aif import --model-out FILE` writes one for a mapped catalogue (a mapping's own [schema] holds only roles).
"""

import contextlib
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas.errors import Misconfigured
from schemas.features import decode_feature_schema
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices
from streams.training.trainer import default_spec

_SECTIONS = ("schema", "model", "train")


def read_model_file(path: Path) -> ModelSpec:
    """The spec that a file describes. Raises Misconfigured (`bad_model_file`) naming the file, the section and what does not fit."""
    sections = _read_sections(path)
    schema = _section(path, sections, "schema")
    if schema is None:
        raise Misconfigured("bad_model_file", f"{path} has no [schema]; sections found: {sorted(sections)}; docs/IMPORT.md shows one")
    choices = _section(path, sections, "model") or {}
    with _named(f"{path} [schema]"):
        spec = default_spec(decode_feature_schema(schema))
    with _named(f"{path} [model]"):
        return apply_choices(spec, choices)


def read_train_choices(path: Path) -> TrainChoices:
    """How the file says to train, defaults for the rest. Raises Misconfigured (`bad_model_file`)."""
    given = _section(path, _read_sections(path), "train") or {}
    with _named(f"{path} [train]"):
        return TrainChoices().replaced(given)


def _read_sections(path: Path) -> Any:
    try:
        raw = path.read_text()
        sections = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise Misconfigured("bad_model_file", f"{path} does not read: {error}") from error
    unknown = [name for name in sections if name not in _SECTIONS] if isinstance(sections, dict) else []
    if unknown and "schema" in sections:
        raise Misconfigured("bad_model_file", f"{path} has [{unknown[0]}], which is no section of it; {_nearest(unknown[0], _SECTIONS)}")
    return sections


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected some of {sorted(known)}"


def apply_choices(spec: ModelSpec, choices: Mapping[str, Any]) -> ModelSpec:
    """`spec` with the named fields replaced. Raises Misconfigured naming the field."""
    default = {f.name: getattr(spec, f.name) for f in dataclasses.fields(ModelSpec) if f.name != "schema"}
    unknown = sorted(set(choices) - set(default))
    if unknown:
        raise Misconfigured("bad_model_file", f"unknown {unknown}; {_nearest(unknown[0], default)}")
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    for name, value in plain.items():
        if type(value) is not type(default[name]):
            raise Misconfigured("bad_model_file", f"{name} = {value!r}, expected a value like {default[name]!r}")
    return dataclasses.replace(spec, **plain)


def _section(path: Path, sections: Any, name: str) -> Mapping[str, Any] | None:
    found = sections.get(name) if isinstance(sections, dict) else sections
    if found is not None and not isinstance(found, dict):
        raise Misconfigured("bad_model_file", f"{path}: {name} is {type(found).__name__}, expected a table with names")
    return found


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Says where in which file what was refused stands."""
    try:
        yield
    except Misconfigured as error:
        raise Misconfigured("bad_model_file", f"{where}: {error.message}") from error
