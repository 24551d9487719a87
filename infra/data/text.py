"""Embeddings for files that have none, from text columns by TF-IDF and SVD; what tells items of one text apart; groups of items by k-means.

Here: deterministic functions of texts and vectors (fixed seeds; values rounded, so that the last bits of a parallel sum do not show).
What fits loads scikit-learn, over a second of a core; a mapping without texts never does.
Source: scikit-learn. Arrays: T texts, E width, I items.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from schemas.errors import Misconfigured
from schemas.ids import Id

FITTED_TEXTS_MAX = 50_000
_TERMS_MAX = 50_000
_DECIMALS = 4
# Of a vector's length. Two items of one text then differ in 5% of the bits of their signatures: not in SimTier's tier of equal ones (of 128 bits once in
# a thousand), and still in the tier below, from 0.9 on.
_MARK = 0.12


class TextEmbedder:
    """Words and pairs of words by TF-IDF, projected by SVD to at most `width` numbers of length 1. `width` is the width that was reached."""

    def __init__(self, texts: Sequence[str], width: int) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        fitted = list(texts[:FITTED_TEXTS_MAX])
        common = 2 if len(fitted) >= 200 else 1  # a term of one text tells nothing of another
        self._terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=common, max_features=_TERMS_MAX)
        try:
            weights = self._terms.fit_transform(fitted)
        except ValueError as error:  # no text has a word
            raise Misconfigured("bad_mapping", f"[embeddings] text: the text columns hold no words to learn from ({error})") from error
        self.width = max(1, min(width, weights.shape[1] - 1, weights.shape[0] - 1))
        self._svd = TruncatedSVD(self.width, random_state=0) if weights.shape[1] > 1 else None
        if self._svd is not None:
            with np.errstate(invalid="ignore"):  # texts that are all alike have no variance to divide by
                self._svd.fit(weights)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """[T, width] float64, rounded; zeros for a text without a known word."""
        from sklearn.preprocessing import normalize

        weights = self._terms.transform(texts)
        projected = weights.toarray() if self._svd is None else self._svd.transform(weights)
        return np.round(normalize(projected), _DECIMALS) + 0.0  # + 0.0: no minus zero


def mark_items(vectors_TE: np.ndarray, ids: Sequence[Id]) -> np.ndarray:
    """The vectors, each with a small part in a direction of the item's own, which a hash of its id gives; a vector of zeros is that alone. Rounded.

    A history tells by equal signatures how often the very item was taken; a shop where thirty items are "ice, 22 lb" would else count all of them.
    """
    count, width = vectors_TE.shape
    length_T1 = np.linalg.norm(vectors_TE, axis=1, keepdims=True)
    drawn = b"".join(hashlib.shake_128(str(item).encode()).digest(width) for item in ids)
    direction_TE = (np.frombuffer(drawn, np.uint8).reshape(count, width) / 127.5 - 1) * np.sqrt(3 / width)
    return np.round(vectors_TE + _MARK * np.where(length_T1 > 0, length_T1, 1) * direction_TE, _DECIMALS) + 0.0


def cluster_embeddings(embeddings_IE: np.ndarray, fitted_I: np.ndarray, clusters: int) -> np.ndarray:
    """The group of each item, [I] int64, by k-means fitted on the items `fitted_I` (bool)."""
    from sklearn.cluster import MiniBatchKMeans

    count = min(clusters, len(np.unique(embeddings_IE[fitted_I], axis=0)))
    if count < 2:
        return np.zeros(len(embeddings_IE), np.int64)
    means = MiniBatchKMeans(count, random_state=0, n_init=3, batch_size=4_096)
    means.fit(embeddings_IE[fitted_I])
    return means.predict(embeddings_IE).astype(np.int64)
