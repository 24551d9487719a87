"""One section of a mapping that reads files: its files, the rows that count, the columns and their roles, and features.

Here: `Part`, the base of every table of the file, and `Conditions`, `FileFormat`, `Column`, `FeatureSource`, `Source`, as pydantic reads them. An unknown key
is an error with a suggestion. Not here: the sections themselves (mapping.py), evaluating conditions (tables.py), decoding cells (columns.py).
"""

import codecs
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from schemas.errors import suggest
from schemas.kinds import Kind, Transform, find_kind
from schemas.model.spec import ModelSpec
from schemas.statistics import DAY_MS, HOUR_MS
from schemas.train_choices import TrainChoices

SAMPLED = "impressions without a file"  # distinguishes the section from the other one of its name
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(gt=0, lt=1e12)]
_listed = BeforeValidator(lambda raw: (raw,) if isinstance(raw, str) else raw)  # one text alone is a list of it
Texts = Annotated[tuple[str, ...], _listed, Field(strict=False)]
COLUMNS = Field((), validation_alias=AliasChoices("columns", "column"))
_ELSEWHERE = {of: {field.name for field in dataclasses.fields(made)} for of, made in (("train", TrainChoices), ("model", ModelSpec))}
_Window = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[hd]$")]
_AtLeastTwo = Annotated[int, Field(ge=2)]
_DELIMITER_CHARS_MAX = 8
_UNIT_SEPARATOR = "\x1f"  # replaces a longer delimiter; it occurs in no text
OPERATORS = ("==", "!=", "<=", ">=", "<", ">", "in", "not in")
_CONDITION = re.compile(
    r"\s*(?P<column>\"[^\"]+\"|'[^']+'|[^\s=!<>]+)\s*(?P<op>==|!=|<=|>=|=|<|>|not in\b|in\b)\s*(?P<value>.+?)\s*$", re.DOTALL
)
_AND = re.compile(r"""\s+and\s+(?=(?:[^"']|"[^"]*"|'[^']*')*$)""", re.IGNORECASE)  # not inside quotes


