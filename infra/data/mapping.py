"""A mapping file: which columns of which CSV, JSON-lines or Parquet files are which parts of a catalogue. docs/IMPORT.md is its manual.

Here: reading one TOML file into a `DataMapping`, with every key checked. Not here: single columns (mapping_column.py), tables (mapping_section.py) and
sections with a file (mapping_source.py), the data files (tables.py), what cells mean (columns.py), the schema that follows (inferred_schema.py).
Invariant: whatever is wrong is a Misconfigured (`bad_mapping`) that names the file, the key and the expectation, with a suggestion for a misspelt name. A key
that nothing reads is wrong.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.data.file_format import FORMAT_KEYS
from infra.data.mapping_column import Column, read_column
from infra.data.mapping_section import Section, reject
from infra.data.mapping_source import OUTCOME, FeatureSource, Source, read_optional_source, read_source
from schemas.errors import Misconfigured
from schemas.limits import NAME_CHARS_MAX, TASKS_MAX
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices

_OUTCOME_NAME = rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARS_MAX - 1}}}"
MARK_NAME = "item_mark"  # of the embedding where there is no [embeddings]
TEXT_WIDTH = 96  # of embeddings made from text, where the mapping does not say
_SCHEMA_KEYS = ("id_kind", "sim_category", "bid", "multimodal", "multimodal_is_input", "behaviour_kinds")


POPULARITY = FeatureSource("taken_28", count_days=28.0, details={"realtime": True})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How impressions are made where a source has positives only (sampled_impressions.py).

    At every cut t (every `every_days`, the last one `window_days` before the evaluation) each user with a history gets one request. It shows up to
    `positives_max` items that the user takes in the next `window_days`, and for each of them `negatives` items, drawn uniformly from those taken in the last
    `pool_days` before t.

    window_days      None: as long as the evaluation, four weeks at most
    every_days       None: window_days
    positive_kinds   kinds of behaviour that count as positives; none: every kind
    """

    negatives: int = 20
    positives_max: int = 4
    pool_days: float = 28.0
    window_days: float | None = None
    every_days: float | None = None
    positive_kinds: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Holdout:
    """What is held out for measuring: everything from `start` on, and nothing if `hold_out` is false.

    start        None: the time of the last 15% of the positives
    end          items that are taken before it are right answers; what follows is neither told nor measured. None: the end of the data
    candidates   "all": the items of the catalogue; "recent": those with a positive in the last `pool_days` before the evaluation
    candidates_max, users_max   of more, a sample
    k            how many items of an answer count
    """

    start: str | int | float | None = None
    end: str | int | float | None = None
    hold_out: bool = True
    candidates: str = "all"
    candidates_max: int = 10_000
    pool_days: float = 28.0
    users_max: int = 500
    k: int = 100


@dataclass(frozen=True, slots=True)
class Embedding:
    """The multimodal embedding of items. Without a `source` items have their marks alone (item_embeddings.py).

    width        None: found in the data
    text_width   numbers of embeddings that are made from text columns (text.py); None: they are read
    apart        each embedding has a small part of its item's own
    """

    source: Source | None = None
    name: str = MARK_NAME
    width: int | None = None
    text_width: int | None = None
    apart: bool = True


@dataclass(frozen=True)
class DataMapping:
    """One mapping file as values. A source that the file does not name is None.

    schema, model, train   fields that the file fixes of a FeatureSchema, a ModelSpec, and TrainChoices
    every_days             from one time at which features of items are told to the next; None: found in the data
    known_after_days       a row of `item_history` is known so many days after its time
    """

    path: Path
    name: str
    schema: Mapping[str, Any]
    items: Source
    every_days: float | None
    item_history: Source | None
    known_after_days: float
    embedding: Embedding
    users: Source | None
    behaviours: Source | None
    impressions: Source | None
    sampling: Sampling
    holdout: Holdout
    model: Mapping[str, Any]
    train: Mapping[str, Any]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sections that read files."""
        found = (self.items, self.item_history, self.embedding.source, self.users, self.behaviours, self.impressions)
        return tuple(source for source in found if source is not None)


def read_mapping(path: Path) -> DataMapping:
    """The mapping file at `path`. Raises Misconfigured (`bad_mapping`)."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise reject(path, "", f"cannot be read as TOML: {error}") from error
    top = Section(path, "", raw)
    name = top.text("name", path.stem)
    parts = {part: top.section(part) for part in ("schema", "items", "item_history", "embeddings", "users", "behaviours", "impressions")}
    holdout, model, train = _read_holdout(top.section("evaluation")), _read_model(top.section("model")), _read_train(top.section("train"))
    top.end()
    if not parts["items"].given:
        raise reject(path, "[items]", "is missing: every mapping says where the items are, with at least `file` and `id`")
    every_days, popularity = parts["items"].optional_number("every_days"), parts["items"].flag("popularity", True)
    known_after_days = parts["item_history"].number("known_after_days", 0.0, least=0.0)
    items = read_source(parts["items"], ("id",), ("time", "created"))
    impressions, sampling = _read_impressions(parts["impressions"])
    behaviours = read_optional_source(parts["behaviours"], ("user", "item"), ("time", "kind"))
    if popularity and (behaviours or impressions) is not None:
        items = _with_popularity(items)
    return DataMapping(
        path=path,
        name=name,
        schema=_read_schema(parts["schema"]),
        items=items,
        every_days=every_days,
        item_history=read_optional_source(parts["item_history"], ("id", "time")),
        known_after_days=known_after_days,
        embedding=_read_embedding(parts["embeddings"], items),
        users=read_optional_source(parts["users"], ("id",)),
        behaviours=behaviours,
        impressions=impressions,
        sampling=sampling,
        holdout=holdout,
        model=model,
        train=train,
    )


