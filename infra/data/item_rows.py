"""The rows of the items' file in order of time: the item of each row, and the creation time of each item.

Here: rows in order of time (in file order if the file has no times), the latest row of each item as of a time. Not here: their values
(item_states.py). Memory: ids with their places (about 200 bytes an item); rows stay in a spool.

Arrays: I items, R rows of the file that count, in order of time. Time is in milliseconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.data.interactions import IdPlaces, read_times
from infra.data.sorted_rows import sort_into_spool
from infra.data.spool import BLOCK_ROWS, RowColumn, Spool, SpoolBounds
from infra.data.tables import LoadedRows, LoadedTable
from schemas.ids import Id, IdKind

ALWAYS = -1  # for an item without a creation time
_ITEM, _TIME, _CREATED = "#item", "#time", "#created"


@dataclass(frozen=True)
class ItemRows:
    """`item_R`: places in `ids`; `time_R`: ascending; `created_I`: creation time of each item."""

    ids: Sequence[Id]
    table: LoadedTable
    spool: Spool
    item_R: RowColumn
    time_R: RowColumn
    created_I: np.ndarray

    def rows_at(self, rows: np.ndarray) -> LoadedRows:
        """The cells of some rows."""
        return self.table.rows(self.spool.take(rows))

    def latest_rows(self, time_ms: int) -> np.ndarray:
        """The latest row of each item that is not after a time, or its oldest row if all are after it: [I] int64."""
        latest_I = np.full(len(self.ids), -1, np.int64)
        for first, item_R, time_R in self.blocks():
            early = np.flatnonzero(time_R <= time_ms)
            latest_I[item_R[early]] = first + early  # of equal places the last one stays
            late = np.flatnonzero(time_R > time_ms)[::-1]
            late = late[latest_I[item_R[late]] < 0]
            latest_I[item_R[late]] = first + late
        return latest_I

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(number of the first row, items, times), some rows at a time."""
        parts = (slice(first, first + BLOCK_ROWS) for first in range(0, len(self.spool), BLOCK_ROWS))
        return ((part.start, self.item_R[part], self.time_R[part]) for part in parts)


def read_item_rows(table: LoadedTable, kind: IdKind, bounds: SpoolBounds, known_after_ms: int = 0) -> ItemRows:
    """The items of the section [items], a row with a time known so long after it. A row without an id, or with a time that cannot be read, is rejected."""
    places = IdPlaces(kind)
    schema = table.spool.schema
    for name in (_ITEM, _TIME, _CREATED):
        schema = schema.append(pa.field(name, pa.int64()))
    spool = sort_into_spool(_usable_batches(table, schema, places, known_after_ms), schema, [_TIME], bounds)
    item_R, created_R = spool.column(_ITEM), spool.column(_CREATED)
    created_I = np.full(len(places.places), np.iinfo(np.int64).max)
    for first in range(0, len(spool), BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        np.minimum.at(created_I, item_R[part], created_R[part])
    return ItemRows(places.ids, table, spool, item_R, spool.column(_TIME), created_I)


def _usable_batches(table: LoadedTable, schema: pa.Schema, places: IdPlaces, known_after_ms: int) -> Iterator[pa.RecordBatch]:
    """The rows that have an id, and a time where there are times, with item, time and creation, in file order."""
    for rows in table.blocks():
        time_R = read_times(rows, "time") if table.has("time") else np.zeros(len(rows), np.int64)
        rows.reject_cells(time_R < 0, "time", "time")
        timed = np.flatnonzero(time_R >= 0)
        rows, time_R = rows.take(timed), time_R[timed] + (known_after_ms if table.has("time") else 0)
        created_R = read_times(rows, "created") if table.has("created") else time_R if table.has("time") else np.full(len(rows), ALWAYS)
        if table.has("created"):
            rows.reject_cells(created_R < 0, "created", "time of creation, taken as always there")
        item_R = places.encode(rows.array("id"), table.id_forms["id"])
        rows.reject_cells(item_R < 0, "id", "id")
        columns = [*rows.table.columns, *(pa.array(c, pa.int64()) for c in (item_R, time_R, created_R))]
        yield from pa.table(columns, schema=schema).filter(pa.array(item_R >= 0)).combine_chunks().to_batches()