class Part(BaseModel):
    """A table of the file. An excluded field is no key of it; `hint` goes into the error about an unknown key."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)
    hint: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _require_known_keys(cls, raw: Any, info: ValidationInfo) -> Any:
        """Runs first, because a misspelt key explains more than a missing one. Values made in code use the names of fields and skip this check."""
        if info.context is not None and isinstance(raw, Mapping):
            require_known(
                raw, [key for name, field in cls.model_fields.items() if not field.exclude for key in _keys(name, field)], cls.hint
            )
        return raw


def require_known(raw: Mapping[str, Any], keys: Iterable[str], hint: str = "") -> None:
    """Raises ValueError for the first unknown key, with the nearest known one."""
    for key in raw:
        if key not in keys:
            section = next((section for section, names in _ELSEWHERE.items() if key in names), None)
            remedy = f"it belongs into [{section}]" if section is not None else suggest(key, {*keys} - {SAMPLED})
            raise ValueError(f"{key} is not known here{hint}; {remedy}")


def _keys(name: str, field: FieldInfo) -> list[str]:
    names = field.validation_alias
    return [str(choice) for choice in names.choices] if isinstance(names, AliasChoices) else [str(names or name)]


@dataclass(frozen=True, slots=True)
class Condition:
    """`column op value`; value is a bool, number, text, or a list of them."""

    column: str
    op: str
    value: Any


def read_conditions(raw: Any) -> tuple[Condition, ...]:
    """The conditions of a `where`. Raises ValueError."""
    if isinstance(raw, str):
        return tuple(_read_text(part) for part in _AND.split(raw))
    if isinstance(raw, list) and raw and not isinstance(raw[0], list):
        raw = [raw]
    if not isinstance(raw, list) or not all(
        isinstance(c, list) and len(c) == 3 and isinstance(c[0], str) and c[1] in OPERATORS for c in raw
    ):
        raise ValueError(f"is {raw!r}, expected text or a list of [column, op, value] with an op of {', '.join(OPERATORS)}")
    return tuple(_checked(Condition(*condition)) for condition in raw)


def _read_text(text: str) -> Condition:
    found = _CONDITION.match(text)
    if found is None:
        raise ValueError(f'does not read at {text!r}; write conditions like: quantity > 0 and status in ["paid", "sent"]')
    op = "==" if found["op"] == "=" else found["op"]
    return _checked(Condition(found["column"].strip("\"'"), op, _read_value(found["value"])))


def _read_value(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    lowered = text.lower()
    try:
        return json.loads(lowered if lowered in ("true", "false") else text.replace("'", '"') if text.startswith("[") else text)
    except ValueError as error:
        raise ValueError(f"has the value {text!r}; texts need quotes, and only `and` joins conditions") from error


def _checked(condition: Condition) -> Condition:
    listed = isinstance(condition.value, list)
    if listed != (condition.op in ("in", "not in")) or not all(isinstance(v, bool | int | float | str) for v in _values(condition)):
        raise ValueError(f"compares {condition.column} {condition.op} {condition.value!r}; in and not in need a list, others one value")
    return condition


def _values(condition: Condition) -> Sequence[Any]:
    return condition.value if isinstance(condition.value, list) else (condition.value,)


Conditions = Annotated[tuple[Condition, ...], BeforeValidator(read_conditions)]  # a field of a mapping


class FileFormat(Part):
    """`delimiter` None: detected. `header`: the column names of a file without a header line. `quoted`: whether "..." is one cell."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    header: Texts = ()
    quoted: bool = Field(default_factory=lambda data: len(data["delimiter"] or "") <= 1)

    @field_validator("delimiter", mode="before")
    @classmethod
    def _read_delimiter(cls, given: Any) -> str | None:
        if given is not None and not (isinstance(given, str) and 1 <= len(given) <= _DELIMITER_CHARS_MAX and given.isascii()):
            raise ValueError(f"is {given!r}, expected one character, several like '::', or tab")
        return "\t" if given == "tab" else given

    @field_validator("encoding")
    @classmethod
    def _require_encoding(cls, given: str) -> str:
        try:
            codecs.lookup(given)
        except LookupError as error:
            raise ValueError(f"is {given!r}, expected one like utf-8 or latin-1") from error
        return given

    @field_validator("header")
    @classmethod
    def _require_different_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError(f"is {list(names)!r}, expected different names, one for each column of the file")
        return names

    @property
    def cell_end(self) -> str | None:
        """The one character between cells in the parsed text; None: detected."""
        return _UNIT_SEPARATOR if self.is_long else self.delimiter

    @property
    def is_long(self) -> bool:
        """Whether the delimiter has several characters."""
        return self.delimiter is not None and len(self.delimiter) > 1


FORMAT_KEYS = tuple(FileFormat.model_fields)


