"""The file that says what to train: `[schema]` (a FeatureSchema) and, if anything differs from the defaults, `[model]` (fields of a ModelSpec).

TOML, or the same as JSON. `aif import --model-out FILE` writes one for a mapped catalogue (a mapping's own [schema] holds only roles).
"""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import Misconfigured
from schemas.features import decode_feature_schema
from schemas.model.spec import ModelSpec
from streams.training.trainer import default_spec


def read_model_file(path: Path) -> ModelSpec:
    """The spec that a file describes. Raises Misconfigured naming the file and what does not fit."""
    try:
        raw = path.read_text()
        sections = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise Misconfigured("bad_model_file", f"{path} does not read: {error}") from error
    if "schema" not in sections:
        raise Misconfigured("bad_model_file", f"{path} has no [schema]; sections found: {sorted(sections)}; docs/IMPORT.md shows one")
    return apply_choices(default_spec(decode_feature_schema(sections["schema"])), sections.get("model", {}), str(path))


def apply_choices(spec: ModelSpec, choices: Mapping[str, Any], where: str) -> ModelSpec:
    """`spec` with the named fields replaced."""
    known = {f.name for f in dataclasses.fields(ModelSpec)} - {"schema"}
    unknown = sorted(set(choices) - known)
    if unknown:
        raise Misconfigured("bad_model_file", f"{where}: [model] has {unknown}, expected some of {sorted(known)}")
    return dataclasses.replace(spec, **{k: tuple(v) if isinstance(v, list) else v for k, v in choices.items()})
