"""Features as data: what a catalogue has, declared once, and how raw values become the numbers a network reads.

A schema belongs to a model, not to a topic: events carry raw values by name, a model projects them at encode time.
A missing or ill-typed value becomes the feature's default, never an error: the record was accepted long before this model existed.

Arrays: R rows, C categorical features, N numeric features, B bag features, V values of a bag, E embedding features' total width.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from schemas.errors import Misconfigured
from schemas.ids import IdKind
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMBER_MAX, NUMERIC, Kind, Layout, Transform, find_kind
from schemas.limits import BAG_VALUES_MAX, FEATURES_PER_SCHEMA_MAX, NAME_CHARS_MAX, REALTIME_BUCKETS_MAX
from schemas.statistics import OF_USER, Statistic, decode_statistic

BID_MAX = 1e12


class Scope(enum.StrEnum):
    """Whose feature it is. Context features belong to the request and are read by the head only."""

    ITEM = "item"
    USER = "user"
    BEHAVIOUR = "behaviour"
    CONTEXT = "context"


_SALTS_KEPT = 4_096  # without the cache it would be computed for every value
_FINITE_MAX = sys.float_info.max  # compared, because math.isfinite raises for a larger int
_PLAIN_NUMBERS = frozenset({int, float})
_LAYOUTS = (Layout.BUCKET, Layout.BAG, Layout.NUMBER, Layout.VECTOR)


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature. Parameters: `buckets` of categorical and bag, `transform`/`mean`/`scale`/`default` of numeric, `width` of embedding.

    realtime: the head reads it at ranking time from the item's row, and the item half does not. So a change rewrites the row without running the network.
    Only item features can be realtime.
    statistic: the events from which `aif statistics` keeps the value of an item or user current. None: the publisher sends it.
    """

    name: str
    scope: Scope
    kind: Kind
    buckets: int = 0
    transform: Transform = Transform.NONE
    mean: float = 0.0
    scale: float = 1.0
    default: float = 0.0
    width: int = 0
    realtime: bool = False
    statistic: Statistic | None = None

    def __post_init__(self) -> None:
        def require(condition: bool, expectation: str) -> None:
            if not condition:
                raise Misconfigured("bad_feature", f"feature {self.name!r} ({self.scope}, {self.kind}): {expectation}")

        require(
            self.name.isidentifier() and self.name.isascii() and len(self.name) <= NAME_CHARS_MAX,  # as events have them
            f"a name is a Python identifier of at most {NAME_CHARS_MAX} characters, in ASCII",
        )
        fault = self.kind.find_fault(self)
        require(fault is None, str(fault))
        require(
            all(abs(number) <= _FINITE_MAX for number in (self.mean, self.scale, self.default)) and self.scale > 0,
            "mean, scale, default must be finite and scale positive",
        )
        if self.realtime:
            require(self.scope is Scope.ITEM, "only item features can be realtime")
            require(
                self.layout is Layout.NUMBER or (self.layout is Layout.BUCKET and self.buckets <= REALTIME_BUCKETS_MAX),
                f"a realtime feature is numeric, or categorical with at most {REALTIME_BUCKETS_MAX} buckets",
            )

    @property
    def salt(self) -> bytes:
        """Hash salt: two features with the same values do not collide in the same way."""
        return _salt(self.scope, self.name)

    @property
    def layout(self) -> Layout:
        """The array that holds its numbers."""
        return self.kind.layout

    def encode_one(self, value: object) -> float:
        """The bucket or the number of one value, of a feature whose layout is single."""
        return self.kind.encode_one(self, value)

    def encode(self, values: Sequence[object]) -> np.ndarray:
        """The same of many values, the same bits; of any layout."""
        return self.kind.encode(self, values)


