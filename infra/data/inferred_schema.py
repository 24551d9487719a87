"""Infers from the data what a mapping leaves open about a feature: its kind and the parameters of that kind.

Here: pure functions of the loaded columns, so the same files and the same mapping give the same schema and fingerprint. Not here: which features there
are (mapping.py), what suits a kind (schemas/kinds.py), how cells are decoded (columns.py, tables.py).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from infra.data.columns import is_list
from infra.data.mapping_source import FeatureSource
from infra.data.tables import ColumnCells, LoadedRows
from schemas.errors import Misconfigured
from schemas.features import Feature, Scope
from schemas.kinds import KINDS, Kind, Transform


def infer_feature(source: FeatureSource, scope: Scope, rows: LoadedRows, role: Kind | None = None) -> Feature:
    """The feature of a source that is read from `rows`; `role` = the kind that a role of the schema asks for."""
    cells = rows.cells(source, source.name)
    _require_plain(source, cells)
    kind = source.kind or role or guess_kind(cells)
    if role is not None and kind is not role:
        raise Misconfigured("bad_mapping", f"feature {source.name!r} is {kind}, but the role that [schema] gives it needs kind {role}")
    try:
        return Feature(source.name, scope, kind, **{**kind.infer(cells, source.details), **source.details})
    except ValueError as error:
        column = f"column {source.columns[0]!r}" if source.columns else "its column"
        expected = f"no cell of {column} is {error}; the first is {cells.first()!r}"
        raise Misconfigured("bad_mapping", f"feature {source.name!r} is {kind}, but {expected}") from error


def _require_plain(source: FeatureSource, cells: ColumnCells) -> None:
    """Raises if a column holds structs, maps or lists of lists: their text would be taken for a category."""
    for array in cells.arrays:
        inner = array.type.value_type if is_list(array) else array.type
        if pa.types.is_nested(inner):
            raise Misconfigured(
                "bad_mapping",
                f"feature {source.name!r}: column {source.columns[0]!r} holds {str(array.type)[:100]}, expected values or lists of values; "
                f"name a field of a struct, like '{source.columns[0]}.NAME'; write values in maps or lists of lists as separate columns",
            )


def guess_kind(cells: ColumnCells) -> Kind:
    """The last of the kinds that fits the cells."""
    return next(kind for kind in reversed(KINDS.values()) if kind.fits(cells))


def infer_rate(values: np.ndarray) -> dict[str, Any]:
    """How a model reads a rate: around 0, in units of its deviation."""
    deviation = float(values.std()) if len(values) else 0.0
    return {"transform": Transform.NONE, "mean": 0.0, "scale": round(deviation, 6) if deviation > 1e-3 else 1.0, "default": 0.0}


def infer_bid(numbers: np.ndarray, details: Mapping[str, Any]) -> dict[str, Any]:
    """Details of the bid: read raw, with the median of the positive values as default."""
    positive = numbers[np.isfinite(numbers) & (numbers > 0)]
    return {"default": round(float(np.median(positive)), 6) or 1e-6 if len(positive) else 1.0, **details}
