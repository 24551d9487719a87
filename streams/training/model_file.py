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
from schemas.limits import BEHAVIOURS_PER_USER_MAX, HASH_BUCKETS_MAX, HIDDEN_LAYERS_MAX, HIDDEN_MAX, WIDTH_MAX
from schemas.model.spec import ModelSpec
from streams.training.model_sections import named, read_sections, section_of
from streams.training.trainer import default_spec

_HIDDEN = (1, HIDDEN_MAX)
_SEEN = (1, BEHAVIOURS_PER_USER_MAX)
# Least and most of each number that a ModelSpec itself takes as it is: sizes that make no network, or one that no machine holds.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "embedding_width": (1, WIDTH_MAX),
    "item_id_buckets": (0, HASH_BUCKETS_MAX),
    **dict.fromkeys(("item_hidden", "user_hidden", "bridge_hidden", "head_hidden"), _HIDDEN),
    **dict.fromkeys(("attended_behaviours", "simtier_behaviours", "sim_behaviours"), _SEEN),
    "tier_edges": (0, 1),
    "recency": _SEEN,
}


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
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    for name, value in plain.items():
        if type(value) is not type(default[name]):
            raise Misconfigured("bad_model_file", f"{name} = {value!r}, expected a value like {default[name]!r}")
        if name in _BOUNDS:
            _check_bounds(name, value if isinstance(value, tuple) else (value,))
    return dataclasses.replace(spec, **plain)


def _check_bounds(name: str, numbers: tuple[Any, ...]) -> None:
    least, most = _BOUNDS[name]
    if not all(isinstance(n, int | float) and least <= n <= most and (name == "tier_edges" or isinstance(n, int)) for n in numbers):
        each = "each " if len(numbers) != 1 else ""
        raise Misconfigured("bad_model_file", f"{name} = {', '.join(map(str, numbers))}, expected {each}{least} to {most:,}")
    if name.endswith("_hidden") and len(numbers) > HIDDEN_LAYERS_MAX:
        raise Misconfigured("bad_model_file", f"{name} has {len(numbers)} layers, expected at most {HIDDEN_LAYERS_MAX}")
