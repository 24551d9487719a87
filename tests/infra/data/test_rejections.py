"""A row counts once while it can be known; rows beyond the bound go on being counted."""

import pytest

from infra.data import tables
from infra.data.tables import Rejections


def test_a_row_counts_once_and_rows_beyond_the_bound_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KNOWN_REJECTIONS_MAX", 3)
    found = Rejections()
    for row in (1, 2, 2, 3, 4, 5, 1):
        found.add("items", "a.csv", row, "no id")
    assert len(found) == 5
