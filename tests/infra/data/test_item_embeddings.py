"""Embeddings from text and groups of embeddings: the same every time, and near where the words are near."""

import warnings

import numpy as np
import pytest

from infra.data.item_embeddings import TextEmbedder, cluster_embeddings, mark_items
from schemas.errors import Misconfigured
from schemas.model.lsh import encode_signatures, lsh_similarity, make_w_hash

TEXTS = ["blue tea pot", "red tea pot", "green tea cup", "garden gnome", "garden bench green", "wooden garden gnome"]


def test_the_same_texts_give_the_same_vectors_of_length_one() -> None:
    one, other = TextEmbedder(TEXTS, 4).encode(TEXTS), TextEmbedder(TEXTS, 4).encode(TEXTS)
    assert np.array_equal(one, other) and one.shape == (6, 4)
    assert np.allclose(np.linalg.norm(one, axis=1), 1, atol=1e-3)
    assert one[0] @ one[1] > one[0] @ one[3]


def test_fewer_words_than_numbers_give_a_narrower_vector() -> None:
    assert TextEmbedder(["a1", "b1", "a1 b1"], 64).width == 2
    assert TextEmbedder(["word"], 64).encode(["word", "else"]).tolist() == [[1.0], [0.0]]


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(Misconfigured, match="no words"):
        TextEmbedder(["", "!"], 4)


def test_clusters_are_deterministic_and_never_more_than_there_are_points() -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    groups = cluster_embeddings(points, np.ones(15, bool), 8)
    assert np.array_equal(groups, cluster_embeddings(points, np.ones(15, bool), 8))
    assert len(set(groups.tolist())) == 3 and all(len(set(groups[i : i + 5].tolist())) == 1 for i in (0, 5, 10))
    assert cluster_embeddings(points, np.zeros(15, bool), 8).tolist() == [0] * 15


def test_items_of_one_text_differ_by_their_ids_and_stay_near() -> None:
    text_TE, ids = np.repeat(np.eye(1, 96), 50, axis=0), [*range(49), "gnome"]
    marked, w_hash = mark_items(text_TE, ids), make_w_hash(0, 128, 96)
    signatures = encode_signatures(marked, w_hash)
    of_two = lsh_similarity(signatures, signatures)[np.triu_indices(50, 1)]
    # SimTier's tier of equal signatures holds the very item, the one below it the others of its text.
    assert of_two.max() < 1 and np.quantile(of_two, 0.01) >= 0.88 and of_two.mean() > 0.93
    assert np.array_equal(marked[7:9], mark_items(text_TE[:2], ids[7:9])), "as each time, whatever is asked with it"


def test_items_of_texts_without_a_known_word_are_not_equal() -> None:
    marked = mark_items(np.zeros((2, 16)), ["a", "b"])
    assert marked.any(axis=1).all() and not np.array_equal(*encode_signatures(marked, make_w_hash(0, 64, 16)))


def test_texts_that_are_all_alike_are_read_without_a_warning_of_the_library() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vectors_TE = TextEmbedder([f"nice thing {number}" for number in range(300)], 8).encode(["nice thing 7", "thing"])
    assert np.isfinite(vectors_TE).all() and vectors_TE.any(axis=1).all()
