"""Infers from the data what a mapping leaves open about a feature: kind, buckets, transform, mean, scale, default.

Here: pure functions of the loaded columns, so the same files and the same mapping give the same schema and fingerprint. Not here: which
features there are (mapping.py), how cells are decoded (columns.py).
Guesses: several columns or lists of fractions = embedding, other lists = bag, numbers = numeric, all else = categorical.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import decode_bags, decode_categories, decode_numbers, decode_vectors, is_list, is_text, plain
from infra.data.mapping_source import Column, FeatureSource
from schemas.errors import Misconfigured
from schemas.features import Feature, Kind, Scope, Transform
from schemas.limits import REALTIME_BUCKETS_MAX

BUCKETS_MIN, BUCKETS_MAX = 16, 1 << 20
_SEEN_CELLS = 1_000  # cells that are examined to distinguish a list of numbers from a bag


def infer_feature(source: FeatureSource, scope: Scope, arrays: Sequence[pa.ChunkedArray], role: Kind | None = None) -> Feature:
    """The feature of a source whose cells are `arrays`; `role` = the kind that a role of the schema asks for."""
    _require_plain(source, arrays)
    kind = source.kind or role or guess_kind(source, arrays)
    if role is not None and kind is not role:
        raise Misconfigured("bad_mapping", f"feature {source.name!r} is {kind}, but the role that [schema] gives it needs kind {role}")
    details: dict[str, Any]
    if kind is Kind.NUMERIC:
        numbers = decode_numbers(arrays[0]) if arrays else np.array([float(source.value)])
        _require_numbers(source, arrays, numbers)
        details = infer_numbers(numbers, source.details)
    elif kind is Kind.EMBEDDING:
        details = {"width": infer_width(arrays, source.separator, f"the column of embedding feature {source.name!r}")}
    else:
        details = {"buckets": infer_buckets(arrays, kind, source)}
    return Feature(source.name, scope, kind, **{**details, **source.details})


def _require_plain(source: FeatureSource, arrays: Sequence[pa.ChunkedArray]) -> None:
    """Raises if a column holds structs, maps or lists of lists: their text would be taken for a category."""
    for array in arrays:
        inner = array.type.value_type if is_list(array) else array.type
        if pa.types.is_nested(inner):
            raise Misconfigured(
                "bad_mapping",
                f"feature {source.name!r}: column {source.columns[0]!r} holds {str(array.type)[:100]}, expected values or lists of values; "
                f"name a field of a struct, like '{source.columns[0]}.NAME'; write values in maps or lists of lists as separate columns",
            )


def _require_numbers(source: FeatureSource, arrays: Sequence[pa.ChunkedArray], numbers: np.ndarray) -> None:
    """Raises if a column has values and none is a number: then the mapping names the wrong column."""
    cells: Sequence[Any] = pc.drop_null(arrays[0]) if arrays else ()
    if len(cells) and np.isnan(numbers).all():
        raise Misconfigured(
            "bad_mapping",
            f"feature {source.name!r} is numeric, but no cell of column {source.columns[0]!r} is a number; the first is {cells[0].as_py()!r}",
        )


def guess_kind(column: Column, arrays: Sequence[pa.ChunkedArray]) -> Kind:
    """The kind that fits the cells."""
    if not arrays:
        return Kind.NUMERIC if isinstance(column.value, int | float) and not isinstance(column.value, bool) else Kind.CATEGORICAL
    if len(arrays) > 1 or column.prefix is not None:
        return Kind.EMBEDDING
    cells = plain(pc.drop_null(arrays[0].slice(0, _SEEN_CELLS)))
    if is_list(cells) or (is_text(cells) and len(cells) and all(text.lstrip().startswith("[") for text in cells.to_pylist())):
        return _list_kind(cells)
    if is_text(cells):
        numbers = decode_numbers(pc.drop_null(arrays[0]))
        return Kind.NUMERIC if len(numbers) and not np.isnan(numbers).any() else Kind.CATEGORICAL
    return Kind.CATEGORICAL if pa.types.is_boolean(cells.type) else Kind.NUMERIC


def _list_kind(cells: pa.Array) -> Kind:
    """Lists of one width with a fraction somewhere are an embedding, others a bag."""
    vectors = decode_vectors(cells)
    widths = {len(v) if v is not None else 0 for v in vectors}
    fractions = any(not x.is_integer() for v in vectors if v is not None for x in v)
    return Kind.EMBEDDING if len(widths) == 1 and 0 not in widths and fractions else Kind.BAG


def infer_buckets(arrays: Sequence[pa.ChunkedArray], kind: Kind, source: FeatureSource) -> int:
    """A power of two, at least twice the number of different values."""
    if not arrays:
        return BUCKETS_MIN
    if kind is Kind.BAG:
        distinct = len({value for bag in decode_bags(arrays[0], source.separator) for value in bag or ()})
    else:
        cells = arrays[0] if is_list(arrays[0]) else arrays[0].unique()  # Arrow finds no different ones among lists
        distinct = len(set(decode_categories(cells, source.separator)))
    most = REALTIME_BUCKETS_MAX if source.realtime else BUCKETS_MAX
    return buckets_for(distinct, most)


def buckets_for(distinct: int, most: int = BUCKETS_MAX) -> int:
    """A power of two from 16, at least twice as many as values, at most `most`."""
    return min(most, max(BUCKETS_MIN, 1 << (2 * distinct).bit_length()))


def infer_width(arrays: Sequence[pa.ChunkedArray], separator: str | None, place: str) -> int:
    """Width of a vector: the number of columns, or of the first cell that is one. `place` names the column in the error where no cell is."""
    if len(arrays) > 1:
        return len(arrays)
    for chunk in arrays[0].chunks:
        for first in range(0, len(chunk), _SEEN_CELLS):
            for vector in decode_vectors(chunk.slice(first, _SEEN_CELLS), separator):
                if vector is not None:
                    return len(vector)
    cells = arrays[0].slice(0, 1).to_pylist()
    raise Misconfigured(
        "bad_mapping",
        f"{place} holds no vector: expected lists, or numbers set apart by spaces, commas or semicolons; the cells begin with {cells}",
    )


def infer_numbers(numbers: np.ndarray, details: Mapping[str, Any]) -> dict[str, Any]:
    """Transform, mean, scale and default of a numeric feature: log1p where values are not negative and far apart; default = median."""
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return {}
    median = float(np.median(known))
    spread = known.min() >= 0 and known.max() > 20 * max(median, 1e-9)
    transform = details.get("transform", Transform.LOG1P if spread else Transform.NONE)
    values = np.sign(known) * np.log1p(np.abs(known)) if transform == Transform.LOG1P else known
    deviation = float(values.std())
    return {
        "transform": transform,
        "mean": round(float(values.mean()), 6),
        "scale": round(deviation, 6) if deviation > 1e-6 else 1.0,
        "default": round(median, 6),
    }


def infer_rate(values: np.ndarray) -> dict[str, Any]:
    """How a model reads a rate: around 0, in units of its deviation."""
    deviation = float(values.std()) if len(values) else 0.0
    return {"transform": Transform.NONE, "mean": 0.0, "scale": round(deviation, 6) if deviation > 1e-3 else 1.0, "default": 0.0}


def infer_bid(numbers: np.ndarray, details: Mapping[str, Any]) -> dict[str, Any]:
    """Details of the bid: read raw, with the median of the positive values as default."""
    positive = numbers[np.isfinite(numbers) & (numbers > 0)]
    return {"default": round(float(np.median(positive)), 6) or 1e-6 if len(positive) else 1.0, **details}
