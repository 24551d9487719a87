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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from schemas.errors import Misconfigured
from schemas.ids import IdKind, hash_bucket
from schemas.limits import (
    BAG_VALUES_MAX,
    EMBEDDING_WIDTH_MAX,
    FEATURES_PER_SCHEMA_MAX,
    HASH_BUCKETS_MAX,
    NAME_CHARS_MAX,
    REALTIME_BUCKETS_MAX,
)
from schemas.statistics import Statistic, decode_statistic

NUMBER_MAX = 1e6  # one absurd value must not make a row, and so a whole answer, infinite
BID_MAX = 1e12


class Scope(enum.StrEnum):
    """Whose feature it is. Context features belong to the request and are read by the head only."""

    ITEM = "item"
    USER = "user"
    BEHAVIOUR = "behaviour"
    CONTEXT = "context"


class Kind(enum.StrEnum):
    """How a value becomes numbers: one bucket, one number, a mean of buckets, or a vector as it is."""

    CATEGORICAL = "categorical"
    NUMERIC = "numeric"
    BAG = "bag"
    EMBEDDING = "embedding"


class Transform(enum.StrEnum):
    """Applied to a numeric value before (x - mean) / scale."""

    NONE = "none"
    LOG1P = "log1p"  # sign(x) * log(1 + |x|)


_SALTS_KEPT = 4_096  # without the cache it would be computed for every value
_BUCKETS_KEPT = 1 << 15
_COLUMN_ROWS_MIN = 8  # below it NumPy costs more than it saves
_PLAIN_NUMBERS = frozenset({int, float})


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature. `buckets` for categorical and bag, `transform`/`mean`/`scale`/`default` for numeric, `width` for embedding.

    `realtime` (item scope only): the head reads it at ranking time from the item's row, and the item half does not; so a change
    rewrites the row without running the network.
    statistic: the events from which `aif statistics` keeps the value current; None: the publisher tells it.
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
            self.name.isidentifier() and len(self.name) <= NAME_CHARS_MAX,
            f"a name is a Python identifier of at most {NAME_CHARS_MAX} characters",
        )
        if self.kind in (Kind.CATEGORICAL, Kind.BAG):
            wanted = f"buckets = {self.buckets}, expected a whole number from 2 to {HASH_BUCKETS_MAX}"
            require(type(self.buckets) is int and 2 <= self.buckets <= HASH_BUCKETS_MAX, wanted)
        if self.kind is Kind.EMBEDDING:
            wanted = f"width = {self.width}, expected a whole number from 1 to {EMBEDDING_WIDTH_MAX}"
            require(type(self.width) is int and 1 <= self.width <= EMBEDDING_WIDTH_MAX, wanted)
        require(
            all(map(math.isfinite, (self.mean, self.scale, self.default))) and self.scale > 0,
            "mean, scale, default must be finite and scale positive",
        )
        if self.realtime:
            require(self.scope is Scope.ITEM, "only item features can be realtime")
            require(
                self.kind is Kind.NUMERIC or (self.kind is Kind.CATEGORICAL and self.buckets <= REALTIME_BUCKETS_MAX),
                f"a realtime feature is numeric, or categorical with at most {REALTIME_BUCKETS_MAX} buckets",
            )

    @property
    def salt(self) -> bytes:
        """Hash salt: two features with the same values do not collide in the same way."""
        return _salt(self.scope, self.name)

    def bucket(self, value: object) -> int:
        """Row of this feature's embedding table; 0 if the value is missing."""
        return _bucket(value, self.buckets, self.salt) if isinstance(value, (int, str)) else 0

    def buckets_of(self, values: Sequence[object]) -> list[int]:
        """`bucket` of many values."""
        buckets, salt = self.buckets, self.salt
        return [_bucket(value, buckets, salt) if isinstance(value, (int, str)) else 0 for value in values]

    def number(self, value: object) -> float:
        """Transformed and scaled value, clipped to +-1e6; the default if missing, not a number, or not finite."""
        x = float(value) if isinstance(value, (int, float)) and math.isfinite(value) else self.default
        if self.transform == Transform.LOG1P:
            x = math.copysign(math.log1p(abs(x)), x)
        return min(max((x - self.mean) / self.scale, -NUMBER_MAX), NUMBER_MAX)

    def numbers(self, values: Sequence[object]) -> np.ndarray:
        """`number` of many values: float64 [R], the same bits."""
        if len(values) < _COLUMN_ROWS_MIN or not _PLAIN_NUMBERS.issuperset(map(type, values)):
            return np.array([self.number(value) for value in values], np.float64)
        return self.numbers_in(np.array(values, np.float64))

    def numbers_in(self, x_R: np.ndarray) -> np.ndarray:
        """`number` of a float64 column in which NaN stands for missing: float64 [R], the same bits."""
        x_R = np.where(np.isfinite(x_R), x_R, self.default)
        if self.transform == Transform.LOG1P:
            # One by one, because NumPy's logarithm may differ in the last bit.
            x_R = np.copysign(list(map(math.log1p, np.abs(x_R).tolist())), x_R)
        return np.clip((x_R - self.mean) / self.scale, -NUMBER_MAX, NUMBER_MAX)


# Categories repeat. Typed, because 1 and true are equal in Python and hash into different buckets.
_bucket = functools.lru_cache(_BUCKETS_KEPT, typed=True)(hash_bucket)


