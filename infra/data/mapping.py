"""A mapping file: which columns of which CSV, JSON-lines or Parquet files are which parts of a catalogue. docs/IMPORT.md is its manual.

Here: the sections of the TOML file, and the messages of its errors. Not here: keys that all sections with a file share (mapping_source.py), the data
files (files.py), the meaning of cells (columns.py), the schema that results (inferred_schema.py).
Invariant: every error is a Misconfigured (`bad_mapping`) that names the file, the key and the expectation, with a suggestion for a misspelt name. A key
without a reader is an error.
"""

import dataclasses
import datetime as dt
import re
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from infra.data.mapping_source import (
    COLUMNS,
    FORMAT_KEYS,
    SAMPLED,
    Column,
    Count,
    FeatureSource,
    Number,
    Part,
    Source,
    Texts,
    require_known,
)
from schemas.errors import Misconfigured
from schemas.limits import NAME_CHARS_MAX, TASKS_MAX
from schemas.model.score import SHOWN
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices

OUTCOME = "outcomes."  # what roles of [impressions.outcomes] begin with
_OUTCOME_NAME = rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARS_MAX - 1}}}"
_MARK_NAME = "item_mark"  # of the embedding where there is no [embeddings]
_TEXT_WIDTH = 96  # of embeddings made from text, where the mapping does not say
_ITEMS_OF_REQUEST_MAX = 1_000
_Time = Annotated[Any, BeforeValidator(lambda raw: raw.isoformat() if isinstance(raw, dt.date | dt.time) else raw)]  # a TOML date


