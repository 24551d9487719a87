"""Signatures (Eq. 5), similarity (Eq. 6), and that their bits are the same everywhere."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from schemas.errors import RejectedInput
from schemas.limits import EMBEDDING_WIDTH_MAX
from schemas.model.lsh import encode_signatures, is_on_grid, lsh_similarity, lsh_version, make_w_hash


def test_the_bits_00110101_are_packed_as_the_byte_53():
    w_hash = np.eye(8, dtype=np.float32)
    signs = np.array([[-1, -1, 1, 1, -1, 1, -1, 1]], np.float32)
    assert encode_signatures(signs, w_hash).tolist() == [[53]]


def test_the_sign_of_zero_gives_the_bit_zero():
    assert encode_signatures(np.zeros((1, 8), np.float32), make_w_hash(0, 16, 8)).tolist() == [[0, 0]]


def test_equation_5_as_a_loop_gives_the_same_bits():
    w_hash, mm = make_w_hash(3, 24, 10), np.random.default_rng(0).standard_normal((20, 10)).astype(np.float32)
    for row, packed in zip(mm, encode_signatures(mm, w_hash), strict=True):
        bits = "".join("1" if sum(float(a) * float(b) for a, b in zip(row, w, strict=True)) > 0 else "0" for w in w_hash)
        assert bytes(packed.tolist()) == int(bits, 2).to_bytes(3, "big")


def test_every_partial_sum_of_the_widest_embedding_is_exact():
    rng = np.random.default_rng(1)
    w_hash = make_w_hash(2, 8, EMBEDDING_WIDTH_MAX)
    mm = (rng.random((4, EMBEDDING_WIDTH_MAX)) * 2 - 1) * 10.0 ** rng.integers(-3, 3, (4, EMBEDDING_WIDTH_MAX))
    scaled = np.rint(np.ldexp(mm, 20 - np.frexp(np.abs(mm).max(1))[1][:, None]))
    exact = [
        [sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, w, strict=True)), Fraction(0)) for w in w_hash] for row in scaled
    ]
    assert (scaled @ w_hash.astype(np.float64).T).tolist() == [[float(x) for x in row] for row in exact]
    assert all(Fraction(float(x)) == x for row in exact for x in row)


@given(st.integers(0, 2**32 - 1))
def test_signatures_do_not_depend_on_the_order_of_the_sum_the_batch_or_the_scale(seed):
    rng = np.random.default_rng(seed)
    w_hash, mm = make_w_hash(5, 64, 32), rng.standard_normal((7, 32)).astype(np.float32)
    expected, order = encode_signatures(mm, w_hash), rng.permutation(32)
    assert (encode_signatures(mm[:, order], w_hash[:, order]) == expected).all()
    assert (encode_signatures(mm * 2.0 ** float(rng.integers(-30, 30)), w_hash) == expected).all()
    assert (np.concatenate([encode_signatures(row[None], w_hash) for row in mm]) == expected).all()


@given(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=6)), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_similarity_is_the_share_of_equal_bits(items, length, seed):
    sequence = np.random.default_rng(seed).integers(0, 256, (length, items.shape[1]), np.uint8)
    similarity = lsh_similarity(items, sequence)
    for i, item in enumerate(items):
        for j, behaviour in enumerate(sequence):
            a, b = (f"{int.from_bytes(x.tobytes(), 'big'):0{8 * len(x)}b}" for x in (item, behaviour))
            assert similarity[i, j] == sum(p == q for p, q in zip(a, b, strict=True)) / len(a)


def test_similar_embeddings_have_similar_signatures():
    rng, w_hash = np.random.default_rng(0), make_w_hash(0, 256, 32)
    mm = rng.standard_normal((1, 32))
    near, far = mm + 0.1 * rng.standard_normal((1, 32)), -mm
    signature, *others = (encode_signatures(x, w_hash) for x in (mm, near, far))
    assert lsh_similarity(signature, others[0])[0, 0] > 0.9
    assert lsh_similarity(signature, others[1])[0, 0] == 0.0


def test_a_w_hash_is_on_the_grid_and_a_shifted_one_is_not():
    w_hash = make_w_hash(0, 32, 16)
    assert w_hash.dtype == np.float32 and is_on_grid(w_hash)
    assert not is_on_grid(w_hash + np.float32(2**-12))
    assert not is_on_grid(w_hash * 8) and not is_on_grid(np.full((8, 8), np.nan, np.float32))


def test_the_lsh_version_changes_with_a_bit_of_w_hash_the_feature_and_the_shape():
    w_hash = make_w_hash(0, 16, 16)
    changed = w_hash.copy()
    changed[3, 3] += 2**-10
    versions = {lsh_version(w, f) for w, f in ((w_hash, "image"), (changed, "image"), (w_hash, "text"), (w_hash.reshape(32, 8), "image"))}
    assert len(versions) == 4 and all(len(v) == 16 for v in versions)
    assert lsh_version(w_hash.copy(order="F"), "image") == lsh_version(w_hash, "image")


def test_golden_signatures_of_a_fixed_w_hash():
    w_hash = ((np.arange(64 * 8) * 37 % 101 - 50) / 1024).astype(np.float32).reshape(64, 8)
    mm = (np.arange(16).reshape(2, 8) * 29 % 17 - 8.0) / 3
    assert [row.tobytes().hex() for row in encode_signatures(mm, w_hash)] == ["807e01f803f00fc0", "1fe03fc0ff01fc07"]


@pytest.mark.parametrize("mm", [np.full((1, 8), np.nan), np.full((1, 8), np.inf), np.zeros((1, 7)), np.zeros(8)])
def test_an_embedding_that_is_not_finite_or_of_another_width_is_rejected(mm):
    with pytest.raises(RejectedInput, match="bad_embedding"):
        encode_signatures(mm, make_w_hash(0, 16, 8))