@functools.lru_cache(_SALTS_KEPT)
def _salt(scope: Scope, name: str) -> bytes:
    return hashlib.blake2b(f"{scope}/{name}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class FeatureSchema:
    """All features of a catalogue and the roles some of them play.

    sim_category  item categorical by which a user's history is cut into sub-sequences (3.3); its bucket is a column of the row
    bid           item numeric, positive; a column of the row in its raw value; never an input of the item half. None: rank by click
    multimodal    item embedding that arrives through new-items, is hashed (Eq. 5), and stays frozen
    multimodal_is_input  whether the item half reads it too; then a new embedding makes the vector stale as well
    behaviour_kinds  names of kinds of behaviour; others share the bucket "other"
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
        for role, kind in (("sim_category", Kind.CATEGORICAL), ("bid", Kind.NUMERIC), ("multimodal", Kind.EMBEDDING)):
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
        return {f.name: f.statistic for f in self.of(Scope.ITEM) if f.statistic is not None}

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
        return self.item(self.sim_category).bucket(raw.get(self.sim_category)) if self.sim_category else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the inverse of `decode_feature_schema`."""
        defaults = {f.name: f.default for f in dataclasses.fields(Feature)}
        features = [
            {k: v for k, v in dataclasses.asdict(f).items() if k in ("name", "scope", "kind") or v != defaults[k]} for f in self.features
        ]
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
                    "kind": Kind(f["kind"]),
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
    rows = len(records)
    by_kind = {kind: [f for f in features if f.kind is kind] for kind in Kind}
    categorical = np.zeros((rows, len(by_kind[Kind.CATEGORICAL])), np.int64)
    numeric = np.zeros((rows, len(by_kind[Kind.NUMERIC])), np.float32)
    bags = np.zeros((rows, len(by_kind[Kind.BAG]), BAG_VALUES_MAX if by_kind[Kind.BAG] else 0), np.int64)
    embeddings = np.zeros((rows, sum(f.width for f in by_kind[Kind.EMBEDDING])), np.float32)
    for c, feature in enumerate(by_kind[Kind.CATEGORICAL]):
        categorical[:, c] = feature.buckets_of([r.get(feature.name) for r in records])
    for n, feature in enumerate(by_kind[Kind.NUMERIC]):
        numeric[:, n] = feature.numbers([r.get(feature.name) for r in records])
    for b, feature in enumerate(by_kind[Kind.BAG]):
        for row, r in enumerate(records):
            values = r.get(feature.name)
            if isinstance(values, (list, tuple)):
                bags[row, b, : len(values)] = [_bucket(value, feature.buckets, feature.salt) for value in values[:BAG_VALUES_MAX]]
    at = 0
    for feature in by_kind[Kind.EMBEDDING]:
        _put_vectors(embeddings[:, at : at + feature.width], feature, records, vectors or {})
        at += feature.width
    return FeatureBlock(categorical, numeric, bags, embeddings)


def _put_vectors(out_RE: np.ndarray, feature: Feature, records: Sequence[Mapping[str, Any]], vectors: Mapping[str, np.ndarray]) -> None:
    if feature.name in vectors:
        np.clip(vectors[feature.name], -NUMBER_MAX, NUMBER_MAX, out=out_RE)
        return
    for row, r in enumerate(records):
        value = r.get(feature.name)
        if _is_vector(value, feature.width):
            out_RE[row] = np.clip(value, -NUMBER_MAX, NUMBER_MAX)


def _is_vector(value: object, width: int) -> TypeGuard[Sequence[float]]:
    """Whether an embedding value is `width` finite numbers; anything else counts as missing (zeros)."""
    if isinstance(value, np.ndarray):
        return value.shape == (width,) and value.dtype.kind == "f" and bool(np.isfinite(value).all())
    return isinstance(value, (list, tuple)) and len(value) == width and all(isinstance(x, (int, float)) and math.isfinite(x) for x in value)


@dataclass(frozen=True, slots=True)
class PlainColumns:
    """What a row has without the network: category_R int64, the buckets of the SIM category (0 = missing); bid_R float64; realtime_RQ float32."""

    category_R: np.ndarray
    bid_R: np.ndarray
    realtime_RQ: np.ndarray


def encode_plain_columns(schema: FeatureSchema, records: Sequence[Mapping[str, Any]]) -> PlainColumns:
    """The columns of R items that need no network."""
    rows, category, features = len(records), schema.sim_category, schema.realtime_features
    category_R = schema.item(category).buckets_of([r.get(category) for r in records]) if category else np.zeros(rows)
    realtime_RQ = np.empty((rows, len(features)), np.float32)
    for q, feature in enumerate(features):
        values = [r.get(feature.name) for r in records]
        realtime_RQ[:, q] = feature.numbers(values) if feature.kind is Kind.NUMERIC else feature.buckets_of(values)
    return PlainColumns(np.asarray(category_R, np.int64), schema.bids_of(records), realtime_RQ)


def encode_realtime(schema: FeatureSchema, raw: Mapping[str, Any]) -> list[float]:
    """The row's `realtime` column of one item: scaled numbers, and buckets (at most 256, so exact in float32) of categoricals."""
    values: list[float] = encode_plain_columns(schema, [raw]).realtime_RQ[0].tolist()
    return values
