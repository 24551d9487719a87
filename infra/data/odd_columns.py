"""Columns that are read in another way than meant: numbers as categories, several values as one, cancellations as clicks.

Here: finding them, with the remedy. Not here: columns that know the future (leakage.py).
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import decode_lists, decode_numbers, decode_parts, is_list, is_text, list_lengths, plain
from infra.data.files import common_schema, find_files, read_chunks, read_column_names
from infra.data.mapped_sources import MappedSources
from infra.data.mapping_source import Column, FeatureSource, Source
from infra.data.rejections import Rejections
from schemas.kinds import CATEGORICAL

_NUMBERS_SHARE_LEAST = 0.8  # of the different cells of a column
_CELLS_LEAST, _CELLS_MOST = 20, 10_000
_SEVERAL_SHARE = 0.2  # of the cells
_VALUE_CHARS_MAX = 40  # a longer one is a sentence
_AMOUNT = r"-?\d[\d.,]*"
_SIGNED = rf"^\s*(\p{{Sc}}\s*{_AMOUNT}|{_AMOUNT}\s*(\p{{Sc}}|%|[A-Z]{{3}}))\s*$"  # "$12.99", "12,99 EUR", "5%"
_AMOUNT_NAMES = re.compile(r"(?i)(^|[^a-z])(qty|quantity|amount|units|pieces|volume)")


def find_negative_amounts(sources: MappedSources) -> Iterator[str]:
    """Cancellations and returns that count as clicks: a column of the log that is called an amount, mapped or not, with numbers below 0."""
    source = sources.mapping.behaviours or sources.mapping.impressions
    if source is None or source.explode is not None:
        return
    for name, array in _amounts(sources, source):
        numbers = decode_numbers(array)
        share = float(np.mean(numbers < 0))
        if 0 < share < 0.5:
            quoted = name if re.fullmatch(r"\w+", name) else f'"{name}"'
            yield (
                f"{share:.1%} of the cells of {name!r} are negative in the file of [{source.section}]: these look like cancellations or returns, "
                f"and each counts like any other row; write where = '{quoted} > 0' in [{source.section}]"
            )


def _amounts(sources: MappedSources, source: Source) -> Iterator[tuple[str, pa.Array]]:
    """Columns of the first file that are called an amount, named by the mapping or not: of its first rows that count."""
    path = find_files(sources.directory, source)[0]
    for name in read_column_names(path, source):
        if _AMOUNT_NAMES.search(name):
            with_it = source.model_copy(update={"features": {name: FeatureSource(columns=(name,))}})
            batch, _ = next(read_chunks(path, with_it, common_schema([path], with_it), Rejections()), (None, None))
            if batch is not None and batch.num_rows:
                yield name, batch.column(name)


def find_bags(sources: MappedSources) -> Iterator[str]:
    """Cells with several values that a categorical feature reads as one, or of which it reads the first."""
    mapping = sources.mapping
    categories = {feature.name for feature in sources.features if feature.kind is CATEGORICAL}
    for source in (mapping.items, mapping.item_history, mapping.users, mapping.behaviours, mapping.impressions):
        for name, feature in source.features.items() if source is not None else ():
            if name in categories and feature.columns and feature.kind is None and source is not None:
                is_role = name == sources.roles["sim_category"]
                yield from _describe_bag(source, name, feature, plain(sources.table(source).sample.arrays(feature)[0]), is_role)


def _describe_bag(source: Source, name: str, column: Column, cells: pa.Array, is_role: bool) -> Iterator[str]:
    """`is_role`: histories are cut by this feature, so it has to be one category."""
    cells = pc.drop_null(cells)[:_CELLS_MOST]
    if len(cells) < _CELLS_LEAST or column.separator:
        return  # a separator says that the first value is meant
    end = ""
    if is_list(cells) or (is_text(cells) and cells[0].as_py().lstrip().startswith("[")):
        share, values = float(np.mean(list_lengths(decode_lists(cells, None)) > 1)), set[str]()
    elif is_text(cells):
        end = max("|;,", key=lambda mark: sum(mark in text for text in cells.to_pylist()))
        parts = [text.split(end) for text in cells.to_pylist()]
        share, values = float(np.mean([len(found) > 1 for found in parts])), {value.strip() for found in parts for value in found}
        if len(values) >= len(set(cells.to_pylist())) or max(map(len, values)) > _VALUE_CHARS_MAX:
            return  # a sentence, or a name with a comma
    else:
        return
    if share >= _SEVERAL_SHARE:
        read = "one category for each whole cell" if end else "its first value"
        apart = f', separator = "{end}"' if end else ""
        first = f', or separator = "{end}" for the first one' if end else ""
        all_of_them = f'{{ column = "{column.columns[0]}", kind = "bag"{apart} }}'
        remedy = f"write {all_of_them} for all of them{first}"
        if is_role:
            one = f'separator = "{end}" to have the first one as the category, and ' if end else ""
            remedy = f"write {one}a further feature {all_of_them} for all of them"
        yield (
            f"[{source.section}] features.{name} has several values in {share:.0%} of its cells, like {str(cells[0].as_py())[:60]!r}, and is read as {read}; "
            f'{remedy}; kind = "categorical" keeps it so'
        )


def find_numbers_in_text(sources: MappedSources) -> Iterator[str]:
    """Columns of numbers that are read as categories. A kind that the mapping leaves open is numeric only if every cell is a number (schemas/kinds.py), so
    one "-" among prices makes categories of all of them. So does a decimal comma."""
    mapping = sources.mapping
    categories = {feature.name for feature in sources.features if feature.kind is CATEGORICAL} - {sources.roles["sim_category"]}
    for source in (mapping.items, mapping.item_history, mapping.users, mapping.behaviours, mapping.impressions):
        if source is None:
            continue
        for feature in source.features.values():
            if feature.name in categories and feature.kind is None and feature.columns:
                yield from _describe_numbers(sources, source, feature.name)


def _describe_numbers(sources: MappedSources, source: Source, name: str) -> Iterator[str]:
    column = source.feature_columns()[name]
    cells = plain(sources.table(source).sample.arrays(column)[0])
    if not is_text(cells):
        return
    cells = pc.drop_null(cells.unique())[:_CELLS_MOST]
    if len(cells) < _CELLS_LEAST:
        return
    place = f"[{source.section}] features.{name} is read as categories"
    if np.isfinite(decode_numbers(cells)).mean() >= _NUMBERS_SHARE_LEAST:
        odd = cells.filter(pa.array(np.isnan(decode_numbers(cells))))[0].as_py()
        yield f'{place}, because not every cell is a number, like {odd[:60]!r}; kind = "numeric" leaves these out, kind = "categorical" keeps it so'
        return
    signed = pc.match_substring_regex(cells, _SIGNED).to_numpy(zero_copy_only=False).mean() >= _NUMBERS_SHARE_LEAST
    numbers = decode_parts(cells, _AMOUNT) if signed else cells
    shares = {mark: _share_of_numbers(numbers, mark) for mark in (".", ",")}  # where both fit, as in "1,250", the digits are grouped
    mark = max(shares, key=lambda mark: shares[mark])
    if shares[mark] >= _NUMBERS_SHARE_LEAST:
        part = f"pattern = '{_AMOUNT}', " if signed else ""
        yield f"""{place}, but its cells are numbers like {cells[0].as_py()[:60]!r}; write {{ column = "{column.columns[0]}", {part}decimal = "{mark}" }}"""


def _share_of_numbers(cells: pa.Array, mark: str) -> float:
    """How many cells are numbers with `mark` before their fraction, and groups of three digits before it."""
    group = "," if mark == "." else "."
    found = pc.match_substring_regex(cells, rf"^\s*[-+]?(\d+|\d{{1,3}}([{group}'’ \x{{a0}}\x{{202f}}]\d{{3}})+)([{mark}]\d+)?\s*$")
    return float(np.mean(found.to_numpy(zero_copy_only=False)))