def kind_name(text: str | None) -> str:
    """A kind of behaviour as events spell it: "add to cart" becomes add_to_cart."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", (text or "other").strip())[:NAME_CHARS_MAX]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:NAME_CHARS_MAX]


_Kinds = Annotated[Texts, AfterValidator(lambda names: tuple(map(kind_name, names)))]


class SchemaChoices(Part):
    """Fields of a FeatureSchema that the file fixes: see there."""

    id_kind: Literal["int64", "text"] | None = None
    sim_category: str | None = None
    bid: str | None = None
    multimodal_is_input: bool | None = None
    behaviour_kinds: _Kinds | None = None


class Items(Source):
    """`every_days`: the distance between times of item features; None: chosen from the data. `popularity`: whether items get statistics
    where none of their features is derived from behaviours."""

    section: ClassVar[str] = "items"
    id: Column
    time: Column | None = None
    created: Column | None = None
    every_days: Number | None = None
    popularity: bool = True


class ItemHistory(Source):
    """A row is known `known_after_days` after its time."""

    section: ClassVar[str] = "item_history"
    rows_are_events: ClassVar[bool] = True
    id: Column
    time: Column
    known_after_days: Annotated[float, Field(ge=0.0, lt=1e12)] = 0.0


class Embeddings(Source):
    """The multimodal embedding of items.

    width   numbers of it; None: inferred
    text    columns whose words make it (text.py); none: vectors are read
    apart   whether each embedding has a small part that is unique to its item
    """

    section: ClassVar[str] = "embeddings"
    id: Column
    name: str = "embedding"
    width: Count | None = None
    text: Texts = ()
    columns: Texts = COLUMNS
    prefix: str | None = None
    separator: str | None = None
    apart: bool = Field(default_factory=lambda data: bool(data["text"]))

    @model_validator(mode="after")
    def _require_fitting_columns(self) -> Self:
        if bool(self.text) + bool(self.columns) + (self.prefix is not None) != 1:
            raise ValueError("needs exactly one of column, columns, prefix and text: it says what the embedding is made of")
        return self

    @cached_property
    def roles(self) -> Mapping[str, Column]:
        """The id, and what the embedding is made of."""
        return {"id": self.id, "vector": Column(columns=self.text or self.columns, prefix=self.prefix, separator=self.separator)}

    @property
    def text_width(self) -> int | None:
        """Numbers of embeddings that are made from text; None: they are read."""
        return (self.width or _TEXT_WIDTH) if self.text else None


class Users(Source):
    """Who is in the log. `time`: since when a row holds."""

    section: ClassVar[str] = "users"
    id: Column
    time: Column | None = None

    @property
    def derived(self) -> list[FeatureSource]:
        """The features that are statistics of the log."""
        return [feature for feature in self.features.values() if feature.is_derived]


class Behaviours(Source):
    """What users did."""

    section: ClassVar[str] = "behaviours"
    rows_are_events: ClassVar[bool] = True
    user: Column
    item: Column
    time: Column | None = None
    kind: Column | None = None
    distinct: bool = False


class Impressions(Source):
    """Shown items, a row for each item of a request. `outcomes`: further flags, such as a purchase; a model may have a task for each."""

    section: ClassVar[str] = "impressions"
    user: Column
    item: Column
    clicked: Column
    request: Column | None = None
    time: Column | None = None
    position: Column | None = None
    bid: Column | None = None
    teacher_ecpm: Column | None = None
    features: dict[str, FeatureSource] = Field(default_factory=dict, alias="context")
    outcomes: dict[str, Column] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _require_requests(self) -> Self:
        if self.request is None and self.time is None:
            raise ValueError("needs request, or a time that rows of one request share: it says which rows were shown together")
        return self

    @model_validator(mode="after")
    def _require_features_known_before(self) -> Self:
        outcomes = {column.columns: name for name, column in (("clicked", self.clicked), *self.outcomes.items()) if column.columns}
        for feature in self.features.values():
            if feature.columns in outcomes:
                raise ValueError(
                    f"context.{feature.name} reads {feature.columns[0]!r}, the column of {outcomes[feature.columns]}: an outcome is not known when the "
                    "request is ranked; leave it out of [impressions.context]"
                )
        return self

    @field_validator("outcomes", mode="before")
    @classmethod
    def _require_names(cls, raw: Any) -> Any:
        for name in raw if isinstance(raw, Mapping) else ():
            if not re.fullmatch(_OUTCOME_NAME, name) or name in ("click", SHOWN):
                raise ValueError(
                    f"{name} is no name of an outcome: expected letters, digits and _, like buy, and neither click nor {SHOWN}"
                )
        if isinstance(raw, Mapping) and len(raw) >= TASKS_MAX:
            raise ValueError(f"has {len(raw)} outcomes, expected at most {TASKS_MAX - 1}")
        return raw

    @cached_property
    def roles(self) -> Mapping[str, Column]:
        """Its columns by role, outcomes among them."""
        return {**super().roles, **{OUTCOME + name: column for name, column in self.outcomes.items()}}


class Sampling(Part):
    """How impressions are made where a source has positives only (sampled_impressions.py).

    Cuts are `every_days` apart, the last one `window_days` before the evaluation. At each cut every user with a history gets one request. It shows up to
    `positives_max` items that the user takes in the next `window_days`. For each of them it shows `negatives` items, drawn uniformly from those taken in the
    last `pool_days` before the cut, or ever before.

        moments          requests besides those of the cuts, each when its user took something; None: as many as make enough of both
        window_days      None: as long as the evaluation, four weeks at most (periods.py)
        every_days       None: window_days
        positive_kinds   kinds of behaviour that count as positives; none: every kind
    """

    hint: ClassVar[str] = "; with a `file` it describes the shown items, without one how to sample them from [behaviours]"
    negatives: Count = 20
    positives_max: Count = 4
    pool_days: Number | None = None
    moments: Annotated[int, Field(ge=0)] | None = None
    window_days: Number | None = None
    every_days: Number | None = None
    positive_kinds: _Kinds = ()
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _require_bounded_requests(self) -> Self:
        if (shown := (self.negatives + 1) * self.positives_max) > _ITEMS_OF_REQUEST_MAX:
            raise ValueError(f"positives_max gives {shown} items a request, expected at most {_ITEMS_OF_REQUEST_MAX}")
        return self


class Holdout(Part):
    """The part held out for evaluation: everything from `start` on, and nothing if `hold_out` is false.

    start        None: the time of the last 15% of the positives
    end          items that are taken before it are right answers; later rows are neither published nor measured. None: the end of the data
    split        "time", or "user": the latest fifth of the positives of each user is held out, and all else is known
    candidates   "all": the items of the catalogue; "recent": those with a positive in the last `pool_days` before the evaluation
    candidates_max, users_max   of more, a sample
    k            how many items of an answer count
    """

    start: _Time = Field(None, alias="from")
    end: _Time = Field(None, alias="until")
    hold_out: bool = True
    split: Literal["time", "user"] = "time"
    candidates: Literal["all", "recent"] = "all"
    candidates_max: Count = 10_000
    pool_days: Number = 28.0
    users_max: Count = 500
    k: Count = 100

    @property
    def holds_out_the_end(self) -> bool:
        """Whether the end of the log is held out."""
        return self.hold_out and self.split == "time"


class DataMapping(Part):
    """One mapping file as values. A section that the file does not have is None.

    model, train   fields of a ModelSpec and of TrainChoices that the file fixes
    """

    path: Path = Field(Path(), exclude=True)
    name: str
    roles: SchemaChoices = Field(SchemaChoices(), alias="schema")
    items: Items
    item_history: ItemHistory | None = None
    embeddings: Embeddings | None = None
    users: Users | None = None
    behaviours: Behaviours | None = None
    impressions: Impressions | None = None
    sampling: Sampling = Field(Sampling(), alias=SAMPLED)
    holdout: Holdout = Field(Holdout(), alias="evaluation")
    model: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, raw: Any) -> Any:
        """[impressions] without a file is another section than with one. [embeddings] without a file has the file of [items] and its format."""
        sections = {**raw}
        items, own, impressions = (raw.get(name) for name in ("items", "embeddings", "impressions"))
        if isinstance(impressions, Mapping) and "file" not in impressions:
            sections[SAMPLED] = sections.pop("impressions")
        if isinstance(items, Mapping) and isinstance(own, Mapping):
            same_file = own.get("file", items.get("file")) == items.get("file")
            shared = ("id", "where", *(() if set(FORMAT_KEYS) & own.keys() else FORMAT_KEYS)) if same_file else ()
            sections["embeddings"] = {**{key: items[key] for key in ("file", *shared) if key in items}, **own}
        return sections

    @field_validator("model")
    @classmethod
    def _read_model(cls, raw: dict[str, Any]) -> dict[str, Any]:
        require_known(raw, [f.name for f in dataclasses.fields(ModelSpec) if f.name != "schema"])
        return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}

    @field_validator("train")
    @classmethod
    def _require_choices(cls, raw: dict[str, Any]) -> dict[str, Any]:
        try:
            TrainChoices().replaced(raw)
        except Misconfigured as error:
            raise ValueError(error.message) from error
        return raw

    @property
    def embedding_name(self) -> str:
        """The name of the items' embedding. Without [embeddings] it is their marks alone (item_embeddings.py)."""
        return self.embeddings.name if self.embeddings is not None else _MARK_NAME

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sections that read files."""
        found = (self.items, self.item_history, self.embeddings, self.users, self.behaviours, self.impressions)
        return tuple(source for source in found if source is not None)


def read_mapping(path: Path) -> DataMapping:
    """The mapping file at `path`. Raises Misconfigured (`bad_mapping`)."""
    try:
        raw = tomllib.loads(path.read_text("utf-8-sig"))
        mapping = DataMapping.model_validate({"name": path.stem, **raw}, context={"file": path.name})
    except ValidationError as error:
        raise rejected(path, error) from error
    except (OSError, ValueError) as error:
        raise reject(path, "", f"cannot be read as TOML: {error}") from error
    return mapping.model_copy(update={"path": path})


def reject(path: Path, key: str, expectation: str) -> Misconfigured:
    """The error of a mapping file (`bad_mapping`): the file, the key and the expectation."""
    return Misconfigured("bad_mapping", f"{path.name}: {f'{key} {expectation}'.strip()}; docs/IMPORT.md describes the file")


def rejected(path: Path, error: ValidationError) -> Misconfigured:
    """The first of pydantic's errors as one of the mapping file."""
    first = error.errors(include_url=False)[0]
    section, *keys = [str(part) for part in first["loc"]] or [""]
    section = section.removesuffix(" without a file")
    key = ".".join(keys)
    place = f"[{section}] {key}".strip() if (section and first["type"] != "string_type") or key else section
    return reject(path, place, _expectation(first, section, key))


def _expectation(error: Any, section: str, key: str) -> str:
    """The wrong value and the expectation."""
    context, value = error.get("ctx", {}), error["input"]
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] == "missing":
        if not key:
            return f"is missing: every mapping says where the {section} are, with at least `file` and `id`"
        return (
            "is missing, expected text"
            if key == "file"
            else f"is missing: name the column that holds the {key}; a constant is written {{ value = ... }}"
        )
    expected = {
        "string_type": "text",
        "string_too_short": "text",
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "tuple_type": "text or a list of texts",
        "dict_type": "a table",
        "model_type": "a table",
        "model_attributes_type": "a table",
        "greater_than": "a number above {gt:g}",
        "less_than": "a number below {lt:g}",
        "greater_than_equal": "a whole number from {ge}" if isinstance(context.get("ge"), int) else "a number from {ge:g}",
    }.get(error["type"])
    if error["type"] in ("literal_error", "enum"):
        expected = f"one of {context['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    return f"is {value!r}, expected {expected.format(**context)}" if expected else f"is {value!r}: {error['msg']}"