@functools.lru_cache(_SALTS_KEPT)
def _salt(scope: Scope, name: str) -> bytes:
    return hashlib.blake2b(f"{scope}/{name}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class FeatureSchema:
    """All features of a catalogue.
    Some play a role:

        sim_category         item categorical that cuts a user's history into sub-sequences (3.3); its bucket is a column of the row
        bid                  item numeric, positive; a column of the row in its raw value; never an input of the item half. None: rank by click
        multimodal           item embedding that arrives through new-items, is hashed (Eq. 5), and stays frozen
        multimodal_is_input  whether the item half reads it too; then a new embedding makes the vector stale as well
        behaviour_kinds      names of kinds of behaviour; others share the bucket "other"
    """

    features: tuple[Feature, ...]
    id_kind: IdKind = IdKind.INT64
    sim_category: str | None = None
    bid: str | None = None
    multimodal: str | None = None
    multimodal_is_input: bool = True
    behaviour_kinds: tuple[str, ...] = ("click",)

    def __post_init__(self) -> None:
        def require(condition: bool, message: str) -> None:
            if not condition:
                raise Misconfigured("bad_feature_schema", message)

        names = [(f.scope, f.name) for f in self.features]
        require(len(names) <= FEATURES_PER_SCHEMA_MAX, f"{len(names)} features, expected at most {FEATURES_PER_SCHEMA_MAX}")
        require(
            len(set(names)) == len(names),
            f"feature names must be unique within a scope, got {sorted(n for n in names if names.count(n) > 1)}",
        )
        for role, kind in (("sim_category", CATEGORICAL), ("bid", NUMERIC), ("multimodal", EMBEDDING)):
            name = getattr(self, role)
            item_kinds = {f.name: f.kind for f in self.features if f.scope is Scope.ITEM}
            require(
                name is None or item_kinds.get(name) is kind,
                f"{role} = {name!r} must name an item feature of kind {kind}; item features: {item_kinds}",
            )
        require(
            self.bid is None or self.item(self.bid).default > 0,
            f"the bid {self.bid!r} needs a positive default, for items that come without one",
        )

    def of(self, scope: Scope) -> tuple[Feature, ...]:
        """The features of one scope, in declared order."""
        return tuple(f for f in self.features if f.scope is scope)

    @functools.cached_property
    def statistics(self) -> Mapping[str, Statistic]:
        """The item features that are statistics, by name."""
        return self._statistics_of(Scope.ITEM)

    @functools.cached_property
    def user_statistics(self) -> Mapping[str, Statistic]:
        """The same of users."""
        return self._statistics_of(Scope.USER)

    @functools.cached_property
    def kept_statistics(self) -> Mapping[str, Statistic]:
        """Both, those of users with `OF_USER` before their names: what `aif statistics` keeps current."""
        return {**self.statistics, **{OF_USER + name: statistic for name, statistic in self.user_statistics.items()}}

    def _statistics_of(self, scope: Scope) -> Mapping[str, Statistic]:
        return {f.name: f.statistic for f in self.of(scope) if f.statistic is not None}

    def item(self, name: str) -> Feature:
        """The item feature of that name."""
        return self._item_features[name]

    @functools.cached_property
    def _item_features(self) -> Mapping[str, Feature]:
        return {f.name: f for f in self.of(Scope.ITEM)}

    @functools.cached_property
    def item_half_inputs(self) -> tuple[Feature, ...]:
        """The inputs of the item network: item features except realtime ones, the bid and, unless it is an input, the multimodal embedding."""
        left_out = {self.bid} | ({self.multimodal} if not self.multimodal_is_input else set())
        return tuple(f for f in self.of(Scope.ITEM) if not f.realtime and f.name not in left_out)

    @functools.cached_property
    def realtime_features(self) -> tuple[Feature, ...]:
        """The features that the head reads from the item's row, in the order of the row's `realtime` column."""
        return tuple(f for f in self.of(Scope.ITEM) if f.realtime)

    @property
    def mm_width(self) -> int:
        """Width of the multimodal embedding; 0 if absent."""
        return self.item(self.multimodal).width if self.multimodal else 0

    def bid_of(self, raw: Mapping[str, Any]) -> float:
        """The raw bid of an item (currency per click); the schema's default if missing or not positive; 1.0 without a bid feature."""
        if self.bid is None:
            return 1.0
        value = raw.get(self.bid)
        if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
            return min(float(value), BID_MAX)
        return self.item(self.bid).default

    def bids_of(self, records: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """`bid_of` of many items: float64 [R], the same bits."""
        if self.bid is not None:
            values = [r.get(self.bid) for r in records]
            if _PLAIN_NUMBERS.issuperset(map(type, values)):
                x_R = np.array(values, np.float64)
                return np.where(np.isfinite(x_R) & (x_R > 0), np.minimum(x_R, BID_MAX), self.item(self.bid).default)
        return np.array([self.bid_of(raw) for raw in records], np.float64)

    def category_of(self, raw: Mapping[str, Any]) -> int:
        """The bucket of the SIM category; 0 if missing."""
        return int(self.item(self.sim_category).encode_one(raw.get(self.sim_category))) if self.sim_category else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the inverse of `decode_feature_schema`."""
        defaults = {f.name: f.default for f in dataclasses.fields(Feature)}
        told = [dataclasses.asdict(f) | {"kind": f.kind.name} for f in self.features]
        features = [{k: v for k, v in f.items() if k in ("name", "scope", "kind") or v != defaults[k]} for f in told]
        return dataclasses.asdict(self) | {"features": features, "behaviour_kinds": list(self.behaviour_kinds)}

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever anything here changes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def decode_feature_schema(raw: Mapping[str, Any]) -> FeatureSchema:
    """A schema from plain values (TOML or JSON). `features` is a list of tables, or a table by feature name.

    Raises Misconfigured that names the feature and the expectation.
    """
    fields = dict(raw)
    listed = fields.pop("features", ())
    if isinstance(listed, Mapping):
        listed = [{"name": name, **values} for name, values in listed.items()]
    try:
        features = tuple(
            Feature(
                **{
                    **f,
                    "scope": Scope(f["scope"]),
                    "kind": find_kind(f["kind"]),
                    "transform": Transform(f.get("transform", "none")),
                    "statistic": decode_statistic(told) if (told := f.get("statistic")) is not None else None,
                }
            )
            for f in listed
        )
        kinds = tuple(fields.pop("behaviour_kinds", ("click",)))
        return FeatureSchema(features=features, id_kind=IdKind(fields.pop("id_kind", "int64")), behaviour_kinds=kinds, **fields)
    except (TypeError, ValueError, KeyError) as error:
        raise Misconfigured("bad_feature_schema", f"the schema does not read: {error}; see docs/IMPORT.md for its form") from error


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """R rows of one list of features as arrays.

    categorical_RC int64 buckets; numeric_RN float32; bags_RBV int64 buckets padded with 0; embeddings_RE float32 (all embedding features side by side).
    """

    categorical_RC: np.ndarray
    numeric_RN: np.ndarray
    bags_RBV: np.ndarray
    embeddings_RE: np.ndarray

    def __len__(self) -> int:
        return len(self.categorical_RC)


def encode_features(
    features: Sequence[Feature], records: Sequence[Mapping[str, Any]], vectors: Mapping[str, np.ndarray] | None = None
) -> FeatureBlock:
    """Raw values of R records to arrays, for `features` in their order. An embedding feature is read from the record by its name, or from `vectors` if it is
    an array there: finite float32 [R, width], zeros if missing."""
    of, rows = by_layout(features), len(records)
    categorical_RC, numeric_RN = np.zeros((rows, len(of.buckets)), np.int64), np.zeros((rows, len(of.numbers)), np.float32)
    bags_RBV = np.zeros((rows, len(of.bags), BAG_VALUES_MAX if of.bags else 0), np.int64)
    for columns, column_features in ((categorical_RC, of.buckets), (numeric_RN, of.numbers), (bags_RBV, of.bags)):
        for place, feature in enumerate(column_features):
            columns[:, place] = feature.kind.encode(feature, [r.get(feature.name) for r in records])
    at, embeddings_RE = 0, np.zeros((rows, sum(f.width for f in of.vectors)), np.float32)
    for feature in of.vectors:
        out_RE = embeddings_RE[:, at : at + feature.width]
        if vectors is not None and feature.name in vectors:
            np.clip(vectors[feature.name], -NUMBER_MAX, NUMBER_MAX, out=out_RE)
        else:
            out_RE[:] = feature.encode([r.get(feature.name) for r in records])
        at += feature.width
    return FeatureBlock(categorical_RC, numeric_RN, bags_RBV, embeddings_RE)


class ByLayout(NamedTuple):
    """Features by the layout of their kind, each list in the order of the features."""

    buckets: list[Feature]
    bags: list[Feature]
    numbers: list[Feature]
    vectors: list[Feature]


def by_layout(features: Sequence[Feature]) -> ByLayout:
    """The features of each layout."""
    return ByLayout(*([f for f in features if f.kind.layout is layout] for layout in _LAYOUTS))


@dataclass(frozen=True, slots=True)
class PlainColumns:
    """What a row has without the network: category_R int64, the buckets of the SIM category (0 = missing); bid_R float64; realtime_RQ float32."""

    category_R: np.ndarray
    bid_R: np.ndarray
    realtime_RQ: np.ndarray


def encode_plain_columns(schema: FeatureSchema, records: Sequence[Mapping[str, Any]]) -> PlainColumns:
    """The columns of R items that need no network."""
    rows, category, features = len(records), schema.sim_category, schema.realtime_features
    category_R = schema.item(category).encode([r.get(category) for r in records]) if category else np.zeros(rows)
    realtime_RQ = np.empty((rows, len(features)), np.float32)
    for q, feature in enumerate(features):
        realtime_RQ[:, q] = feature.encode([r.get(feature.name) for r in records])
    return PlainColumns(np.asarray(category_R, np.int64), schema.bids_of(records), realtime_RQ)


def encode_realtime(schema: FeatureSchema, raw: Mapping[str, Any]) -> list[float]:
    """The row's `realtime` column of one item: scaled numbers, and buckets (at most 256, so exact in float32) of categoricals."""
    values: list[float] = encode_plain_columns(schema, [raw]).realtime_RQ[0].tolist()
    return values
