"""A column as a mapping writes it: its name, or a table that says where values come from and how a cell reads.

Here: the keys, checked. Not here: which sections have which columns (mapping.py), what cells mean (columns.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.data.columns import UNIT_MS
from infra.data.mapping_section import Section
from infra.data.where import Condition, read_conditions

COLUMN_KEYS = ("column", "columns", "prefix", "value", "separator", "pattern", "where", "at_least", "in", "time_unit", "time_format")
_WHERE_IN_COLUMNS = ("item_history", "behaviours")  # a row of these is a value or an event of its own, not the whole of an item


@dataclass(frozen=True, slots=True)
class Column:
    """Where values come from: one column, several (`columns`, or all that start with `prefix`), or the constant `value`.

    separator    between the values of a text cell (bags, vectors); None: found out per cell
    pattern      a regular expression: of each cell the part that matches counts (its first group, where it has one)
    where        conditions on other columns; where they do not hold, the cell is missing
    at_least     a number from which on a flag is true
    one_of       values that make a flag true; every other value makes it false
    time_unit / time_format   how a time reads, where it cannot be seen (from "day" to "ns"; a strptime format)
    """

    columns: tuple[str, ...] = ()
    prefix: str | None = None
    value: Any = None
    separator: str | None = None
    pattern: str | None = None
    where: tuple[Condition, ...] = ()
    at_least: float | None = None
    one_of: tuple[str, ...] = ()
    time_unit: str | None = None
    time_format: str | None = None


NO_COLUMN = Column()  # of a feature that is derived


def read_column(section: Section, key: str, value: Any) -> Column:
    """A column as written: its name, or a table with column, columns, prefix or value, and how to read it."""
    if isinstance(value, str):
        return Column(columns=(value,))
    if not isinstance(value, Mapping):
        raise section.reject(key, f'is {value!r}, expected a column name, or a table like {{ column = "name" }} or {{ value = 1 }}')
    part = Section(section.path, f"{section.name}.{key}" if section.name else key, value)
    one, many = part.any("column"), part.texts("columns", ())
    column = Column(
        columns=(one,) if one is not None else tuple(many),
        prefix=part.any("prefix"),
        value=part.any("value"),
        separator=part.any("separator"),
        pattern=_read_pattern(part),
        where=read_conditions(part, part.any("where")),
        at_least=part.optional_number("at_least", least=-1e12),
        one_of=tuple(map(str, part.listed("in"))),
        time_unit=part.choice("time_unit", tuple(UNIT_MS), None),
        time_format=part.any("time_format"),
    )
    part.end()
    if sum((bool(column.columns), column.prefix is not None, column.value is not None)) != 1:
        raise section.reject(key, "needs exactly one of column, columns, prefix and value")
    if column.where and section.name not in _WHERE_IN_COLUMNS:
        raise section.reject(key, f"has a where of its own, which is for features of {' and '.join(_WHERE_IN_COLUMNS)}")
    return column


def _read_pattern(part: Section) -> str | None:
    if part.any("pattern") is None:
        return None
    pattern = part.text("pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise part.reject("pattern", f"is {pattern!r}, which is no regular expression: {error}") from error
    return pattern
