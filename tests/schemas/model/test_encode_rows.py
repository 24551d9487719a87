"""The one encoder: a row has the same bits wherever and with whatever it is encoded."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.features import FeatureBlock
from schemas.limits import ENCODE_BLOCK_ROWS
from schemas.model.encode_rows import encode_rows, encoder_fingerprint
from tests.schemas.model.samples import SPECS, encode_items, make_items, make_network

NETWORK = make_network(SPECS["full"])
ITEMS = encode_items(NETWORK.spec, make_items(600))
WHOLE = encode_rows(NETWORK, ITEMS)


def take(block, index):
    return FeatureBlock(block.categorical_RC[index], block.numeric_RN[index], block.bags_RBV[index], block.embeddings_RE[index])


def same_bits(a, b):
    return (a.view(np.uint16) == b.view(np.uint16)).all()


@pytest.mark.parametrize("place", [0, 1, 100, 127, 128, 254, 255])
def test_a_row_alone_and_at_any_place_of_a_block_has_the_same_bits(place):
    alone = encode_rows(NETWORK, take(ITEMS, [300]))
    rng = np.random.default_rng(place)
    others = rng.choice(600, ENCODE_BLOCK_ROWS)
    others[place] = 300
    crowded = encode_rows(NETWORK, take(ITEMS, others))
    assert same_bits(alone.vectors_RD[0], crowded.vectors_RD[place]) and same_bits(alone.bridge_RN[0], crowded.bridge_RN[place])


@given(st.integers(1, 600), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_rows_in_any_order_and_number_have_the_same_bits(rows, seed):
    index = np.random.default_rng(seed).permutation(600)[:rows]
    found = encode_rows(NETWORK, take(ITEMS, index))
    assert same_bits(found.vectors_RD, WHOLE.vectors_RD[index]) and same_bits(found.bridge_RN, WHOLE.bridge_RN[index])


def test_the_number_of_threads_does_not_change_the_bits():
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = encode_rows(NETWORK, ITEMS)
            assert same_bits(found.vectors_RD, WHOLE.vectors_RD) and same_bits(found.bridge_RN, WHOLE.bridge_RN)
    finally:
        torch.set_num_threads(before)


def test_stored_rows_are_the_item_half_rounded_to_fp16():
    from schemas.model.inputs import FeatureTensors

    vectors, bridge = NETWORK.item_rows(FeatureTensors.from_block(ITEMS))
    np.testing.assert_allclose(WHOLE.vectors_RD, vectors.detach().numpy(), rtol=2**-10, atol=1e-5)
    np.testing.assert_allclose(WHOLE.bridge_RN, bridge.detach().numpy(), rtol=2**-10, atol=1e-5)
    assert WHOLE.vectors_RD.dtype == WHOLE.bridge_RN.dtype == np.float16


def test_no_rows_encode_to_no_rows():
    none = encode_rows(NETWORK, take(ITEMS, []))
    assert none.vectors_RD.shape == (0, 8) and none.bridge_RN.shape == (0, 3)


def test_the_fingerprint_names_what_bits_depend_on_and_is_stable():
    fingerprint = encoder_fingerprint()
    assert torch.__version__ in fingerprint and "block=256" in fingerprint and "dtype=float64" in fingerprint
    encoder_fingerprint.cache_clear()
    assert encoder_fingerprint() == fingerprint and " " not in fingerprint


def test_threads_that_share_a_network_do_not_disturb_one_another():
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: encode_rows(NETWORK, ITEMS), range(40)):
            assert same_bits(found.vectors_RD, WHOLE.vectors_RD) and same_bits(found.bridge_RN, WHOLE.bridge_RN)
    assert all(parameter.dtype == torch.float32 for parameter in NETWORK.parameters())
