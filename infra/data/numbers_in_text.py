"""Columns of numbers that read as categories, because their cells are text that no number is read from, or because some cells are none.

A kind that the mapping leaves open is numeric only where every cell is a number (inferred_schema.py): one "-" among prices makes categories of all of them,
and so does a decimal comma.
Here: finding such columns, and what to write instead. Not here: what is told (doubts.py).
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import decode_numbers, is_text, plain
from infra.data.mapped_sources import MappedSources
from infra.data.mapping import Source
from schemas.features import Kind

_SHARE_LEAST = 0.8  # of the different cells
_CELLS_LEAST, _CELLS_MOST = 20, 10_000


def find_numbers_in_text(sources: MappedSources) -> Iterator[str]:
    """A sentence about each such column whose kind the mapping leaves open."""
    mapping = sources.mapping
    categories = {feature.name for feature in sources.features if feature.kind is Kind.CATEGORICAL} - {sources.roles["sim_category"]}
    for source in (mapping.items, mapping.item_history, mapping.users, mapping.behaviours, mapping.impressions):
        if source is None:
            continue
        for feature in source.features:
            if feature.name in categories and "kind" not in feature.details and feature.column.columns:
                yield from _describe(sources, source, feature.name)


def _describe(sources: MappedSources, source: Source, name: str) -> Iterator[str]:
    column = source.feature_columns()[name]
    cells = plain(sources.table(source).sample.arrays(column)[0])
    if not is_text(cells):
        return
    cells = pc.drop_null(cells.unique())[:_CELLS_MOST]
    if len(cells) < _CELLS_LEAST:
        return
    place = f"[{source.section}] features.{name} is read as categories"
    if np.isfinite(decode_numbers(cells)).mean() >= _SHARE_LEAST:
        odd = cells.filter(pa.array(np.isnan(decode_numbers(cells))))[0].as_py()
        yield f'{place}, because not every cell is a number, like {odd[:60]!r}; kind = "numeric" leaves these out, kind = "categorical" keeps it so'
        return
    shares = {mark: _share_of_numbers(cells, mark) for mark in (".", ",")}  # where both fit, as in "1,250", the digits are grouped
    mark = max(shares, key=lambda mark: shares[mark])
    if shares[mark] >= _SHARE_LEAST:
        yield f"""{place}, but its cells are numbers like {cells[0].as_py()[:60]!r}; write {{ column = "{column.columns[0]}", decimal = "{mark}" }}"""


def _share_of_numbers(cells: pa.Array, mark: str) -> float:
    """How many cells are numbers with `mark` before their fraction, and groups of three digits before it."""
    group = "," if mark == "." else "."
    found = pc.match_substring_regex(cells, rf"^\s*[-+]?(\d+|\d{{1,3}}([{group}'’ \x{{a0}}\x{{202f}}]\d{{3}})+)([{mark}]\d+)?\s*$")
    return float(np.mean(found.to_numpy(zero_copy_only=False)))
