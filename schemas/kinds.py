"""Kinds of features. One class holds all that distinguishes a kind, and `KINDS` lists them (docs/how-to/add-a-feature-kind.md).

A kind checks the parameters of a feature, turns raw values into numbers, and infers parameters from the cells of a file. Its layout names the array that
holds the numbers. Tables, networks and the engine know layouts and no kinds.
A missing or ill-typed value never raises: the event was accepted long before the model existed.

Arrays: R rows, V values of a bag, E width of a vector.
"""

import abc
import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeGuard

import numpy as np

from schemas.ids import hash_bucket
from schemas.limits import BAG_VALUES_MAX, EMBEDDING_WIDTH_MAX, HASH_BUCKETS_MAX, REALTIME_BUCKETS_MAX

NUMBER_MAX = 1e6  # one absurd value must not make a row, and so a whole answer, infinite
BUCKETS_MIN, BUCKETS_MAX = 16, 1 << 20  # of a feature whose buckets are inferred
_BUCKETS_KEPT = 1 << 15
_COLUMN_ROWS_MIN = 8  # below it NumPy costs more than it saves
_PLAIN_NUMBERS = frozenset({int, float})


class Layout(enum.Enum):
    """The array that a network reads a feature from; in this order the features stand in its input vector."""

    BUCKET = "bucket"  # int64 [R]: a row of the embedding table
    BAG = "bag"  # int64 [R, V]: the mean of rows of the table, 0 = no value
    NUMBER = "number"  # float32 [R]
    VECTOR = "vector"  # float32 [R, E], E = the feature's width

    @property
    def is_single(self) -> bool:
        """Whether a value becomes one number."""
        return self in (Layout.BUCKET, Layout.NUMBER)


class Transform(enum.StrEnum):
    """Applied to a numeric value before (x - mean) / scale."""

    NONE = "none"
    LOG1P = "log1p"  # sign(x) * log(1 + |x|)


class Declared(Protocol):
    """What a feature tells its kind; `Feature` in features.py."""

    @property
    def name(self) -> str: ...
    @property
    def salt(self) -> bytes: ...
    @property
    def buckets(self) -> int: ...
    @property
    def transform(self) -> Transform: ...
    @property
    def mean(self) -> float: ...
    @property
    def scale(self) -> float: ...
    @property
    def default(self) -> float: ...
    @property
    def width(self) -> int: ...


class Cells(Protocol):
    """The cells of one column of a file, as an import offers them to a kind (infra/data/tables.py)."""

    @property
    def is_vector(self) -> bool:
        """Whether a value is spread over several columns, or every cell is a list of fractions of one length."""

    @property
    def is_listed(self) -> bool:
        """Whether cells are lists, or JSON text of lists."""

    @property
    def is_number(self) -> bool:
        """Whether every cell with a value is a number."""

    def numbers(self) -> np.ndarray:
        """float64 [R], NaN for a missing cell."""

    def categories(self) -> Sequence[int | str | None]:
        """[R]"""

    def bags(self) -> Sequence[Sequence[int | str] | None]:
        """[R]"""

    def vectors(self, width: int) -> Sequence[Sequence[float] | None]:
        """[R]; a cell with another width is noted as rejected."""

    def first(self) -> object:
        """The first cell with a value; None for an empty column."""

    def different(self) -> int:
        """How many different categories there are."""

    def width(self) -> int:
        """Numbers of the first vector. Raises ValueError if no cell is one."""


