"""The file that says what to train: `[schema]` (a FeatureSchema) and, if anything differs from the defaults, `[model]` (fields of a ModelSpec) and
`[train]` (schemas/train_choices.py).

TOML, or the same as JSON. `aif import --model-out FILE` writes one for a mapped catalogue (a mapping's own [schema] holds only roles).
Here: reading and checking it, and the origin of each choice of [train]. Not here: what a choice does (trainer.py, following/learner.py). It needs no
torch, so that `aif config show` loads none.
"""

import contextlib
import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemas.errors import Incompatible, Misconfigured, suggest
from schemas.features import FeatureSchema, decode_feature_schema
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec
from schemas.train_choices import WHAT_IS_LEARNT, TrainChoices

_SECTIONS = ("schema", "model", "train")
_NO_CARD: Mapping[str, Any] = MappingProxyType({})


def read_model_file(path: Path) -> ModelSpec:
    """The spec that a file describes. Raises Misconfigured (`bad_model_file`) naming the file, the section and what does not fit."""
    sections = _read_sections(path)
    schema = _section_of(path, sections, "schema")
    if schema is None:
        raise Misconfigured("bad_model_file", f"{path} has no [schema]; sections found: {sorted(sections)}; docs/IMPORT.md shows one")
    choices = _section_of(path, sections, "model") or {}
    with _named(f"{path} [schema]"):
        spec = default_spec(decode_feature_schema(schema))
    with _named(f"{path} [model]"):
        return apply_choices(spec, choices)


def default_spec(schema: FeatureSchema) -> ModelSpec:
    """The default sizes, which learn in seconds on a catalogue of 10^4 items and still mean something at 10^6."""
    return ModelSpec(schema, rank_by="ecpm" if schema.bid else "click")


def apply_choices(spec: ModelSpec, choices: Mapping[str, Any]) -> ModelSpec:
    """`spec` with the named fields replaced. Raises Misconfigured naming the field."""
    default = {f.name: getattr(spec, f.name) for f in dataclasses.fields(ModelSpec) if f.name != "schema"}
    unknown = sorted(set(choices) - set(default))
    if unknown:
        raise Misconfigured("bad_model_file", f"unknown {unknown}; {suggest(unknown[0], default)}")
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    if isinstance(plain.get("ranker"), dict):
        plain["ranker"] = _ranker_of(plain["ranker"])
    for name, value in plain.items():
        if type(value) is not type(default[name]) and not isinstance(value, RankerSpec):
            raise Misconfigured("bad_model_file", f"{name} = {value!r}, expected a value like {default[name]!r}")
    return dataclasses.replace(spec, **plain)


def _ranker_of(sizes: Mapping[str, Any]) -> RankerSpec:
    known = [f.name for f in dataclasses.fields(RankerSpec)]
    unknown = sorted(set(sizes) - set(known))
    if unknown:
        raise Misconfigured("bad_model_file", f"unknown ranker.{unknown[0]}; {suggest(unknown[0], known)}")
    return RankerSpec(**sizes)


def require_model(spec: ModelSpec, model_id: str, path: Path) -> None:
    """Raises Incompatible (`other_model`), naming what differs, unless a checkpoint is of the model that the file describes: who continues from it changes
    weights, never sizes or features."""
    wanted = read_model_file(path)
    if spec.fingerprint == wanted.fingerprint:
        return
    theirs, ours = spec.to_dict(), wanted.to_dict()
    different = ", ".join(
        f"{name} ({theirs.get(name, 'off')} there)" if name != "schema" else "[schema]"
        for name in ours | theirs
        if theirs.get(name) != ours.get(name)
    )
    raise Incompatible(
        "other_model",
        f"{path} describes another model than the start, {model_id}: {different} differ; start from one that is trained from that file, "
        f"or leave --model out",
    )


def read_train_choices(path: Path | None, card: Mapping[str, Any] = _NO_CARD) -> TrainChoices:
    """How the file says to train; without one, `WHAT_IS_LEARNT` of the card of the checkpoint to continue from. Defaults for the rest. Raises Misconfigured
    (`bad_model_file`)."""
    if path is None:
        return TrainChoices().replaced(_of_card(card))
    section = _train_section(path)
    with _named(f"{path} [train]"):
        return TrainChoices().replaced(section)


def explain_choices(
    path: Path | None, given: Mapping[str, Any] = MappingProxyType({}), card: Mapping[str, Any] = _NO_CARD
) -> list[dict[str, Any]]:
    """Every choice of [train] with its value and where it is from: the command line (`given`), the file, the card, the defaults. Raises Misconfigured."""
    chosen, told = read_train_choices(path, card).replaced(given), _of_card(card) if path is None else _train_section(path)

    def origin(name: str) -> str:
        if name in given:
            return "command line"
        if name not in told:
            return "default"
        return "card of the checkpoint" if path is None else f"file {path} [train]"

    return [{"name": name, "value": value, "origin": origin(name)} for name, value in chosen.to_dict().items()]


def _of_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """`WHAT_IS_LEARNT`, as far as the card has them."""
    told = card.get("train")
    return {name: told[name] for name in WHAT_IS_LEARNT if name in told} if isinstance(told, Mapping) else {}


def _train_section(path: Path) -> Mapping[str, Any]:
    return _section_of(path, _read_sections(path), "train") or {}


def _read_sections(path: Path) -> Any:
    """All sections; TOML, or JSON by the file's name. Raises Misconfigured (`bad_model_file`)."""
    try:
        raw = path.read_text("utf-8-sig")
        sections = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise Misconfigured(
            "bad_model_file",
            f"{path} does not read: {error}; expected TOML, or JSON in a file of that name, with [schema], [model] and [train]",
        ) from error
    unknown = [name for name in sections if name not in _SECTIONS] if isinstance(sections, dict) else []
    if unknown and "schema" in sections:
        raise Misconfigured("bad_model_file", f"{path} has [{unknown[0]}], which is no section of it; {suggest(unknown[0], _SECTIONS)}")
    return sections


def _section_of(path: Path, sections: Any, name: str) -> Mapping[str, Any] | None:
    """One of them, None if the file has none of that name. Raises Misconfigured (`bad_model_file`)."""
    found = sections.get(name) if isinstance(sections, dict) else sections
    if found is not None and not isinstance(found, dict):
        raise Misconfigured("bad_model_file", f"{path}: {name} is {type(found).__name__}, expected a table with names")
    return found


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Names the file and the section of a refused value."""
    try:
        yield
    except Misconfigured as error:
        raise Misconfigured("bad_model_file", f"{where}: {error.message}") from error
