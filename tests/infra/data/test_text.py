"""Embeddings from text and groups of embeddings: the same every time, and near where the words are near."""

import numpy as np
import pytest

from infra.data.text import TextEmbedder, cluster_embeddings
from schemas.errors import Misconfigured

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
