"""Which rows of a file count: `where` in a mapping, as text ("is_cancel == false and quantity > 0") or as [[column, op, value], ...].

Here: reading conditions and applying them to a batch. All conditions must hold; there is no `or` (`in` covers its most common use).
A missing cell satisfies `!=` and `not in`, and no other condition.
"""

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator

from infra.data.columns import Array, decode_flags, decode_numbers, decode_texts, decode_times, is_moment

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
OPERATORS = (*_COMPARE, "in", "not in")
_CONDITION = re.compile(
    r"\s*(?P<column>\"[^\"]+\"|'[^']+'|[^\s=!<>]+)\s*(?P<op>==|!=|<=|>=|=|<|>|not in\b|in\b)\s*(?P<value>.+?)\s*$", re.DOTALL
)
_AND = re.compile(r"""\s+and\s+(?=(?:[^"']|"[^"]*"|'[^']*')*$)""", re.IGNORECASE)  # not inside quotes


@dataclass(frozen=True, slots=True)
class Condition:
    """`column op value`; value is a bool, number, text, or a list of them."""

    column: str
    op: str
    value: Any


def read_conditions(raw: Any) -> tuple[Condition, ...]:
    """The conditions of a `where`. Raises ValueError."""
    if isinstance(raw, str):
        return tuple(_read_text(part) for part in _AND.split(raw))
    if isinstance(raw, list) and raw and not isinstance(raw[0], list):
        raw = [raw]
    if not isinstance(raw, list) or not all(
        isinstance(c, list) and len(c) == 3 and isinstance(c[0], str) and c[1] in OPERATORS for c in raw
    ):
        raise ValueError(f"is {raw!r}, expected text or a list of [column, op, value] with an op of {', '.join(OPERATORS)}")
    return tuple(_checked(Condition(*condition)) for condition in raw)


def _read_text(text: str) -> Condition:
    found = _CONDITION.match(text)
    if found is None:
        raise ValueError(f'does not read at {text!r}; write conditions like: quantity > 0 and status in ["paid", "sent"]')
    op = "==" if found["op"] == "=" else found["op"]
    return _checked(Condition(found["column"].strip("\"'"), op, _read_value(found["value"])))


def _read_value(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    lowered = text.lower()
    try:
        return json.loads(lowered if lowered in ("true", "false") else text.replace("'", '"') if text.startswith("[") else text)
    except ValueError as error:
        raise ValueError(f"has the value {text!r}; texts need quotes, and only `and` joins conditions") from error


def _checked(condition: Condition) -> Condition:
    listed = isinstance(condition.value, list)
    if listed != (condition.op in ("in", "not in")) or not all(isinstance(v, bool | int | float | str) for v in _values(condition)):
        raise ValueError(f"compares {condition.column} {condition.op} {condition.value!r}; in and not in need a list, others one value")
    return condition


def _values(condition: Condition) -> Sequence[Any]:
    return condition.value if isinstance(condition.value, list) else (condition.value,)


Conditions = Annotated[tuple[Condition, ...], BeforeValidator(read_conditions)]  # a field of a mapping


def rows_where(conditions: Sequence[Condition], batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Which rows of the batch or table fulfil all conditions, [R] bool."""
    kept = np.ones(batch.num_rows, bool)
    for condition in conditions:
        kept &= _fulfilled(condition, batch.column(condition.column))
    return kept


def _fulfilled(condition: Condition, column: Array) -> np.ndarray:
    if condition.op in ("in", "not in"):
        found = np.zeros(len(column), bool)
        for value in condition.value:
            found |= _compared(column, "==", value)
        return found if condition.op == "in" else ~found
    return _compared(column, condition.op, condition.value)


def _compared(column: Array, op: str, value: Any) -> np.ndarray:
    """One comparison, by the type of the value: flags, numbers, times (where the column is one), texts."""
    compare = _COMPARE[op]
    if isinstance(value, bool):
        flags, known = decode_flags(column)
        return np.where(known, compare(flags, value), op == "!=")
    if isinstance(value, int | float):
        numbers = decode_numbers(column)
        return np.where(np.isnan(numbers), op == "!=", compare(numbers, value))
    if is_moment(column):
        times = decode_times(column)
        return np.where(times < 0, op == "!=", compare(times, decode_times(pa.array([value]))[0]))
    texts = decode_texts(column)
    return np.fromiter((op == "!=" if text is None else compare(text, value) for text in texts), bool, len(texts))
