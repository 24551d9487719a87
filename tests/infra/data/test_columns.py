"""Cells: the same value is read from every form in which files write it."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.data.columns import (
    IdForm,
    decode_bags,
    decode_categories,
    decode_flags,
    decode_ids,
    decode_membership,
    decode_numbers,
    decode_parts,
    decode_times,
    decode_vectors,
    fits_int64,
    join_vectors,
    spell_numbers,
)
from schemas.events import ItemFeaturesUpdate
from schemas.ids import Id, IdKind

NOON_MS = 1_709_294_400_000  # 2024-03-01 12:00 UTC
NOON = dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([NOON_MS]),
        pa.array([NOON_MS // 1_000]),
        pa.array([NOON_MS * 1_000]),
        pa.array([NOON_MS * 1_000_000]),
        pa.array([float(NOON_MS // 1_000)]),
        pa.array([str(NOON_MS)]),
        pa.array([NOON], pa.timestamp("us", "UTC")),
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns")),
        pa.array(["2024-03-01T12:00:00Z"]),
        pa.array(["2024-03-01 12:00:00 UTC"]),
        pa.array(["2024-03-01 12:00:00"]),
        pa.array([" 2024-03-01T13:00:00+01:00 "]),
        pa.array(["2024-03-01 12:00"]).dictionary_encode(),
    ],
    ids=str,
)
def test_one_moment_reads_the_same_in_every_form(cells: pa.Array) -> None:
    assert decode_times(cells).tolist() == [NOON_MS]


def test_dates_are_midnight_and_what_is_no_time_is_missing() -> None:
    assert decode_times(pa.array([dt.date(2024, 3, 1), None])).tolist() == [NOON_MS - 43_200_000, -1]
    assert decode_times(pa.array(["2024-03-01", "soon", "", None])).tolist() == [NOON_MS - 43_200_000, -1, -1, -1]
    assert decode_times(pa.array(["01/03/2024 12:00"]), forms=["%d/%m/%Y %H:%M"]).tolist() == [NOON_MS]
    forms = ["%d.%m.%Y %H:%M", "%d.%m.%Y"]
    assert decode_times(pa.array(["01.03.2024 12:00", "01.03.2024", "2024-03-01", None]), forms=forms).tolist() == [
        NOON_MS,
        NOON_MS - 43_200_000,
        -1,
        -1,
    ]
    assert decode_times(pa.array([5]), unit="ms").tolist() == [5]
    assert decode_times(pa.array([20240301, None]), forms=["%Y%m%d"]).tolist() == [NOON_MS - 43_200_000, -1]
    assert decode_times(pa.array([dt.time(12), None])).tolist() == decode_times(pa.array([dt.timedelta(1), None])).tolist() == [-1, -1]


@given(st.integers(0, 2**40))
def test_milliseconds_survive_their_iso_text(seconds: int) -> None:
    text = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds % 4_000_000_000)).isoformat()
    assert decode_times(pa.array([text])).tolist() == [seconds % 4_000_000_000 * 1_000]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=8), st.sampled_from([" ", ",", ";", "|", ", ", "json", "numpy"]))
def test_a_vector_reads_the_same_in_every_spelling(numbers: list[float], separator: str) -> None:
    joined = {"json": "[" + ", ".join(map(repr, numbers)) + "]", "numpy": "[ " + "\n ".join(map(repr, numbers)) + " ]"}
    text = joined.get(separator, separator.join(map(repr, numbers)))
    listed = pa.array([numbers], pa.list_(pa.float64()))
    assert decode_vectors(pa.array([text])) == decode_vectors(listed) == [numbers]
    assert join_vectors([pa.array([repr(x)]) for x in numbers]) == [numbers]


def test_a_vector_with_a_hole_is_none() -> None:
    assert decode_vectors(pa.array(["1 x", "", "[]", None, "nan 1"])) == [None] * 5
    assert decode_vectors(pa.array([[1.0, None], [math.inf, 1.0], [1e39, 1.0]])) == [None, None, None], "events hold float32"
    assert join_vectors([pa.array([1e39]), pa.array([1.0])]) == [None]
    assert join_vectors([pa.array([1.0, None]), pa.array([2.0, 3.0])]) == [[1.0, 2.0], None]


def _ids(column: pa.Array, kind: IdKind) -> list[Id | None]:
    form = IdForm()
    form.see(column)
    return decode_ids(column, kind, form.fractions)


def test_ids_are_of_one_kind_whatever_the_column_type() -> None:
    for cells in (pa.array([7, None]), pa.array(["7", ""]), pa.array([7.0, math.nan]), pa.array([" 7 ", "x"]), pa.array(["7.0", None])):
        assert _ids(cells, IdKind.INT64) == [7, None]
    assert _ids(pa.array([7]), IdKind.TEXT) == ["7"]
    assert _ids(pa.array([2**62 + 1]), IdKind.INT64) == [2**62 + 1]
    assert _ids(pa.array(["7.0", "8.0"]), IdKind.TEXT) == ["7", "8"]
    assert _ids(pa.array(["7.0", "v8.0"]), IdKind.TEXT) == ["7.0", "v8.0"]
    assert _ids(pa.array(["x" * 129]), IdKind.TEXT) == [None]


def test_only_whole_numbers_in_their_one_spelling_are_int64_ids() -> None:
    assert fits_int64(pa.array([1, None])) and fits_int64(pa.array(["1", "-20", None])) and fits_int64(pa.array([1.0, 2.0]))
    assert not fits_int64(pa.array(["007"])) and not fits_int64(pa.array(["a1"])) and not fits_int64(pa.array([str(2**63)]))
    assert not fits_int64(pa.array([1.5]))


def test_flags_read_words_and_numbers() -> None:
    flags, known = decode_flags(pa.array(["yes", "FALSE", "1", "0", "maybe", None]))
    assert flags.tolist() == [True, False, True, False, False, False] and known.tolist() == [True] * 4 + [False] * 2
    clicks = ["0", "1", "2", "-1", None]
    for cells in (pa.array(clicks), pa.array([None if text is None else int(text) for text in clicks])):
        flags, known = decode_flags(cells)
        assert flags.tolist() == [False, True, True, False, False] and known.tolist() == [True] * 4 + [False], "text reads as numbers do"
    flags, known = decode_flags(pa.array(["3", "4", "5", ""]), at_least=4)
    assert flags.tolist() == [False, True, True, False] and known.tolist() == [True, True, True, False]
    assert decode_flags(pa.array([True, False, None]))[0].tolist() == [True, False, False]


def test_numbers_keep_what_can_be_read() -> None:
    assert np.array_equal(decode_numbers(pa.array([" 1.5", "x", "1e3", "inf", None])), [1.5, np.nan, 1e3, np.nan, np.nan], equal_nan=True)


def test_bags_and_categories_drop_what_is_empty() -> None:
    assert decode_bags(pa.array(["a|b", "a; b", '["a", 2]', "", "a,b|c", None])) == [
        ["a", "b"],
        ["a", "b"],
        ["a", 2],
        None,
        ["a,b", "c"],
        None,
    ]
    assert decode_bags(pa.array(["a/b"]), "/") == [["a", "b"]]
    assert decode_bags(pa.array([list(range(100))]))[0] == list(range(64))
    assert decode_categories(pa.array([1, None])) == [1, None]
    assert decode_categories(pa.array([True, None])) == ["True", None]
    assert len(decode_categories(pa.array(["ä" * 5_000]))[0].encode()) <= 1_024  # type: ignore[union-attr]


def test_a_whole_number_outside_int64_is_a_category_of_its_own() -> None:
    """An event would carry it as a fraction, which no category is, and near ones would be equal."""
    hashes = [2**63 - 1, 2**63, 2**63 + 1, None]
    told = [2**63 - 1, str(2**63), str(2**63 + 1)]
    assert decode_categories(pa.array(hashes, pa.uint64())) == [*told, None]
    assert decode_bags(pa.array([hashes], pa.list_(pa.uint64()))) == [told]
    for value in told:
        assert ItemFeaturesUpdate(item_id=1, version=1, features={"hash": value}).features["hash"] == value


def test_of_several_categories_in_a_cell_the_first_counts() -> None:
    assert decode_categories(pa.array(["Drama|War", "Comedy", None, ""]), "|") == ["Drama", "Comedy", None, None]
    assert decode_categories(pa.array(['["Drama", "War"]', "[Noir]", "[]", None, "[null, 7]"])) == ["Drama", "[Noir]", None, None, 7]
    assert decode_categories(pa.array([["Drama", "War"], [], None, [""]])) == ["Drama", None, None, None]


def test_numbers_in_text_may_have_a_decimal_comma_and_grouped_digits() -> None:
    cells = pa.array(["1.923,38", "1 234", "-0,5", "7", "n. a.", None])
    assert np.array_equal(decode_numbers(spell_numbers(cells, ",")), [1923.38, 1234, -0.5, 7, np.nan, np.nan], equal_nan=True)
    assert decode_numbers(spell_numbers(pa.array(["1,923.38", "1'234.5", "1\u00a0234"]), ".")).tolist() == [1923.38, 1234.5, 1234]
    assert decode_numbers(spell_numbers(pa.array([1.5, 2.0]), ",")).tolist() == [1.5, 2.0]


def test_a_flag_may_be_one_of_some_values() -> None:
    flags, known = decode_membership(pa.array(["buy", "view", None, " click "]), ("buy", "click"))
    assert flags.tolist() == [True, False, False, True] and known.tolist() == [True, True, False, True]
    assert decode_membership(pa.array([3, 4, None]), ("4",))[0].tolist() == [False, True, False]


@pytest.mark.parametrize(("pattern", "parts"), [(r"\((\d{4})\)$", ["1995", None, None]), (r"\d+", ["1995", "7", None])])
def test_of_a_cell_the_part_that_matches_counts(pattern: str, parts: list[str | None]) -> None:
    assert decode_parts(pa.array(["Toy Story (1995)", "n7.50", None]), pattern).to_pylist() == parts
    assert decode_parts(pa.array([1995, 7, None]), r"\d+").to_pylist() == ["1995", "7", None]
