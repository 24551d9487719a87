"""A column as a mapping writes it: its name, or a table that says where its values come from and how a cell is read.

Here: `Column`, and reading one, with every key checked. Not here: which sections have which columns (mapping.py), decoding cells (columns.py), conditions
(where.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.data.columns import DECIMAL_MARKS, UNIT_MS
from infra.data.mapping_section import Section
from infra.data.where import Condition, read_conditions

COLUMN_KEYS = (
    "column",
    "columns",
    "prefix",
    "value",
    "separator",
    "pattern",
    "decimal",
    "where",
    "at_least",
    "in",
    "time_unit",
    "time_format",
)
_WHERE_IN_COLUMNS = ("item_history", "behaviours")  # a row of these is a value or an event of its own, not the whole of an item


@dataclass(frozen=True, slots=True)
class Column:
    """Where values come from: one or several `columns`, all columns that are `prefix` and a number, or the constant `value`.

    separator     what stands between the values of a text cell of a bag or a vector; None: found out for each cell
    pattern       a regular expression: of each cell the part that matches counts, or its first group if it has one
    decimal       what stands before the fraction of a number in text, "," or "."; the other one, blanks and ' only group its digits
    where         conditions on other columns; a cell is missing where they do not hold
    at_least      a flag is true from this number on
    one_of        values that make a flag true; every other value makes it false
    time_unit     what a number of a time counts, from "day" to "ns"; None: seen from its size
    time_formats  strptime formats of times that are text, of which the first that fits counts; none: ISO 8601
    """

    columns: tuple[str, ...] = ()
    prefix: str | None = None
    value: Any = None
    separator: str | None = None
    pattern: str | None = None
    decimal: str | None = None
    where: tuple[Condition, ...] = ()
    at_least: float | None = None
    one_of: tuple[str, ...] = ()
    time_unit: str | None = None
    time_formats: tuple[str, ...] = ()


NO_COLUMN = Column()  # of a feature that is derived


def read_column(section: Section, key: str, value: Any) -> Column:
    """A column as the mapping writes it under `key`: its name, or a table with exactly one of column, columns, prefix and value, and how to read its cells.

    Raises Misconfigured (`bad_mapping`).
    """
    if isinstance(value, str):
        return Column(columns=(value,))
    if not isinstance(value, Mapping):
        raise section.reject(key, f'is {value!r}, expected a column name, or a table like {{ column = "name" }} or {{ value = 1 }}')
    part = Section(section.path, f"{section.name}.{key}" if section.name else key, value)
    one, many = part.optional_text("column"), part.texts("columns", ())
    column = Column(
        columns=(one,) if one is not None else tuple(many),
        prefix=part.optional_text("prefix"),
        value=part.any("value"),
        separator=part.optional_text("separator"),
        pattern=_read_pattern(part),
        decimal=part.choice("decimal", DECIMAL_MARKS, None),
        where=read_conditions(part, part.any("where")),
        at_least=part.optional_number("at_least", least=-1e12),
        one_of=tuple(map(str, part.listed("in"))),
        time_unit=part.choice("time_unit", tuple(UNIT_MS), None),
        time_formats=tuple(part.texts("time_format", ())),
    )
    part.end()
    if sum((bool(column.columns), column.prefix is not None, column.value is not None)) != 1:
        raise section.reject(key, "needs exactly one of column, columns, prefix and value")
    if column.where and section.name not in _WHERE_IN_COLUMNS:
        raise section.reject(key, f"has a where of its own, which is for features of {' and '.join(_WHERE_IN_COLUMNS)}")
    return column


def _read_pattern(part: Section) -> str | None:
    pattern = part.optional_text("pattern")
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise part.reject("pattern", f"is {pattern!r}, which is no regular expression: {error}") from error
    return pattern
