"""The reference of stored rows: the item half, rounded."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from schemas.features import FeatureBlock
from schemas.model.encode_rows import encode_rows
from schemas.model.inputs import FeatureTensors
from tests.schemas.model.samples import SPECS, encode_items, make_items, make_network

NETWORK = make_network(SPECS["full"])
ITEMS = encode_items(NETWORK.spec, make_items(300))
WHOLE = encode_rows(NETWORK, ITEMS)


def take(block, index):
    return FeatureBlock(block.categorical_RC[index], block.numeric_RN[index], block.bags_RBV[index], block.embeddings_RE[index])


def same_bits(a, b):
    return (a.view(np.uint16) == b.view(np.uint16)).all()


def test_rows_in_another_order_have_the_same_bits():
    index = np.random.default_rng(0).permutation(300)
    found = encode_rows(NETWORK, take(ITEMS, index))
    assert same_bits(found.vectors_RD, WHOLE.vectors_RD[index]) and same_bits(found.bridge_RN, WHOLE.bridge_RN[index])


def test_stored_rows_are_the_item_half_rounded_to_fp16():
    vectors, bridge = NETWORK.item_rows(FeatureTensors.from_block(ITEMS))
    np.testing.assert_allclose(WHOLE.vectors_RD, vectors.detach().numpy(), rtol=2**-10, atol=1e-5)
    np.testing.assert_allclose(WHOLE.bridge_RN, bridge.detach().numpy(), rtol=2**-10, atol=1e-5)
    assert WHOLE.vectors_RD.dtype == WHOLE.bridge_RN.dtype == np.float16


def test_no_rows_encode_to_no_rows():
    none = encode_rows(NETWORK, take(ITEMS, []))
    assert none.vectors_RD.shape == (0, 8) and none.bridge_RN.shape == (0, 3)


def test_threads_that_share_a_network_do_not_disturb_one_another():
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: encode_rows(NETWORK, ITEMS), range(20)):
            assert same_bits(found.vectors_RD, WHOLE.vectors_RD) and same_bits(found.bridge_RN, WHOLE.bridge_RN)
    assert all(parameter.dtype == torch.float32 for parameter in NETWORK.parameters())
