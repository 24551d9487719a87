"""The compiled item half: torch's rows to the bit, and a row the same wherever and with whatever it is computed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.features import Feature, FeatureBlock, FeatureSchema, Scope, encode_features
from schemas.kernels.products import BLOCK
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC, Transform
from schemas.model.item_network import EncodedRows, ItemNetwork, encoder_fingerprint
from schemas.model.network import AifNetwork
from schemas.model.parameters import Parameters, parameters_of
from schemas.model.spec import ModelSpec
from tests.schemas.model.samples import SPECS, encode_items, encode_rows, make_items, make_network

NETWORK = make_network(SPECS["full"])
COMPILED = ItemNetwork(parameters_of(NETWORK))
ITEMS = encode_items(NETWORK.spec, make_items(3 * BLOCK + 5))
WHOLE = COMPILED.encode(ITEMS)


def take(block: FeatureBlock, places: object) -> FeatureBlock:
    return FeatureBlock(*(getattr(block, name)[places] for name in FeatureBlock.__slots__))


def bits(rows: EncodedRows, places: object = slice(None)) -> bytes:
    return rows.vectors_RD[places].tobytes() + rows.bridge_RN[places].tobytes()


FEATURES = st.one_of(
    st.builds(lambda buckets: {"kind": CATEGORICAL, "buckets": buckets}, st.integers(2, 40)),
    st.builds(lambda buckets: {"kind": BAG, "buckets": buckets}, st.integers(2, 40)),
    st.builds(lambda transform: {"kind": NUMERIC, "transform": transform}, st.sampled_from(Transform)),
    st.builds(lambda width: {"kind": EMBEDDING, "width": width}, st.integers(1, 20)),
)


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    features = draw(st.lists(FEATURES, min_size=1, max_size=6))
    return ModelSpec(
        FeatureSchema(tuple(Feature(f"f{i}", Scope.ITEM, **feature) for i, feature in enumerate(features))),
        width=draw(st.integers(1, 40)),
        bridges=draw(st.integers(1, 20)),
        embedding_width=draw(st.integers(1, 11)),
        item_hidden=tuple(draw(st.lists(st.integers(1, 40), max_size=3))),
        rank_by="click",
    )


@given(specs(), st.integers(0, 2**32 - 1), st.integers(0, 2 * BLOCK + 1))
@settings(max_examples=25, deadline=None)
def test_rows_of_any_model_are_those_of_torch(spec: ModelSpec, seed: int, rows: int) -> None:
    torch.manual_seed(seed)
    network, rng = AifNetwork(spec, None), np.random.default_rng(seed)
    features = spec.schema.item_half_inputs
    raw = [{f.name: f.kind.draw(f, rng) for f in features if rng.random() < 0.9} for _ in range(rows)]
    block = encode_features(features, raw)
    expected, found = encode_rows(network, block), ItemNetwork(parameters_of(network)).encode(block)
    for a, b in ((expected.vectors_RD, found.vectors_RD), (expected.bridge_RN, found.bridge_RN)):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("name", SPECS)
def test_rows_of_every_sample_model_are_torchs_to_the_bit(name: str) -> None:
    network = make_network(SPECS[name])
    block = encode_items(network.spec, make_items(70))
    assert bits(ItemNetwork(parameters_of(network)).encode(block)) == bits(encode_rows(network, block))


@given(st.lists(st.integers(0, len(ITEMS) - 1), max_size=2 * BLOCK + 1))
@settings(max_examples=30, deadline=None)
def test_rows_in_any_company_order_and_number_have_the_same_bits(places: list[int]) -> None:
    assert bits(COMPILED.encode(take(ITEMS, np.array(places, int)))) == bits(WHOLE, np.array(places, int))


def test_a_row_has_the_same_bits_at_every_place_of_a_block() -> None:
    company, one = np.arange(BLOCK), 2 * BLOCK + 3
    for place in range(BLOCK):
        crowd = company.copy()
        crowd[place] = one
        assert bits(COMPILED.encode(take(ITEMS, crowd)), slice(place, place + 1)) == bits(WHOLE, slice(one, one + 1))


def test_threads_that_share_a_network_do_not_disturb_one_another() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert all(bits(found) == bits(WHOLE) for found in pool.map(lambda _: COMPILED.encode(ITEMS), range(20)))


def test_rows_are_written_into_columns_of_a_table_and_nowhere_else() -> None:
    table = np.full(
        len(ITEMS), 255, [("a", np.uint8), ("vector", np.float16, (8,)), ("b", np.uint8), ("bridge", np.float16, (3,)), ("c", np.uint8)]
    )
    table.view(np.uint8)[:] = 255
    COMPILED.encode_into(ITEMS, table["vector"], table["bridge"])
    assert bits(EncodedRows(table["vector"], table["bridge"])) == bits(WHOLE)
    assert all((table[name] == 255).all() for name in "abc")


def test_values_out_of_every_range_give_finite_rows() -> None:
    block = take(ITEMS, np.arange(4))
    block.numeric_RN[:], block.embeddings_RE[:] = 3e38, [[-3e38], [3e38], [1.0], [0.0]]
    found = COMPILED.encode(block)
    assert np.isfinite(found.vectors_RD).all() and np.isfinite(found.bridge_RN).all()
    assert bits(found) == bits(encode_rows(NETWORK, block))


def test_a_weight_that_is_not_a_number_shows_in_every_row() -> None:
    arrays = {name: array.copy() for name, array in parameters_of(NETWORK).arrays.items()}
    arrays["item_half.vector.0.weight"][3, 2] = arrays["item_half.key.0.bias"][1] = np.nan
    found = ItemNetwork(Parameters(NETWORK.spec, arrays)).encode(ITEMS)
    assert np.isnan(found.vectors_RD).all() and np.isnan(found.bridge_RN).all()


def test_a_bucket_outside_the_table_reads_nothing_outside_of_it() -> None:
    block = take(ITEMS, np.arange(4))
    block.categorical_RC[:], block.bags_RBV[:] = [[-(2**62)], [2**62], [10**9], [-1]], 2**62
    assert np.isfinite(COMPILED.encode(block).vectors_RD).all()


def test_weights_of_a_bridge_sum_to_one() -> None:
    sums_R = WHOLE.bridge_RN.astype(float).sum(axis=1)
    assert np.abs(sums_R - 1).max() < 3 * 2**-11


def test_the_fingerprint_says_the_arithmetic_and_is_the_same_on_every_machine() -> None:
    encoder_fingerprint.cache_clear()
    assert encoder_fingerprint() == "network=compiled-1;dtype=float64;bits=68bf76e2"
