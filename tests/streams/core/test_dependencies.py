"""The dependency table of a model (protocol A9)."""

import pytest

from schemas.features import Feature, FeatureSchema, Scope
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC
from streams.core.item import ROW, SIGNATURE, VECTOR, dependencies_of

FEATURES = (
    Feature("brand", Scope.ITEM, CATEGORICAL, buckets=8),
    Feature("tags", Scope.ITEM, BAG, buckets=8),
    Feature("leaf", Scope.ITEM, CATEGORICAL, buckets=8, realtime=True),
    Feature("price", Scope.ITEM, NUMERIC, default=1.0),
    Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
    Feature("mm", Scope.ITEM, EMBEDDING, width=2),
    Feature("brand", Scope.USER, CATEGORICAL, buckets=8),
)
INPUT = FeatureSchema(FEATURES, sim_category="leaf", bid="price", multimodal="mm")
NOT_INPUT = FeatureSchema(FEATURES, sim_category="leaf", bid="price", multimodal="mm", multimodal_is_input=False)
NONE = FeatureSchema(FEATURES[:5], sim_category="leaf", bid="price")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"brand": "x"}, {"brand": "y"}, ROW | VECTOR),
        ({}, {"tags": ["a"]}, ROW | VECTOR),
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, ROW | VECTOR),
        ({"price": 1}, {"price": 2}, ROW),
        ({"stock": 1}, {}, ROW),
        ({"leaf": "x"}, {"leaf": "y"}, ROW),
        ({"title": "x"}, {"title": "y"}, ROW),
        ({"brand": None, "stock": 1}, {"stock": 2}, ROW),
    ],
)
def test_a_feature_makes_stale_what_reads_it(before: dict[str, object], after: dict[str, object], expected: int) -> None:
    for schema in (INPUT, NOT_INPUT, NONE):
        assert dependencies_of(schema).by_features(before, after) == expected


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1)])
def test_values_that_python_calls_equal_and_the_encoder_does_not_count_as_changed(pair: tuple[object, object]) -> None:
    table = dependencies_of(INPUT)
    assert table.by_features({"brand": pair[0]}, {"brand": pair[1]}) == ROW | VECTOR


def test_an_embedding_makes_the_signature_stale_and_the_vector_where_it_is_an_input() -> None:
    assert dependencies_of(INPUT).by_embedding == ROW | SIGNATURE | VECTOR
    assert dependencies_of(NOT_INPUT).by_embedding == ROW | SIGNATURE
    assert dependencies_of(NONE).by_embedding == ROW  # its input hash is of all bytes
