"""A new kind is one class and one line: the ones of the how-to guide, from a mapping to the input of every network."""

import json
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import schemas.kinds
from infra.data.mapped_catalogue import MappedCatalogue
from infra.data.mapping import read_mapping
from schemas.errors import Misconfigured
from schemas.features import FeatureSchema, Scope, decode_feature_schema, encode_features
from schemas.kinds import KINDS
from schemas.model.embeddings import FeatureEmbedding
from schemas.model.feature_places import plan_features
from schemas.model.inputs import FeatureTensors
from schemas.model.item_network import ItemNetwork
from schemas.model.network import AifNetwork
from schemas.model.parameters import parameters_of
from schemas.model.spec import ModelSpec
from serving.engine.call_one.user_weights import EmbeddedFeatures
from tests.schemas.model.samples import encode_rows

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-feature-kind.md"
MAPPING = """[items]
file = "items.csv"
id = "id"
[items.features]
opens = { column = "opens", kind = "clock" }
price = "price"
"""


@pytest.fixture
def schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSchema:
    """What a mapping with the kind of the guide gives."""
    monkeypatch.setitem(KINDS, "clock", KINDS["numeric"])  # so that the kind is gone after the test
    names = dict(vars(schemas.kinds))
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(code, names)
    return _open(tmp_path).schema


def _open(folder: Path) -> MappedCatalogue:
    (folder / "items.csv").write_text("id,opens,price\n1,6,2.5\n2,18,3.5\n3,,7.5\n")
    (folder / "shop.toml").write_text(MAPPING)
    return MappedCatalogue(read_mapping(folder / "shop.toml"), folder)


def test_a_mapping_gives_events_with_the_raw_values(schema: FeatureSchema, tmp_path: Path) -> None:
    assert [event.features.get("opens") for event in _open(tmp_path).items()] == [6.0, 18.0, None]
    assert schema.item("opens").kind is KINDS["clock"] and schema.item("opens").width == 2


def test_a_schema_survives_json_and_another_process(schema: FeatureSchema) -> None:
    assert decode_feature_schema(json.loads(json.dumps(schema.to_dict()))) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_every_form_of_the_network_reads_the_same_input(schema: FeatureSchema, tmp_path: Path) -> None:
    features = tuple(f for f in schema.of(Scope.ITEM) if f.name in ("opens", "price"))
    raw = [event.features for event in _open(tmp_path).items()]
    block = encode_features(features, raw)
    assert block.embeddings_RE.tolist() == pytest.approx(np.array([[1, 0], [-1, 0], [0, 0]]), abs=1e-6)
    tensors = FeatureEmbedding(features, embedding_width=3)(FeatureTensors.from_block(block)).numpy()
    without_torch = EmbeddedFeatures(features, 3, None)
    assert plan_features(features, 3).width == 3 and tensors.tolist() == without_torch.embed(block).tolist()
    assert [without_torch.embed_one(r).tolist() for r in raw] == tensors.tolist()
    network = AifNetwork(ModelSpec(schema, width=8, bridges=2, embedding_width=3, item_hidden=(8,), rank_by="click"), None)
    items = encode_features(schema.item_half_inputs, raw)
    compiled, reference = ItemNetwork(parameters_of(network)).encode(items), encode_rows(network, items)
    assert np.array_equal(compiled.vectors_RD, reference.vectors_RD) and np.array_equal(compiled.bridge_RN, reference.bridge_RN)


def test_a_wrong_parameter_is_refused_with_the_expectation(schema: FeatureSchema) -> None:
    raw = schema.to_dict()
    raw["features"][0]["width"] = 3
    with pytest.raises(Misconfigured, match=r"clock.*width = 3, expected 2"):
        decode_feature_schema(raw)
    assert math.isclose(np.hypot(*schema.item("opens").encode([5])[0]), 1)
