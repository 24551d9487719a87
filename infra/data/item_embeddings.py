"""Embeddings of items: vectors from a file, vectors made from text columns by TF-IDF and SVD, or marks that distinguish items; groups of items by k-means.

Here: ids, width, vectors by place. Not here: events. A vector of another width is noted as rejected and left out.
The same texts and vectors give the same results: seeds are fixed, and values are rounded, so that the last bits of a parallel sum do not show.
What fits loads scikit-learn, over a second of a core; a mapping without texts and clusters never does.
Source: scikit-learn.

Arrays: P places of items with an embedding, T texts, E width, I items.
"""

import hashlib
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from infra.data.columns import decode_texts
from infra.data.mapping import Embeddings
from infra.data.spool import chunks
from infra.data.tables import LoadedRows
from schemas.errors import Misconfigured
from schemas.ids import Id
from schemas.limits import EMBEDDING_WIDTH_MAX

if TYPE_CHECKING:
    from infra.data.items import RowsById

_MARK_WIDTH = 64
_FITTED_TEXTS_MAX = 50_000
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

        fitted = list(texts[:_FITTED_TEXTS_MAX])
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


class ItemMarks:
    """Embeddings where a mapping names none, with the names of `ItemEmbeddings`. Each item has a direction of its own, by a hash of its id, so that a history
    shows how often this item was taken. With `together_IE`, vectors of what items have in common, the direction is a small part of these."""

    def __init__(self, ids: Sequence[Id], together_IE: np.ndarray | None = None) -> None:
        self.ids = ids
        self.place = {item: place for place, item in enumerate(ids)}
        self._plain_IE = np.zeros((len(ids), _MARK_WIDTH)) if together_IE is None else together_IE
        self.width = self._plain_IE.shape[1]

    def vectors(self, places: np.ndarray) -> list[list[float] | None]:
        """The marks of some places."""
        return [*mark_items(self._plain_IE[places], [self.ids[place] for place in places]).tolist()]


class ItemEmbeddings:
    """Embeddings by place in `ids`; of several rows with one id the last one counts. `later`: ids whose texts must not be learnt from."""

    def __init__(self, rows: "RowsById", embedding: Embeddings, later: Collection[Id]) -> None:
        self._rows, self._column, self._embedding = rows, embedding.roles["vector"], embedding
        self._row_P, self._later = rows.latest_rows(0), frozenset(later)
        self.ids = rows.ids
        self.place = {item: place for place, item in enumerate(rows.ids)}

    @cached_property
    def width(self) -> int:
        """Numbers of an embedding."""
        if self._embedding.text_width is not None:
            return self._embedder.width
        width = self._embedding.width or self._find_width()
        if width > EMBEDDING_WIDTH_MAX:
            raise Misconfigured(
                "bad_mapping", f"[embeddings] the vectors have {width} numbers, expected at most {EMBEDDING_WIDTH_MAX}; give shorter ones"
            )
        return width

    def _find_width(self) -> int:
        cells = self._rows.table.sample.cells(self._column)
        try:
            return cells.width()
        except ValueError as error:
            expected = f"no cell of {', '.join(self._column.columns)} is {error}; the first is {cells.first()!r}"
            raise Misconfigured("bad_mapping", f"[embeddings] {expected}") from error

    def vectors(self, places: np.ndarray) -> list[list[float] | None]:
        """The embeddings of some places as they are published: with the items' marks where the mapping wants these. None if absent."""
        plain = self._plain_vectors(places)
        if not self._embedding.apart:
            return plain
        known = [at for at, vector in enumerate(plain) if vector is not None]
        marked = mark_items(np.array([plain[at] for at in known]).reshape(len(known), self.width), [self.ids[places[at]] for at in known])
        found = dict(zip(known, marked.tolist(), strict=True))
        return [found.get(at) for at in range(len(plain))]

    def _plain_vectors(self, places: np.ndarray) -> list[list[float] | None]:
        rows = self._rows_of(places)
        if self._embedding.text_width is None:
            return rows.cells(self._column, self._embedding.name).vectors(self.width)
        texts = _joined_texts(rows)
        found = self._embedder.encode([text or "" for text in texts]).tolist()
        return [vector if text is not None else None for vector, text in zip(found, texts, strict=True)]

    def _rows_of(self, places: np.ndarray) -> LoadedRows:
        return self._rows.rows_at(self._row_P[places])

    def matrix(self, ids: Sequence[Id]) -> np.ndarray:
        """Embeddings of these items without marks, zeros where one has none: [len(ids), width] float32."""
        matrix = np.zeros((len(ids), self.width), np.float32)
        wanted = np.array([(row, self.place[item]) for row, item in enumerate(ids) if item in self.place], np.int64).reshape(-1, 2)
        for rows, places in (chunk.T for chunk in chunks(wanted)):
            known = [(row, vector) for row, vector in zip(rows.tolist(), self._plain_vectors(places), strict=True) if vector is not None]
            if known:
                matrix[[row for row, _ in known]] = [vector for _, vector in known]
        return matrix

    @cached_property
    def _embedder(self) -> TextEmbedder:
        places = np.array([p for item, p in self.place.items() if item not in self._later], np.int64)
        texts: list[str] = []
        for chunk in chunks(places):
            texts += [text for text in _joined_texts(self._rows_of(chunk)) if text is not None]
            if len(texts) >= _FITTED_TEXTS_MAX:
                break
        assert self._embedding.text_width is not None
        return TextEmbedder(texts, self._embedding.text_width)


def _joined_texts(rows: LoadedRows) -> list[str | None]:
    """The text columns of each row as one text; None where all are empty."""
    columns = [decode_texts(array) for array in rows.arrays(rows.of.source.roles["vector"])]
    return [" ".join(text for text in texts if text) or None for texts in zip(*columns, strict=True)]
