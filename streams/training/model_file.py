"""The file that says what to train: `[schema]` (a FeatureSchema) and, if anything differs from the defaults, `[model]` (fields of a ModelSpec) and
`[train]` (schemas/train_choices.py).

TOML, or the same as JSON. `aif import --model-out FILE` writes one for a mapped catalogue (a mapping's own [schema] holds only roles).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import Misconfigured, suggest
from schemas.features import decode_feature_schema
from schemas.model.spec import ModelSpec
from streams.training.model_sections import named, read_sections, section_of
from streams.training.trainer import default_spec


def read_model_file(path: Path) -> ModelSpec:
    """The spec that a file describes. Raises Misconfigured (`bad_model_file`) naming the file, the section and what does not fit."""
    sections = read_sections(path)
    schema = section_of(path, sections, "schema")
    if schema is None:
        raise Misconfigured("bad_model_file", f"{path} has no [schema]; sections found: {sorted(sections)}; docs/IMPORT.md shows one")
    choices = section_of(path, sections, "model") or {}
    with named(f"{path} [schema]"):
        spec = default_spec(decode_feature_schema(schema))
    with named(f"{path} [model]"):
        return apply_choices(spec, choices)


def apply_choices(spec: ModelSpec, choices: Mapping[str, Any]) -> ModelSpec:
    """`spec` with the named fields replaced. Raises Misconfigured naming the field."""
    default = {f.name: getattr(spec, f.name) for f in dataclasses.fields(ModelSpec) if f.name != "schema"}
    unknown = sorted(set(choices) - set(default))
    if unknown:
        raise Misconfigured("bad_model_file", f"unknown {unknown}; {suggest(unknown[0], default)}")
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    for name, value in plain.items():
        if type(value) is not type(default[name]):
            raise Misconfigured("bad_model_file", f"{name} = {value!r}, expected a value like {default[name]!r}")
    return dataclasses.replace(spec, **plain)