class Kind(abc.ABC):
    """`raw`: types of the values in events. `sign`: by which cells an import recognises the kind."""

    name: ClassVar[str]
    layout: ClassVar[Layout]
    raw: ClassVar[tuple[type, ...]]
    sign: ClassVar[str]

    def find_fault(self, declared: Declared) -> str | None:
        """The expectation that the parameters of a feature do not meet; None if they meet all."""
        return None

    def reads(self, declared: Declared, value: object) -> bool:
        """Whether a value of an event is more than a missing one."""
        return isinstance(value, self.raw)

    def encode_one(self, declared: Declared, value: object) -> float:
        """The number of one value, within +-NUMBER_MAX; of a layout that is single."""
        raise NotImplementedError

    def encode(self, declared: Declared, values: Sequence[object]) -> np.ndarray:
        """The numbers of a column of values: [R], or as the layout says."""
        return np.array([self.encode_one(declared, value) for value in values])

    @abc.abstractmethod
    def draw(self, declared: Declared, rng: np.random.Generator) -> object:
        """A raw value, for dry runs."""

    @abc.abstractmethod
    def fits(self, cells: Cells) -> bool:
        """Whether an import takes these cells for this kind. Kinds at the end of `KINDS` are asked first."""

    @abc.abstractmethod
    def infer(self, cells: Cells, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters of the feature that cells suggest; `given` are those that the mapping fixes. Raises ValueError with what a cell should be
        where no cell suits the kind."""

    @abc.abstractmethod
    def decode(self, cells: Cells, declared: Declared) -> Sequence[Any]:
        """The cells as raw values, None for a missing one."""

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        """A kind that is copied or sent to another process stays the one of `KINDS`."""
        return find_kind, (self.name,)


def _wrong_count(name: str, value: object, least: int, most: int) -> str | None:
    fits = type(value) is int and least <= value <= most
    return None if fits else f"{name} = {value}, expected a whole number from {least} to {most}"


# Categories repeat. Typed, because 1 and true are equal in Python and hash into different buckets.
_bucket = functools.lru_cache(_BUCKETS_KEPT, typed=True)(hash_bucket)


class Categorical(Kind):
    """One bucket of an embedding table: 0 for a missing value, else a hash of the value."""

    name, layout, raw = "categorical", Layout.BUCKET, (int, str)
    sign = "its cells are no numbers, or it is the category"

    def find_fault(self, declared: Declared) -> str | None:
        return _wrong_count("buckets", declared.buckets, 2, HASH_BUCKETS_MAX)

    def encode_one(self, declared: Declared, value: object) -> int:
        return _bucket(value, declared.buckets, declared.salt) if isinstance(value, (int, str)) else 0

    def encode(self, declared: Declared, values: Sequence[object]) -> np.ndarray:
        buckets, salt = declared.buckets, declared.salt
        return np.array([_bucket(value, buckets, salt) if isinstance(value, (int, str)) else 0 for value in values], np.int64)

    def draw(self, declared: Declared, rng: np.random.Generator) -> int:
        return int(rng.integers(declared.buckets))

    def fits(self, cells: Cells) -> bool:
        return True

    def infer(self, cells: Cells, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"buckets": buckets_for(cells.different(), REALTIME_BUCKETS_MAX if given.get("realtime") else BUCKETS_MAX)}

    def decode(self, cells: Cells, declared: Declared) -> Sequence[Any]:
        return cells.categories()


class Numeric(Kind):
    """One number: transformed, scaled, clipped to +-NUMBER_MAX. The default stands for a value that is missing, no number, or not finite."""

    name, layout, raw = "numeric", Layout.NUMBER, (int, float)
    sign = "every cell is a number"

    def encode_one(self, declared: Declared, value: object) -> float:
        x = float(value) if isinstance(value, (int, float)) and math.isfinite(value) else declared.default
        if declared.transform == Transform.LOG1P:
            x = math.copysign(math.log1p(abs(x)), x)
        return min(max((x - declared.mean) / declared.scale, -NUMBER_MAX), NUMBER_MAX)

    def encode(self, declared: Declared, values: Sequence[object]) -> np.ndarray:
        """float64 with the bits of `encode_one`."""
        if len(values) < _COLUMN_ROWS_MIN or not _PLAIN_NUMBERS.issuperset(map(type, values)):
            return np.array([self.encode_one(declared, value) for value in values], np.float64)
        x_R = np.array(values, np.float64)
        x_R = np.where(np.isfinite(x_R), x_R, declared.default)
        if declared.transform == Transform.LOG1P:
            # One by one, because NumPy's logarithm may differ in the last bit.
            x_R = np.copysign(list(map(math.log1p, np.abs(x_R).tolist())), x_R)
        return np.clip((x_R - declared.mean) / declared.scale, -NUMBER_MAX, NUMBER_MAX)

    def draw(self, declared: Declared, rng: np.random.Generator) -> float:
        return float(rng.standard_normal() * declared.scale + declared.mean)

    def fits(self, cells: Cells) -> bool:
        return cells.is_number

    def infer(self, cells: Cells, given: Mapping[str, Any]) -> dict[str, Any]:
        numbers = cells.numbers()
        if np.isnan(numbers).all() and cells.first() is not None:
            raise ValueError("a number")
        return infer_scale(numbers, given)

    def decode(self, cells: Cells, declared: Declared) -> Sequence[Any]:
        return [None if x != x else x for x in cells.numbers().tolist()]


class Bag(Kind):
    """The mean of buckets: those of the first BAG_VALUES_MAX values of a list."""

    name, layout, raw = "bag", Layout.BAG, (list,)
    sign = "its cells are lists of values"

    def find_fault(self, declared: Declared) -> str | None:
        return _wrong_count("buckets", declared.buckets, 2, HASH_BUCKETS_MAX)

    def encode(self, declared: Declared, values: Sequence[object]) -> np.ndarray:
        buckets, salt, bags_RV = declared.buckets, declared.salt, np.zeros((len(values), BAG_VALUES_MAX), np.int64)
        for row, bag in enumerate(values):
            if isinstance(bag, (list, tuple)):
                bags_RV[row, : len(bag)] = [_bucket(value, buckets, salt) for value in bag[:BAG_VALUES_MAX]]
        return bags_RV

    def draw(self, declared: Declared, rng: np.random.Generator) -> list[int]:
        drawn: list[int] = rng.integers(0, declared.buckets, rng.integers(BAG_VALUES_MAX)).tolist()
        return drawn

    def fits(self, cells: Cells) -> bool:
        return cells.is_listed

    def infer(self, cells: Cells, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"buckets": buckets_for(len({value for bag in cells.bags() for value in bag or ()}))}

    def decode(self, cells: Cells, declared: Declared) -> Sequence[Any]:
        return cells.bags()


class Embedding(Kind):
    """A vector as it is, clipped to +-NUMBER_MAX; zeros for a missing one and for one of another width."""

    name, layout, raw = "embedding", Layout.VECTOR, (list,)
    sign = "its cells are lists of fractions, or it has several columns"

    def find_fault(self, declared: Declared) -> str | None:
        return _wrong_count("width", declared.width, 1, EMBEDDING_WIDTH_MAX)

    def reads(self, declared: Declared, value: object) -> bool:
        return isinstance(value, list) and len(value) == declared.width

    def encode(self, declared: Declared, values: Sequence[object]) -> np.ndarray:
        vectors_RE = np.zeros((len(values), declared.width), np.float32)
        for row, value in enumerate(values):
            if _is_vector(value, declared.width):
                vectors_RE[row] = np.clip(value, -NUMBER_MAX, NUMBER_MAX)
        return vectors_RE

    def draw(self, declared: Declared, rng: np.random.Generator) -> list[float]:
        drawn: list[float] = rng.standard_normal(declared.width).tolist()
        return drawn

    def fits(self, cells: Cells) -> bool:
        return cells.is_vector

    def infer(self, cells: Cells, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"width": cells.width()}

    def decode(self, cells: Cells, declared: Declared) -> Sequence[Any]:
        return cells.vectors(declared.width)


def _is_vector(value: object, width: int) -> TypeGuard[Sequence[float]]:
    if isinstance(value, np.ndarray):
        return value.shape == (width,) and value.dtype.kind == "f" and bool(np.isfinite(value).all())
    return isinstance(value, (list, tuple)) and len(value) == width and all(isinstance(x, (int, float)) and math.isfinite(x) for x in value)


CATEGORICAL, NUMERIC, BAG, EMBEDDING = Categorical(), Numeric(), Bag(), Embedding()
KINDS: dict[str, Kind] = {kind.name: kind for kind in (CATEGORICAL, NUMERIC, BAG, EMBEDDING)}


def find_kind(name: object) -> Kind:
    """The kind of a name. Raises ValueError."""
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"is {name!r}, expected one of {', '.join(KINDS)}")
    return KINDS[name]


def guess_kind(cells: Cells) -> Kind:
    """The last of the kinds that fits the cells."""
    return next(kind for kind in reversed(KINDS.values()) if kind.fits(cells))


def buckets_for(different: int, most: int = BUCKETS_MAX) -> int:
    """A power of two from 16, at least twice as many as values, at most `most`."""
    return min(most, max(BUCKETS_MIN, 1 << (2 * different).bit_length()))


def infer_scale(numbers: np.ndarray, given: Mapping[str, Any]) -> dict[str, Any]:
    """Transform, mean, scale and default of numbers: log1p where values are not negative and far apart; default = median."""
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return {}
    median = float(np.median(known))
    spread = known.min() >= 0 and known.max() > 20 * max(median, 1e-9)
    transform = given.get("transform", Transform.LOG1P if spread else Transform.NONE)
    values = np.sign(known) * np.log1p(np.abs(known)) if transform == Transform.LOG1P else known
    deviation = float(values.std())
    return {
        "transform": transform,
        "mean": round(float(values.mean()), 6),
        "scale": round(deviation, 6) if deviation > 1e-6 else 1.0,
        "default": round(median, 6),
    }
