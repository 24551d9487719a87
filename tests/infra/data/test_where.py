"""Filters: which rows count."""

import pyarrow as pa
import pytest

from infra.data.mapping_source import read_conditions
from infra.data.tables import rows_where

BATCH = pa.record_batch(
    {
        "n": pa.array([1, 2, None, 4]),
        "text": pa.array(["3", "x", None, "paid and sent"]),
        "flag": pa.array([True, False, None, True]),
        "day": pa.array([0, 86_400_000, None, 10], pa.timestamp("ms")),
        "odd name": pa.array(["a", "b", "c", "d"]),
    }
)


def _rows(where: object) -> list[int]:
    conditions = read_conditions(where)
    return [row for row, kept in enumerate(rows_where(conditions, BATCH).tolist()) if kept]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("n > 1", [1, 3]),
        ("n != 1", [1, 2, 3]),
        ("n=2", [1]),
        ("flag == false", [1]),
        ("flag == True and n <= 4", [0, 3]),
        ("text == 'paid and sent'", [3]),
        ("text > 2", [0]),
        ('text in ["x", "3"]', [0, 1]),
        ("text not in ['x']", [0, 2, 3]),
        ("n in [1, 4] AND flag == true", [0, 3]),
        ('day >= "1970-01-02"', [1]),
        ("'odd name' == \"b\"", [1]),
        (["n", ">", 1], [1, 3]),
        ([["n", ">", 1], ["flag", "==", True]], [3]),
    ],
)
def test_conditions_select_rows(where: object, rows: list[int]) -> None:
    assert _rows(where) == rows