def _with_popularity(items: Source) -> Source:
    """Items with `POPULARITY`, where none of their features is derived from behaviours: no column says how often an item is taken.
    Not where a file has versions of an item, which are told when they say so and not as of a grid of times."""
    known = any(feature.from_behaviours or feature.name == POPULARITY.name for feature in items.features)
    return items if known or "time" in items.roles else dataclasses.replace(items, features=(*items.features, POPULARITY))


def _read_schema(section: Section) -> dict[str, Any]:
    values = {key: section.any(key) for key in _SCHEMA_KEYS if key in section.raw}
    section.end(_SCHEMA_KEYS)
    if "id_kind" in values and values["id_kind"] not in ("int64", "text"):
        raise section.reject("id_kind", f"is {values['id_kind']!r}, expected int64 or text (left out: found out from the ids)")
    return values


def _read_model(section: Section) -> dict[str, Any]:
    fields = [f.name for f in dataclasses.fields(ModelSpec) if f.name != "schema"]
    values = {key: tuple(v) if isinstance(v := section.any(key), list) else v for key in fields if key in section.raw}
    section.end(fields)
    return values


def _read_train(section: Section) -> dict[str, Any]:
    values = {f.name: section.any(f.name) for f in dataclasses.fields(TrainChoices) if f.name in section.raw}
    section.end(f.name for f in dataclasses.fields(TrainChoices))
    try:
        TrainChoices().replaced(values)
    except Misconfigured as error:
        raise reject(section.path, "[train]", error.message) from error
    return values


def _read_holdout(section: Section) -> Holdout:
    default = Holdout()
    holdout = Holdout(
        start=_read_date(section, "from"),
        end=_read_date(section, "until"),
        hold_out=section.flag("hold_out", default.hold_out),
        candidates=section.choice("candidates", ("all", "recent"), default.candidates),
        candidates_max=section.count("candidates_max", default.candidates_max),
        pool_days=section.number("pool_days", default.pool_days),
        users_max=section.count("users_max", default.users_max),
        k=section.count("k", default.k),
    )
    section.end()
    return holdout


def _read_date(section: Section, key: str) -> Any:
    value = section.any(key)
    return value.isoformat() if hasattr(value, "isoformat") else value  # a TOML date


def _read_impressions(section: Section) -> tuple[Source | None, Sampling]:
    """A file with what was shown, or how to sample from positives."""
    if "file" in section.raw:
        outcomes = _read_outcomes(section.section("outcomes"))
        optional = ("request", "time", "position", "bid", "teacher_ecpm")
        source = read_source(section, ("user", "item", "clicked"), optional, features_key="context")
        return dataclasses.replace(source, roles={**source.roles, **outcomes}), Sampling()
    default = Sampling()
    sampling = Sampling(
        negatives=section.count("negatives", default.negatives),
        positives_max=section.count("positives_max", default.positives_max),
        pool_days=section.number("pool_days", default.pool_days),
        window_days=section.optional_number("window_days"),
        every_days=section.optional_number("every_days"),
        positive_kinds=tuple(section.texts("positive_kinds", ())),
        seed=section.count("seed", default.seed, least=0),
    )
    section.end(hint="; with a `file` it describes what was shown, without one how to sample it from [behaviours]")
    if (sampling.negatives + 1) * sampling.positives_max > 1_000:
        raise section.reject(
            "positives_max", f"gives {(sampling.negatives + 1) * sampling.positives_max} items a request, expected at most 1000"
        )
    return None, sampling


def _read_outcomes(section: Section) -> dict[str, Column]:
    """What else may come of a shown item, by role: each a flag, and a task that a model may have beside the click."""
    for name in section.raw:
        if not re.fullmatch(_OUTCOME_NAME, name) or name == "click":
            raise section.reject(name, "is no name of an outcome: expected letters, digits and _, like buy, and not click")
    if len(section.raw) >= TASKS_MAX:
        raise section.reject("", f"has {len(section.raw)} outcomes, expected at most {TASKS_MAX - 1}")
    return {OUTCOME + name: read_column(section, name, section.any(name)) for name in section.raw}


def _read_embedding(section: Section, items: Source) -> Embedding:
    """The section [embeddings]: its file and id default to those of [items]."""
    if not section.given:
        return Embedding()
    name, width, text = section.text("name", "embedding"), section.optional_count("width"), section.texts("text", ())
    apart = section.flag("apart", bool(text))
    separator = section.any("separator")
    forms = {key: section.any(key) for key in ("column", "columns", "prefix") if key in section.raw}
    if len(forms) + bool(text) != 1:
        raise section.reject("column", "exactly one of column, columns, prefix and text says what the embedding is made of")
    vector = Column(columns=tuple(text)) if text else read_column(section, "column", {**forms, "separator": separator})
    same_file = section.raw.get("file", items.file) == items.file
    defaults = {"file": items.file} | ({"id": items.roles["id"]} if same_file else {})
    source = read_source(section, ("id",), (), defaults=defaults)
    where = source.where or (items.where if same_file else ())
    form = items.form if same_file and not set(FORMAT_KEYS) & set(section.raw) else source.form
    source = dataclasses.replace(source, roles={**source.roles, "vector": vector}, where=where, form=form)
    return Embedding(source, name, width, (width or TEXT_WIDTH) if text else None, apart)
