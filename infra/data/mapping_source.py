"""One section of a mapping that reads files: which files, which columns have which roles, which features come of them.

Here: `Source` and `FeatureSource` as values, and how they are read and checked. Not here: the other sections, the whole (mapping.py), single columns
(mapping_column.py).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.data.file_format import AS_FOUND, FORMAT_KEYS, FileFormat, read_format
from infra.data.mapping_column import COLUMN_KEYS, NO_COLUMN, Column, read_column
from infra.data.mapping_section import Section
from infra.data.where import Condition, read_conditions
from schemas.errors import suggest
from schemas.features import Feature, Kind

FEATURE_DETAILS = tuple(f.name for f in dataclasses.fields(Feature) if f.name not in ("name", "scope"))
OUTCOME = "outcomes."  # what roles of [impressions.outcomes] begin with
_SOURCE_KEYS = ("file", "where", *FORMAT_KEYS)


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


def read_source(
    section: Section,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    *,
    features_key: str = "features",
    defaults: Mapping[str, Any] | None = None,
) -> Source:
    """A section with a file. `required`, `optional`: the roles that columns of it may have; `defaults`: a file and columns where it names none."""
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


def read_optional_source(section: Section, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Source | None:
    """The same; None where the mapping has no such section."""
    return read_source(section, required, optional) if section.given else None


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
