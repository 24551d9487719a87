"""Multimodal embeddings of a mapped catalogue: vectors from a file, vectors made from text columns, or marks that distinguish items.

Here: ids, width, vectors by place. Not here: events. A vector of another width is noted as rejected and left out.

Arrays: P places of items with an embedding.
"""

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from infra.data.columns import decode_texts
from infra.data.mapping import Embeddings
from infra.data.tables import IdPlaces, LoadedRows, LoadedTable, read_times
from infra.data.text import FITTED_TEXTS_MAX, TextEmbedder, mark_items
from schemas.errors import Misconfigured
from schemas.ids import Id, IdKind
from schemas.limits import EMBEDDING_WIDTH_MAX

_CHUNK = 4_096
_MARK_WIDTH = 64


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

    def __init__(self, table: LoadedTable, embedding: Embeddings, kind: IdKind, later: Collection[Id]) -> None:
        self._table, self._column, self._embedding = table, table.source.roles["vector"], embedding
        self._row_P, self.place, _ = read_last_rows(table, kind)
        self.ids: Sequence[Id] = list(self.place)
        self._later = frozenset(later)

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
        cells = self._table.sample.cells(self._column)
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
        rows = self._rows(places)
        if self._embedding.text_width is None:
            return rows.cells(self._column, self._embedding.name).vectors(self.width)
        texts = _joined_texts(rows)
        found = self._embedder.encode([text or "" for text in texts]).tolist()
        return [vector if text is not None else None for vector, text in zip(found, texts, strict=True)]

    def _rows(self, places: np.ndarray) -> LoadedRows:
        return self._table.take(self._row_P[places])

    def matrix(self, ids: Sequence[Id]) -> np.ndarray:
        """Embeddings of these items without marks, zeros where one has none: [len(ids), width] float32."""
        matrix = np.zeros((len(ids), self.width), np.float32)
        wanted = np.array([(row, self.place[item]) for row, item in enumerate(ids) if item in self.place], np.int64).reshape(-1, 2)
        for first in range(0, len(wanted), _CHUNK):
            rows, places = wanted[first : first + _CHUNK].T
            known = [(row, vector) for row, vector in zip(rows.tolist(), self._plain_vectors(places), strict=True) if vector is not None]
            if known:
                matrix[[row for row, _ in known]] = [vector for _, vector in known]
        return matrix

    @cached_property
    def _embedder(self) -> TextEmbedder:
        places = np.array([p for item, p in self.place.items() if item not in self._later], np.int64)
        texts: list[str] = []
        for first in range(0, len(places), _CHUNK):
            texts += [text for text in _joined_texts(self._rows(places[first : first + _CHUNK])) if text is not None]
            if len(texts) >= FITTED_TEXTS_MAX:
                break
        assert self._embedding.text_width is not None
        return TextEmbedder(texts, self._embedding.text_width)


def read_last_rows(table: LoadedTable, kind: IdKind, until_ms: int | None = None) -> tuple[np.ndarray, dict[Id, int], np.ndarray]:
    """(the last row of each id by its place, the place of each id, the time of the row in ms) of a table with ids. A row without an id is rejected.

    Last is the latest up to `until_ms` where the table has times, else the last of the file, with time 0. An id of which all rows are later has row -1.
    """
    places, timed = IdPlaces(kind), table.has("time")
    row_P, time_P, first = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for rows in table.blocks():
        place_R = places.encode(rows.array("id"), table.id_forms["id"])
        rows.reject_cells(place_R < 0, "id", "id")
        time_R = read_times(rows, "time") if timed else np.zeros(len(rows), np.int64)
        rows.reject_cells(time_R < 0, "time", "time")
        if len(places.places) > len(row_P):
            more = 2 * len(places.places) - len(row_P)
            row_P, time_P = (np.concatenate([column_P, np.full(more, empty)]) for column_P, empty in ((row_P, -1), (time_P, 0)))
        usable = np.flatnonzero((place_R >= 0) & (time_R >= 0) & (until_ms is None or time_R <= until_ms))
        latest = usable[np.argsort(time_R[usable], kind="stable")]
        latest = latest[time_R[latest] >= time_P[place_R[latest]]]
        row_P[place_R[latest]], time_P[place_R[latest]] = first + latest, time_R[latest]  # of equal places the last one stays
        first += len(rows)
    return row_P[: len(places.places)], places.places, time_P[: len(places.places)]


def _joined_texts(rows: LoadedRows) -> list[str | None]:
    """The text columns of each row as one text; None where all are empty."""
    columns = [decode_texts(array) for array in rows.arrays(rows.source.roles["vector"])]
    return [" ".join(text for text in texts if text) or None for texts in zip(*columns, strict=True)]
