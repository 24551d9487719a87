"""A small feature schema with every kind of feature, for tests of formats and of the fold."""

from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import IdKind
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.spec import ModelSpec

FEATURES = (
    Feature("category", Scope.ITEM, CATEGORICAL, buckets=50),
    Feature("price", Scope.ITEM, NUMERIC, default=1.0),
    Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
    Feature("tags", Scope.ITEM, BAG, buckets=100),
    Feature("image", Scope.ITEM, EMBEDDING, width=16),
    Feature("country", Scope.USER, CATEGORICAL, buckets=20),
    Feature("hour", Scope.CONTEXT, NUMERIC),
)


def small_schema(id_kind: IdKind = IdKind.INT64) -> FeatureSchema:
    return FeatureSchema(FEATURES, id_kind=id_kind, sim_category="category", bid="price", multimodal="image")


def small_spec(id_kind: IdKind = IdKind.INT64) -> ModelSpec:
    return ModelSpec(small_schema(id_kind), width=4, bridges=2, hash_bits=16)