class Column(Part):
    """The source of values: one or several `columns`, all columns that are `prefix` and a number, or the constant `value`.
    columns.py decodes their cells.

        separator     separates the values of a text cell of a bag or a vector; None: detected for each cell
        pattern       a regular expression: the matching part of each cell counts, or its first group if it has one
        decimal       the decimal mark of numbers in text, "," or "."; the other one, blanks and ' group the digits
        where         conditions on other columns; a cell is missing where they do not hold
        at_least      a flag is true from this number on
        one_of        values that make a flag true; every other value makes it false
        time_unit     the unit of a time that is a number, from "day" to "ns"; None: inferred from its size
        time_formats  strptime formats of times in text; the first that fits counts; none: ISO 8601
    """

    columns: Texts = COLUMNS
    prefix: str | None = None
    value: Any = None
    separator: str | None = None
    pattern: str | None = None
    decimal: Literal[",", "."] | None = None
    where: Conditions = ()
    at_least: Annotated[float, Field(gt=-1e12, lt=1e12)] | None = None
    one_of: tuple[str, ...] = Field((), alias="in")
    time_unit: Literal["day", "hour", "min", "s", "ms", "us", "ns"] | None = None
    time_formats: Texts = Field((), alias="time_format")

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, raw: Any) -> Any:
        """A name alone is the column."""
        if not isinstance(raw, str | Mapping):
            raise ValueError(f'is {raw!r}, expected a column name, or a table like {{ column = "name" }} or {{ value = 1 }}')
        return {"columns": [raw]} if isinstance(raw, str) else raw

    @field_validator("pattern")
    @classmethod
    def _require_expression(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"is {pattern!r}, which is no regular expression: {error}") from error
        return pattern

    @field_validator("one_of", mode="before")
    @classmethod
    def _read_values(cls, raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, list | tuple) or not raw or not all(isinstance(value, str | int | float) for value in raw):
            raise ValueError(f'is {raw!r}, expected a list like ["click", "purchase"]')
        return tuple(map(str, raw))

    @model_validator(mode="after")
    def _require_one_origin(self) -> Self:
        if not self.is_derived and sum((bool(self.columns), self.prefix is not None, self.value is not None)) != 1:
            raise ValueError("needs exactly one of column, columns, prefix and value")
        return self

    @property
    def is_derived(self) -> bool:
        """Whether no column holds it."""
        return False

    def names_in(self, names: Sequence[str]) -> list[str]:
        """Its columns in a file with columns of these names, for a prefix in the order of the numbers that follow it."""
        if self.prefix is None:
            return list(self.columns)
        numbered = [(int(found[1]), name) for name in names if (found := re.fullmatch(re.escape(self.prefix) + r"_?(\d+)", name))]
        return [name for _, name in sorted(numbered)]


class FeatureSource(Column):
    """One feature: it is read from its column, or derived in one of these ways. Those of `_OF_USERS` may derive features of users too.

        count_days       the number of the item's behaviours in that many days, or with `of = "users"` of its different users
        days_since       days since the item's "first" or "last" behaviour
        expected_days    how often the item will be taken in that many days, in percent of the average item (log_statistics.py)
        taken_together   a vector of that many numbers; items that the same users took have similar vectors (log_statistics.py)
        rate             the share of shown items that were clicked, or had this outcome; or the share of the item's behaviours that are of this kind
                         (schemas/statistics.py). `by`: of all items with the same value of that feature; `window`: in a time like "6h" or "7d" before
        count            how often the item was "shown", or "taken" in a behaviour, or had an outcome; `by` and `window` as above;
                         `half_life` instead of a window: an event counts half after each such time
        mean_of          the smoothed mean of this number of [behaviours.features] in the item's earlier behaviours
        clusters         the group of the item's embedding, of that many groups

    From `kind` on: fields of schemas.features.Feature that the mapping fixes. The others are inferred from the data.
    """

    name: str = Field("", exclude=True)  # the key of its table
    count_days: Number | None = None
    of: Literal["behaviours", "users"] = "behaviours"
    days_since: Literal["first", "last"] | None = None
    expected_days: Number | None = None
    taken_together: _AtLeastTwo | None = None
    rate: Text | None = None
    count: Text | None = None
    by: Text | None = None
    window: _Window | None = None
    half_life: _Window | None = None
    mean_of: Text | None = None
    clusters: _AtLeastTwo | None = None
    kind: Annotated[InstanceOf[Kind], BeforeValidator(find_kind)] | None = None
    buckets: int | None = None
    transform: Annotated[Transform, Field(strict=False)] | None = None
    mean: float | None = None
    scale: float | None = None
    default: float | None = None
    width: int | None = None
    realtime: bool | None = None

    @model_validator(mode="after")
    def _require_one_way(self) -> Self:
        ways = sum(getattr(self, way) is not None for way in DERIVED)
        if ways > 1 or (ways and self.model_fields_set & Column.model_fields.keys()):
            raise ValueError(f"{', '.join(DERIVED)} derive features of [items], one of them a feature")
        if "of" in self.model_fields_set and self.count_days is None:
            raise ValueError("of says what count_days counts; nothing else has it")
        if (self.by or self.window) and not (self.rate or self.count):
            raise ValueError("by and window belong to rate and count; nothing else has them")
        if self.half_life and (self.count is None or self.window):
            raise ValueError("half_life belongs to a count without a window; nothing else has it")
        return self

    @property
    def details(self) -> dict[str, Any]:
        """Parameters of the feature that the mapping fixes, without the kind."""
        return {name: getattr(self, name) for name in DETAILS if name in self.model_fields_set}

    @property
    def from_behaviours(self) -> bool:
        """Whether it is derived from behaviours before a time, so that it changes with time."""
        return any(getattr(self, way) is not None for way in DERIVED if way != "clusters")

    @property
    def of_shown(self) -> bool:
        """Whether it is a rate or a count (inferred_schema.py)."""
        return self.rate is not None or self.count is not None

    @property
    def counts_of_user(self) -> bool:
        """Whether it is a statistic that users may have too."""
        return self.by is None and self.of == "behaviours" and any(getattr(self, way) is not None for way in _OF_USERS)

    @property
    def window_ms(self) -> int | None:
        """The window or the half-life in milliseconds; None: all that came before."""
        window = self.half_life or self.window
        return None if window is None else int(window[:-1]) * (HOUR_MS if window[-1] == "h" else DAY_MS)

    @property
    def is_derived(self) -> bool:
        """Whether it is derived instead of read from a column."""
        return self.from_behaviours or self.clusters is not None


