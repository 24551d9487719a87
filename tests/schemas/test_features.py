"""Features: a schema survives JSON, its fingerprint sees every change, and no raw value can break an encode."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Misconfigured
from schemas.features import Feature, Scope, decode_feature_schema, encode_features, encode_realtime
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC, Transform
from tests.schemas.catalogue import FEATURES, small_schema

ANY_VALUE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(0, 9), max_size=70)
)


def test_a_schema_survives_json() -> None:
    schema = small_schema()
    again = decode_feature_schema(json.loads(json.dumps(schema.to_dict())))
    assert again == schema and again.fingerprint == schema.fingerprint


def test_a_schema_may_list_its_features_as_a_table_by_name() -> None:
    raw = small_schema().to_dict()
    table = {f["name"]: {k: v for k, v in f.items() if k != "name"} for f in raw["features"]}
    assert decode_feature_schema({**raw, "features": table}) == small_schema()


def test_the_fingerprint_sees_a_change_of_any_field() -> None:
    schema = small_schema()
    changed = dataclasses.replace(schema, features=(dataclasses.replace(FEATURES[0], buckets=51), *FEATURES[1:]))
    assert changed.fingerprint != schema.fingerprint
    assert dataclasses.replace(schema, multimodal_is_input=False).fingerprint != schema.fingerprint


def test_the_item_half_reads_neither_realtime_features_nor_the_bid() -> None:
    assert [f.name for f in small_schema().item_half_inputs] == ["category", "tags", "image"]
    assert [f.name for f in dataclasses.replace(small_schema(), multimodal_is_input=False).item_half_inputs] == ["category", "tags"]
    assert [f.name for f in small_schema().realtime_features] == ["stock"]


@given(st.lists(st.dictionaries(st.sampled_from(["category", "price", "stock", "tags"]), ANY_VALUE), max_size=5))
def test_no_raw_value_breaks_an_encode_and_every_number_is_finite(records: list[dict[str, object]]) -> None:
    block = encode_features([f for f in FEATURES if f.kind is not EMBEDDING and f.scope is Scope.ITEM], records)
    assert len(block) == len(records)
    assert np.isfinite(block.numeric_RN).all()
    assert ((block.categorical_RC >= 0) & (block.categorical_RC < 50)).all()
    assert ((block.bags_RBV >= 0) & (block.bags_RBV < 100)).all()
    for raw in records:
        assert np.isfinite(encode_realtime(small_schema(), raw)).all()
        assert small_schema().bid_of(raw) > 0


@pytest.mark.parametrize(
    ("change", "expectation"),
    [
        ({"name": "not a name"}, "identifier"),
        ({"name": "größe"}, "in ASCII"),
        ({"buckets": 1}, "buckets = 1"),
        ({"buckets": 50.0}, "buckets = 50.0, expected a whole number"),
        ({"kind": EMBEDDING, "width": 0}, "width = 0"),
        ({"kind": EMBEDDING, "width": True}, "width = True, expected a whole number"),
        ({"kind": NUMERIC, "scale": 0.0}, "scale"),
        ({"kind": NUMERIC, "default": float("nan")}, "default must be finite"),
        ({"kind": NUMERIC, "mean": 10**400}, "must be finite"),
        ({"realtime": True, "buckets": 257}, "realtime"),
        ({"realtime": True, "scope": Scope.USER}, "realtime"),
    ],
)
def test_a_bad_feature_is_refused_with_the_expectation(change: dict[str, object], expectation: str) -> None:
    with pytest.raises(Misconfigured, match=expectation):
        dataclasses.replace(FEATURES[0], **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["sim_category", "bid", "multimodal"])
def test_a_role_must_name_an_item_feature_of_its_kind(role: str) -> None:
    with pytest.raises(Misconfigured, match=role):
        dataclasses.replace(small_schema(), **{role: "country"})  # type: ignore[arg-type]


def test_a_schema_that_does_not_read_names_what_is_wrong() -> None:
    with pytest.raises(Misconfigured, match="colour"):
        decode_feature_schema({"features": [{"name": "a", "scope": "item", "kind": "numeric", "colour": 1}]})


def test_a_log1p_keeps_the_sign() -> None:
    feature = Feature("x", Scope.ITEM, NUMERIC, transform="log1p")  # type: ignore[arg-type]
    assert feature.encode_one(-3.0) == pytest.approx(-np.log1p(3.0))


@given(st.lists(ANY_VALUE | st.floats(-1e9, 1e9) | st.integers(-9, 9), min_size=8, max_size=20), st.sampled_from(["none", "log1p"]))
def test_a_column_of_numbers_has_the_bits_of_its_numbers_one_by_one(values: list[object], transform: str) -> None:
    feature = Feature("x", Scope.ITEM, NUMERIC, transform=Transform(transform), mean=0.3, scale=0.7, default=1.5)
    assert feature.encode(values).tobytes() == np.array([feature.encode_one(v) for v in values], np.float64).tobytes()
    plain = [v for v in values if type(v) in (int, float)]
    assert feature.encode(plain).tobytes() == np.array([feature.encode_one(v) for v in plain], np.float64).tobytes()


def test_equal_values_of_other_types_keep_their_buckets() -> None:
    feature = Feature("x", Scope.ITEM, CATEGORICAL, buckets=1 << 20)
    assert len({feature.encode_one(value) for value in (1, True, "1", "True")}) == 2  # the text of a value decides
    assert [feature.encode_one(v) for v in (1, True)] == [feature.encode_one(v) for v in ("1", "True")]


def test_vectors_given_as_an_array_are_read_as_those_in_the_records() -> None:
    feature = Feature("x", Scope.ITEM, EMBEDDING, width=3)
    rows = np.array([[1, 2, 3], [0, 0, 0], [-3e38, 5, 1e7]], np.float32)
    given_apart = encode_features([feature], [{}, {}, {}], {"x": rows})
    in_records = encode_features([feature], [{"x": rows[0]}, {}, {"x": rows[2]}])
    assert given_apart.embeddings_RE.tobytes() == in_records.embeddings_RE.tobytes()


@given(st.lists(st.floats() | st.integers(-9, 9).map(float), max_size=9))
def test_a_column_of_bids_is_that_of_the_items_one_by_one(values: list[float]) -> None:
    schema = small_schema()
    assert schema.bid is not None
    one_by_one = np.array([schema.bid_of({schema.bid: value}) for value in values], np.float64)
    assert schema.bids_of([{schema.bid: value} for value in values]).tobytes() == one_by_one.tobytes()
