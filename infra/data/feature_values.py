"""Raw feature values of rows: the dicts that events carry. A missing or unreadable cell leaves the feature out.

Here: from loaded rows and a mapping's features to dicts by feature name. Not here: what a value becomes in a network (schemas/features.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infra.data.columns import decode_bags, decode_categories, decode_numbers, decode_vectors, join_vectors
from infra.data.mapping_source import Column
from infra.data.tables import LoadedRows
from schemas.features import Feature, Kind


def decode_features(rows: LoadedRows, columns: Mapping[str, Column], features: Iterable[Feature]) -> list[dict[str, Any]]:
    """One dict per row, with the features that have a value."""
    kinds = {feature.name: feature for feature in features if feature.name in columns}
    found = {name: decode_feature(rows, columns[name], feature) for name, feature in kinds.items()}
    if not found:
        return [{} for _ in range(len(rows))]
    names = tuple(found)
    return [
        {name: value for name, value in zip(names, cells, strict=True) if value is not None} for cells in zip(*found.values(), strict=True)
    ]


def decode_feature(rows: LoadedRows, column: Column, feature: Feature) -> Sequence[Any]:
    """The values of one feature, None where there is none."""
    if column.value is not None:
        return [float(column.value) if feature.kind is Kind.NUMERIC else column.value] * len(rows)
    arrays = rows.arrays(column)
    if feature.kind is Kind.NUMERIC:
        return [None if x != x else x for x in decode_numbers(arrays[0]).tolist()]
    if feature.kind is Kind.CATEGORICAL:
        return decode_categories(arrays[0], column.separator)
    if feature.kind is Kind.BAG:
        return decode_bags(arrays[0], column.separator)
    return decode_rows_of_vectors(rows, column, feature.width, feature.name)


def decode_rows_of_vectors(rows: LoadedRows, column: Column, width: int, name: str) -> list[list[float] | None]:
    """Vectors of that width. A vector of another width, or a cell that is no vector, is noted as rejected; an empty cell is just left out."""
    arrays = rows.arrays(column)
    vectors = decode_vectors(arrays[0], column.separator) if len(arrays) == 1 and column.prefix is None else join_vectors(arrays)
    empty = arrays[0].is_null().to_pylist()
    for row, vector in enumerate(vectors):
        if vector is not None and len(vector) == width:
            continue
        if not empty[row]:
            got = "no vector of finite numbers" if vector is None else f"{len(vector)} numbers"
            rows.reject(row, f"{name} has {got}, expected {width}")
        vectors[row] = None
    return vectors
