"""Stored texts read as columns, against the specification: the same features decoded by Python, one by one."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.features import Feature, FeatureBlock, FeatureSchema, Kind, Scope, Transform
from streams.core.item_state import encode_raw_features
from streams.stored.feature_texts import ABSENT, BOOLEAN, FLOAT, LIST, TEXT, WHOLE, FeatureTexts, read_cells
from streams.stored.item_columns import ItemColumns, PlainColumns, encode_columns, encode_plain_columns

SCHEMA = FeatureSchema(
    features=(
        Feature("brand", Scope.ITEM, Kind.CATEGORICAL, buckets=1_000),
        Feature("a", Scope.ITEM, Kind.NUMERIC, mean=0.5, scale=3.0, default=-2.0),
        Feature("zz_last", Scope.ITEM, Kind.NUMERIC, transform=Transform.LOG1P),
        Feature("tags", Scope.ITEM, Kind.BAG, buckets=50),
        Feature("shape", Scope.ITEM, Kind.EMBEDDING, width=3),
        Feature("stock", Scope.ITEM, Kind.NUMERIC, realtime=True),
        Feature("kind", Scope.ITEM, Kind.CATEGORICAL, buckets=64, realtime=True),
        Feature("bid", Scope.ITEM, Kind.NUMERIC, default=1.0),
        Feature("mm", Scope.ITEM, Kind.EMBEDDING, width=2),
    ),
    sim_category="brand",
    bid="bid",
    multimodal="mm",
)
NAMES = [f.name for f in SCHEMA.of(Scope.ITEM)] + ["a_", "Brand", "bran", "brandy", "_0", "zzz"]

numbers = (
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(width=32, allow_nan=False, allow_infinity=False)
)
texts = st.text(max_size=40) | st.text("abc019 -.", max_size=200)
values = st.booleans() | st.none() | numbers | texts | st.lists(numbers | texts, max_size=70) | st.lists(numbers, min_size=3, max_size=3)
items = st.dictionaries(st.sampled_from(NAMES), values)


def plain_arrays(columns: PlainColumns) -> tuple[np.ndarray, ...]:
    return columns.category_R, columns.bid_R, columns.realtime_RQ


def columns_bytes(columns: ItemColumns) -> list[bytes]:
    arrays = [getattr(columns.inputs, name) for name in FeatureBlock.__slots__]
    return [np.ascontiguousarray(a).tobytes() for a in (*arrays, *plain_arrays(columns.plain))]


@settings(max_examples=150, deadline=None)
@given(st.lists(items, max_size=8))
def test_columns_read_from_texts_have_the_bits_of_those_read_from_mappings(some: list[dict[str, Any]]) -> None:
    mm_RM = np.arange(2 * len(some), dtype=np.float32).reshape(len(some), 2) * 1e6
    texts = FeatureTexts.join([encode_raw_features(item) for item in some])
    compiled = encode_columns(SCHEMA, texts, mm_RM)
    assert columns_bytes(compiled) == columns_bytes(encode_columns(SCHEMA, some, mm_RM))
    plain = encode_plain_columns(SCHEMA, texts)
    assert [a.tobytes() for a in plain_arrays(plain)] == [a.tobytes() for a in plain_arrays(compiled.plain)]


@pytest.mark.parametrize(
    ("value", "kind", "number", "text"),
    [
        (7, WHOLE, 7.0, "7"),
        (-(1 << 63), WHOLE, -(2.0**63), "-9223372036854775808"),
        (0.1, FLOAT, 0.1, "0.1"),
        (-0.0, FLOAT, -0.0, "-0.0"),
        (1e22, FLOAT, 1e22, "1e+22"),
        (True, BOOLEAN, 1.0, "true"),
        (None, ABSENT, math.nan, "null"),
        ("x y", TEXT, math.nan, "x y"),
        ([1, "]"], LIST, math.nan, '1,"]"'),
    ],
)
def test_a_cell_says_what_stands_there(value: object, kind: int, number: float, text: str) -> None:
    raw = encode_raw_features({"a": 1, "b": value, "c": "}"})
    cells = read_cells(FeatureTexts.join([b"{}", raw]), ["b"])
    assert cells.plain_R.tolist() == [True, True] and cells.kinds_FR[0].tolist() == [ABSENT, kind]
    assert repr(float(cells.numbers_FR[0, 1])) == repr(number)
    begin, end = (int(places[0, 1]) - len(b"{}") for places in (cells.begins_FR, cells.ends_FR))
    assert raw[begin:end].decode() == text


@pytest.mark.parametrize("item", [{"a": "é"}, {"a": 'say "x"'}, {"a": [["x"]]}, {"b": {"c": 1}}, {"a": 12345678901234567890123}])
def test_what_is_not_plain_is_left_to_python(item: dict[str, Any]) -> None:
    raw = json.dumps(item, sort_keys=True, separators=(",", ":")).encode()
    assert read_cells(FeatureTexts.join([raw, b'{"a":1}']), ["a", "b"]).plain_R.tolist() == [False, True]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=6), st.integers(0, 80))
def test_torn_texts_end_where_they_end(noise: bytes, middle: bytes, cut: int) -> None:
    whole = b'{"a":' + noise + b',"b":[1,' + middle + b'],"c":"x"}'
    torn = [whole[:cut], whole, noise, whole[cut:], b'{"c":2}']
    cells = read_cells(FeatureTexts.join(torn), ["a", "b", "c"])
    assert cells.plain_R[-1] and cells.numbers_FR[2, -1] == 2.0
    assert (cells.ends_FR <= np.cumsum([len(t) for t in torn]))[:, cells.plain_R].all()
