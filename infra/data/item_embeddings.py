"""Multimodal embeddings of a mapped catalogue: vectors of a file, or made from its text columns.

Here: ids, width, vectors by place. Not here: events. A vector of another width is noted as rejected and left out.

Arrays: P places of items with an embedding.
"""

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from infra.data.columns import decode_texts
from infra.data.feature_values import decode_rows_of_vectors
from infra.data.inferred_schema import infer_width
from infra.data.interactions import encode_ids
from infra.data.mapping import DataMapping
from infra.data.tables import LoadedTable
from infra.data.text import TextEmbedder
from schemas.errors import Misconfigured
from schemas.ids import Id, IdKind
from schemas.limits import EMBEDDING_WIDTH_MAX

_CHUNK = 4_096


class ItemEmbeddings:
    """Embeddings by place in `ids`; of several rows with one id the last counts. `later` = ids that texts may not be learned from."""

    def __init__(self, table: LoadedTable, mapping: DataMapping, kind: IdKind, later: Collection[Id]) -> None:
        self._table, self._column, self._mapping = table, table.source.roles["vector"], mapping
        place_R, ids = encode_ids(table.array("id"), kind, ())
        self.ids: Sequence[Id] = ids
        for row in np.flatnonzero(place_R < 0).tolist():
            table.reject(row, "no usable id")
        self._row_P = np.zeros(len(ids), np.int64)
        rows = np.flatnonzero(place_R >= 0)
        self._row_P[place_R[rows]] = rows
        self._later = frozenset(later)
        self.place = {item: place for place, item in enumerate(ids)}

    @cached_property
    def width(self) -> int:
        """Numbers of an embedding."""
        if self._mapping.text is not None:
            return self._embedder.width
        width = self._mapping.embedding_width or infer_width(self._table.arrays(self._column), self._column.separator)
        if width > EMBEDDING_WIDTH_MAX:
            raise Misconfigured("bad_mapping", f"[embeddings] the vectors have {width} numbers, expected at most {EMBEDDING_WIDTH_MAX}")
        return width

    def vectors(self, places: np.ndarray) -> list[list[float] | None]:
        """The embeddings of some places; None where there is none."""
        rows = self._table.take(self._row_P[places])
        if self._mapping.text is None:
            return decode_rows_of_vectors(rows, self._column, self.width, self._mapping.embedding_name)
        texts = _joined_texts(rows)
        found = self._embedder.encode([text or "" for text in texts]).tolist()
        return [vector if text is not None else None for vector, text in zip(found, texts, strict=True)]

    def matrix(self, ids: Sequence[Id]) -> np.ndarray:
        """Embeddings of these items, zeros where one has none: [len(ids), width] float32."""
        matrix = np.zeros((len(ids), self.width), np.float32)
        wanted = np.array([(row, self.place[item]) for row, item in enumerate(ids) if item in self.place], np.int64).reshape(-1, 2)
        for first in range(0, len(wanted), _CHUNK):
            rows, places = wanted[first : first + _CHUNK].T
            known = [(row, vector) for row, vector in zip(rows.tolist(), self.vectors(places), strict=True) if vector is not None]
            if known:
                matrix[[row for row, _ in known]] = [vector for _, vector in known]
        return matrix

    @cached_property
    def _embedder(self) -> TextEmbedder:
        places = np.array([p for item, p in self.place.items() if item not in self._later], np.int64)
        texts = [text for text in _joined_texts(self._table.take(self._row_P[places])) if text is not None]
        assert self._mapping.text is not None
        return TextEmbedder(texts, self._mapping.text.width)


def _joined_texts(rows: LoadedTable) -> list[str | None]:
    """The text columns of each row as one text; None where all are empty."""
    columns = [decode_texts(array) for array in rows.arrays(rows.source.roles["vector"])]
    return [" ".join(text for text in texts if text) or None for texts in zip(*columns, strict=True)]