DERIVED = ("count_days", "days_since", "expected_days", "taken_together", "rate", "count", "mean_of", "clusters")
_OF_USERS = ("count_days", "days_since", "rate", "count")
DETAILS = ("buckets", "transform", "mean", "scale", "default", "width", "realtime")


class Source(FileFormat):
    """One section that reads files: its columns by role, its features, and the rows that count.
    Fields that are columns are its roles.

        section    its name in the mapping, such as "items"
        file       the name of a file in the data folder, or a pattern of names
        where      conditions that a row must fulfil
        explode    columns of lists: each value becomes a row, with the other cells of its row
        distinct   of behaviours: whether a row that repeats user, item, time and kind of another is dropped
    """

    section: ClassVar[str]
    rows_are_events: ClassVar[bool] = False  # a row is one value or event, not a whole item, so its features may have conditions
    file: Text
    where: Conditions = ()
    explode: Column | None = None
    features: dict[str, FeatureSource] = Field(default_factory=dict)
    distinct: bool = Field(False, exclude=True)

    @field_validator("features")
    @classmethod
    def _name_features(cls, features: dict[str, FeatureSource]) -> dict[str, FeatureSource]:
        return {name: feature.model_copy(update={"name": name}) for name, feature in features.items()}

    @field_validator("explode")
    @classmethod
    def _require_lists(cls, given: Column | None) -> Column | None:
        if given is not None and (not given.columns or given.model_fields_set - {"columns", "separator"}):
            raise ValueError(
                'needs columns of lists or of text, like { column = "items", separator = " " } or { columns = ["items", "times"] }'
            )
        return given

    @model_validator(mode="after")
    def _require_fitting_columns(self) -> Self:
        for key, column in self.columns_by_key().items():
            if column.where and not self.rows_are_events:
                raise ValueError(f"{key} has a where of its own, which is for features of item_history and behaviours")
        for feature in self.features.values():
            if self.section == "users" and feature.is_derived and not feature.counts_of_user:
                raise ValueError(f"features.{feature.name}: {', '.join(_OF_USERS)} derive features of [users], without by and of")
            if self.section not in ("items", "users") and feature.is_derived:
                raise ValueError(f"features: {', '.join(DERIVED)} derive features of [items], one of them a feature")
        return self

    @cached_property
    def roles(self) -> Mapping[str, Column]:
        """The columns that the section needs or may have, by role."""
        return {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Column)}

    def feature_columns(self) -> Mapping[str, Column]:
        """The columns of the features that are read from this file, by feature name."""
        return {name: feature for name, feature in self.features.items() if not feature.is_derived}

    def columns_by_key(self) -> Mapping[str, Column]:
        """All columns, by their names in the mapping."""
        return {**self.roles, **{f"features.{name}": column for name, column in self.feature_columns().items()}}
