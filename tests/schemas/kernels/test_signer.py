"""The compiled signatures are those of Equation 5, to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.kernels.products import BLOCK
from schemas.kernels.signer import Signer
from schemas.model.lsh import EMBEDDING_GRID_BITS, encode_signatures, make_w_hash


@given(st.integers(1, 20), st.sampled_from([8, 16, 64, 136]), st.integers(0, 2 * BLOCK + 1), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_signatures_of_any_embeddings_are_those_of_the_specification(width: int, bits: int, rows: int, seed: int) -> None:
    rng, w_hash_KM = np.random.default_rng(seed), make_w_hash(seed, bits, width)
    mm_RM = (rng.standard_normal((rows, width)) * 2.0 ** rng.integers(-149, 127, (rows, 1))).astype(np.float32)
    mm_RM[rng.random((rows, width)) < 0.2] = 0
    mm_RM[rng.random(rows) < 0.2] = 0
    places = np.flatnonzero(rng.random(rows) < 0.8)
    table = np.full(rows, 7, [("a", np.uint8), ("signature", np.uint8, (bits // 8,)), ("b", np.uint8)])
    table.view(np.uint8)[:] = 7
    Signer(w_hash_KM, EMBEDDING_GRID_BITS).sign_into(mm_RM, places, table["signature"])
    assert (table["signature"][places] == encode_signatures(mm_RM[places], w_hash_KM)).all()
    assert (np.delete(table["signature"], places, axis=0) == 7).all() and (table["a"] == 7).all() and (table["b"] == 7).all()


def test_the_greatest_and_the_least_numbers_are_signed() -> None:
    w_hash_KM, one = make_w_hash(3, 16, 2), np.finfo(np.float32)
    mm_RM = np.array([[one.max, -one.max], [one.smallest_subnormal, 0], [-one.tiny, one.tiny], [0, 0]], np.float32)
    signatures_RW = np.zeros((4, 2), np.uint8)
    Signer(w_hash_KM, EMBEDDING_GRID_BITS).sign_into(mm_RM, np.arange(4), signatures_RW)
    assert (signatures_RW == encode_signatures(mm_RM, w_hash_KM)).all()
