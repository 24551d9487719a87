"""A mapping file: which columns of which CSV, JSON-lines or Parquet files are which parts of a catalogue. docs/IMPORT.md is its manual.

Here: reading one TOML file into a `DataMapping`, with every key checked. Not here: single columns (mapping_column.py) and tables (mapping_section.py) of the
file, the data files (tables.py), what cells mean (columns.py), the schema that follows from them (inferred_schema.py).
Invariant: whatever is wrong is a Misconfigured (`bad_mapping`) that names the file, the key and the expectation, with a suggestion for a misspelt name. A key
that nothing reads is wrong.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.data.file_format import AS_FOUND, FORMAT_KEYS, FileFormat, read_format
from infra.data.mapping_column import COLUMN_KEYS, NO_COLUMN, Column, read_column
from infra.data.mapping_section import Section, reject
from infra.data.where import Condition, read_conditions
from schemas.errors import Misconfigured, suggest
from schemas.features import Feature, Kind
from schemas.limits import NAME_CHARS_MAX, TASKS_MAX
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices

FEATURE_DETAILS = tuple(f.name for f in dataclasses.fields(Feature) if f.name not in ("name", "scope"))
OUTCOME = "outcomes."  # what roles of [impressions.outcomes] begin with
_OUTCOME_NAME = rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARS_MAX - 1}}}"
_SOURCE_KEYS = ("file", "where", *FORMAT_KEYS)
MARK_NAME = "item_mark"  # of the embedding where there is no [embeddings]
TEXT_WIDTH = 96  # of embeddings made from text, where the mapping does not say
_SCHEMA_KEYS = ("id_kind", "sim_category", "bid", "multimodal", "multimodal_is_input", "behaviour_kinds")


@dataclass(frozen=True, slots=True)
class FeatureSource:
    """One feature: it is read from `column`, or derived in one of these ways.

    clusters         the group of the item's embedding, of that many groups
    count_days       the number of the item's behaviours in that many days, or with `of = "users"` of the users who had any
    days_since       days since the item's "first" or "last" behaviour
    expected_days    how often the item will be taken in that many days, in percent of the average item (expected_takers.py)
    taken_together   a vector of that many numbers; items that the same users took have vectors that are near (taken_together.py)

    `details`: fields of schemas.features.Feature that the mapping fixes. What it leaves open is inferred from the data.
    """

    name: str
    column: Column = NO_COLUMN
    count_days: float | None = None
    of: str = "behaviours"
    days_since: str | None = None
    expected_days: float | None = None
    taken_together: int | None = None
    clusters: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def from_behaviours(self) -> bool:
        """Whether it is derived from behaviours before a time, so that it changes with time."""
        return any(way is not None for way in (self.count_days, self.days_since, self.expected_days, self.taken_together))

    @property
    def is_derived(self) -> bool:
        """Whether no column holds it."""
        return self.from_behaviours or self.clusters is not None


@dataclass(frozen=True)
class Source:
    """One section that reads files: its columns by role, its features, and which rows count.

    section    its name in the mapping, such as "items"
    file       the name of a file in the data folder, or a pattern of names
    where      conditions that a row must fulfil; `form`: how a CSV file is read
    distinct   of behaviours: a row that repeats user, item, time and kind of another does not count
    """

    section: str
    file: str
    roles: Mapping[str, Column]
    features: tuple[FeatureSource, ...] = ()
    where: tuple[Condition, ...] = ()
    form: FileFormat = AS_FOUND
    distinct: bool = False

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes of a shown item beside the click, which [impressions] alone has."""
        return tuple(role.removeprefix(OUTCOME) for role in self.roles if role.startswith(OUTCOME))

    def feature_columns(self) -> Mapping[str, Column]:
        """The columns of the features that are read from this file, by feature name."""
        return {f.name: f.column for f in self.features if not f.is_derived}


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
    items = _read_source(parts["items"], ("id",), ("time", "created"))
    impressions, sampling = _read_impressions(parts["impressions"])
    behaviours = _optional_source(parts["behaviours"], ("user", "item"), ("time", "kind"))
    if popularity and (behaviours or impressions) is not None:
        items = _with_popularity(items)
    return DataMapping(
        path=path,
        name=name,
        schema=_read_schema(parts["schema"]),
        items=items,
        every_days=every_days,
        item_history=_optional_source(parts["item_history"], ("id", "time")),
        known_after_days=known_after_days,
        embedding=_read_embedding(parts["embeddings"], items),
        users=_optional_source(parts["users"], ("id",)),
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
        source = _read_source(section, ("user", "item", "clicked"), optional, features_key="context")
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
    source = _read_source(section, ("id",), (), defaults=defaults)
    where = source.where or (items.where if same_file else ())
    form = items.form if same_file and not set(FORMAT_KEYS) & set(section.raw) else source.form
    source = dataclasses.replace(source, roles={**source.roles, "vector": vector}, where=where, form=form)
    return Embedding(source, name, width, (width or TEXT_WIDTH) if text else None, apart)


def _optional_source(section: Section, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Source | None:
    return _read_source(section, required, optional) if section.given else None


def _read_source(
    section: Section,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    *,
    features_key: str = "features",
    defaults: Mapping[str, Any] | None = None,
) -> Source:
    defaults = defaults or {}
    file = section.text("file", defaults.get("file"))
    roles: dict[str, Column] = {}
    for role in (*required, *optional):
        value = section.any(role)
        if value is not None:
            roles[role] = read_column(section, role, value)
        elif role in defaults:
            roles[role] = defaults[role]
        elif role in required:
            section.end((*required, *optional, *_SOURCE_KEYS, features_key), only_near=True)  # a misspelt key says more than a missing one
            raise section.reject(role, f"is missing: name the column that holds the {role}; a constant is written {{ value = ... }}")
    features = section.section(features_key)
    source = Source(
        section=section.name,
        file=file,
        roles=roles,
        features=tuple(_read_feature(section, name, features.any(name)) for name in features.raw),
        where=read_conditions(section, section.any("where")),
        form=read_format(section),
        distinct=section.name == "behaviours" and section.flag("distinct", False),
    )
    section.end()
    return source


def _read_feature(section: Section, name: str, value: Any) -> FeatureSource:
    """A feature as written: a column name, or a table with where it comes from and any detail of the feature."""
    key = f"features.{name}"
    if not isinstance(value, Mapping):
        return FeatureSource(name, read_column(section, key, value))
    details = {k: v for k, v in value.items() if k in FEATURE_DETAILS}
    rest = {k: v for k, v in value.items() if k not in FEATURE_DETAILS}
    if "kind" in details and details["kind"] not in tuple(Kind):
        raise section.reject(key, f"kind = {details['kind']!r}, expected one of {', '.join(Kind)}")
    ways = ("count_days", "days_since", "expected_days", "taken_together", "clusters")
    known = (*FEATURE_DETAILS, *COLUMN_KEYS, *ways, "of")
    if unknown := [k for k in value if k not in known]:
        part = Section(section.path, f"{section.name}.{key}", value)
        raise part.reject(unknown[0], f"is not known here; {suggest(unknown[0], known)}")
    if not set(ways) & set(rest):
        return FeatureSource(name, read_column(section, key, rest), details=details)
    part = Section(section.path, f"{section.name}.{key}", rest)
    source = FeatureSource(
        name,
        count_days=part.optional_number("count_days"),
        of=part.choice("of", ("behaviours", "users"), "behaviours"),
        days_since=part.choice("days_since", ("first", "last"), None),
        expected_days=part.optional_number("expected_days"),
        taken_together=part.optional_count("taken_together", least=2),
        clusters=part.optional_count("clusters", least=2),
        details=details,
    )
    part.end()
    if section.name != "items" or len(set(ways) & set(rest)) != 1:
        raise section.reject(key, f"{', '.join(ways)} derive features of [items], one of them a feature")
    if "of" in rest and source.count_days is None:
        raise section.reject(key, "of says what count_days counts; nothing else has it")
    return source
