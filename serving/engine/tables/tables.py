"""One version's rows in an arena: look-up, and changes by the row-stamp rule.

One thread writes (the engine's; during a load the loader process), so a reader in that thread never sees half a change (I3).
A change replaces a row only if neither component's stamp goes back and at least one advances. So changes may come twice, late, or in any order.
Everything below `covered`, the watermark's next offset of item-features, is in the tables already. So an id that they do not have is deleted there, and a
change below `covered` does not bring it back. A delete below it need not be remembered: its row is free for another id.

Arrays: R rows, C ids or changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.ids import Id, IdKind
from schemas.index.layout import STAMP, Column, RowLayout
from schemas.kernels.compiled import int64, kernel
from serving.engine.tables.arena import GROW_AT, ArenaPlan, open_arrays, plan_arrays, reset_arrays
from serving.engine.tables.changes import Changes, IdArray, TextIds, encode_ids, list_ids, pack_stamps
from serving.engine.tables.lookup import (
    BLOCK,
    FULL,
    HEADER_DEAD,
    HEADER_FREE_COUNT,
    HEADER_ID_BYTES,
    HEADER_ROWS,
    NO_STAMP,
    UNKNOWN,
    find_int64,
    find_text,
    forget_int64,
    forget_text,
    place_int64,
    place_text,
)

UNPLACED_MAX = 100_000  # ids that found no room and are counted


@dataclass(frozen=True, slots=True)
class Applied:
    """How many changes did what. `rows`: numbers of the rows that were written, in order of time, possibly repeated; `refused`: changes of new
    ids without room."""

    applied: int
    superseded: int
    refused: int
    rows: np.ndarray


class Room(NamedTuple):
    """What a version takes of an arena: rows, bytes of text ids (0 for other ids)."""

    rows: int
    id_bytes: int


NO_ROOM = Room(0, 0)


@kernel
def decide_newer(
    row_C: np.ndarray,
    stamps_C3: np.ndarray,
    dead_C: np.ndarray,
    covered: int,
    stamps_R3: np.ndarray,
    dead_R: np.ndarray,
    header: np.ndarray,
) -> None:
    """Goes through the changes in order. A change that is not newer gets row -1; a newer one writes its stamp and its delete flag.

    A delete below `covered` counts as an id that is not there: only a change that is not below it replaces it, whatever the stamp of its embedding.
    """
    for i in range(row_C.shape[0]):
        row = row_C[i]
        if row < 0:
            continue
        new, old = stamps_C3[i], stamps_R3[row]
        is_gone = dead_R[row] != 0 and old[1] < covered
        features = 1 if new[0] > old[0] else (-1 if new[0] < old[0] else 0)
        if features == 0:
            features = 1 if new[1] > old[1] else (-1 if new[1] < old[1] else 0)
        embedding = 1 if new[2] > old[2] else (-1 if new[2] < old[2] else 0)
        is_older = new[1] < covered if is_gone else features < 0 or embedding < 0 or (features == 0 and embedding == 0)
        if is_older:
            row_C[i] = UNKNOWN
            continue
        for part in range(3):
            old[part] = new[part]
        header[HEADER_DEAD] += int64(dead_C[i]) - int64(dead_R[row])
        dead_R[row] = dead_C[i]


@kernel
def _hide_dead(row_C: np.ndarray, dead_R: np.ndarray) -> None:
    for i in range(row_C.shape[0]):
        if row_C[i] >= 0 and dead_R[row_C[i]] != 0:
            row_C[i] = UNKNOWN


class Tables:
    """A version in an arena. `columns[name]` = array [R] or [R, width] as stored; `arrays` as `open_arrays` gives them."""

    def __init__(self, layout: RowLayout, plan: ArenaPlan, arrays: Mapping[str, np.ndarray]) -> None:
        self.layout = layout
        self.plan = plan
        self.columns = {c.name: arrays[f"column.{c.name}"] for c in layout.columns}
        self._arrays = dict(arrays)
        self._header, self._stamps_R3, self._dead_R = arrays["header"], arrays["stamps"], arrays["dead"]
        self._unplaced: set[int | bytes] = set()

    @property
    def used(self) -> int:
        """Rows in use: live rows and remembered deletes."""
        return int(self._header[HEADER_ROWS] - self._header[HEADER_FREE_COUNT])

    @property
    def needs_growth(self) -> bool:
        """Whether more than GROW_AT of the arena is in use, or items have found no room. Text ids count with the bytes of forgotten ones."""
        id_bytes = int(self._header[HEADER_ID_BYTES]) / max(1, self.plan.id_bytes)
        return self.not_servable > 0 or max(self.used / self.capacity, id_bytes) > GROW_AT

    def measure_room(self) -> Room:
        """The room that live items and those without room take. From any thread: an estimate while changes come."""
        rows, is_text = self.rows + self.not_servable, self.layout.id_kind is IdKind.TEXT
        if not is_text:
            return Room(rows, 0)
        live_R = self._dead_R[: int(self._header[HEADER_ROWS])] == 0
        id_bytes = int(np.diff(self._arrays["id_spans"][: len(live_R)][live_R]).sum())
        return Room(rows, id_bytes + sum(len(one) for one in list(self._unplaced) if isinstance(one, bytes)))

    @property
    def rows(self) -> int:
        """Live rows."""
        return int(self._header[HEADER_ROWS] - self._header[HEADER_DEAD])

    @property
    def capacity(self) -> int:
        """Rows in all."""
        return self.plan.capacity

    @property
    def not_servable(self) -> int:
        """Live items that found no room, UNPLACED_MAX at most."""
        return len(self._unplaced)

    def find_any(self, ids: IdArray) -> np.ndarray:
        """int64 [C]: row of each id, deleted ones included; -1 = never seen."""
        row_C, a = np.empty(len(ids), np.int64), self._arrays
        if isinstance(ids, TextIds):
            find_text(ids.bytes_N, ids.starts_C, a["id_spans"], a["id_bytes"], a["table"], np.empty(BLOCK, np.uint64), row_C)
        else:
            find_int64(ids, a["table"], row_C)
        return row_C

    def find(self, ids: IdArray) -> np.ndarray:
        """int64 [C]: row of each live item, -1 for an id that is unknown or deleted."""
        row_C = self.find_any(ids)
        _hide_dead(row_C, self._dead_R)
        return row_C

    def id_at(self, row: int) -> Id:
        """The id in a row."""
        if self.layout.id_kind is IdKind.TEXT:
            start, end = self._arrays["id_spans"][row]
            return bytes(self._arrays["id_bytes"][start:end]).decode()
        return int(self._arrays["ids"][row])

    def rows_at(self, row_C: np.ndarray) -> np.ndarray:
        """Copies of rows as they are stored, the layout's dtype [C]."""
        rows_C = np.zeros(len(row_C), self.layout.dtype)
        for name, column in self.columns.items():
            rows_C[name] = column[row_C].reshape(rows_C[name].shape)
        return rows_C

    def live_rows(self, limit: int) -> np.ndarray:
        """int64: the numbers of at most `limit` live rows, sought among four times as many."""
        return np.flatnonzero(self._dead_R[: min(int(self._header[HEADER_ROWS]), 4 * limit)] == 0)[:limit]

    def apply(self, changes: Changes, covered: int = NO_STAMP) -> Applied:
        """Changes by the row-stamp rule; new ids are appended while there is room. `covered`: packed as `covered_stamp` does."""
        row_C = self._place(changes, covered)
        refused = int((row_C == FULL).sum())
        if refused or self._unplaced:
            self._note_unplaced(changes, row_C)
        decide_newer(row_C, changes.stamps_C3, changes.dead_C, covered, self._stamps_R3, self._dead_R, self._header)
        newer = row_C >= 0
        written = newer & (changes.dead_C == 0)
        rows = row_C[written]
        for name, column in self.columns.items():
            column[rows] = changes.rows_C[name][written]  # a repeated row keeps the last value, which is the newest
        applied = int(newer.sum())
        return Applied(applied, len(changes) - applied - refused, refused, rows)

    def forget(self, ids: IdArray, covered: int) -> None:
        """Frees the rows of these ids, as far as they are deleted below `covered`."""
        a = self._arrays
        if isinstance(ids, TextIds):
            text = ids.bytes_N, ids.starts_C, covered, a["id_spans"], a["id_bytes"]
            forget_text(*text, self._stamps_R3, self._dead_R, a["table"], self._header)
        else:
            forget_int64(ids, covered, self._stamps_R3, self._dead_R, a["table"], self._header)

    def _place(self, changes: Changes, covered: int) -> np.ndarray:
        """The rows of ids. A new id gets a row with the lowest stamp and counts as deleted until a change gives it a row."""
        ids, row_C, a = changes.ids, np.empty(len(changes), np.int64), self._arrays
        rest = self._stamps_R3, self._dead_R, a["table"], self._header, row_C
        if isinstance(ids, TextIds):
            place_text(ids.bytes_N, ids.starts_C, changes.stamps_C3, covered, a["id_spans"], a["id_bytes"], *rest)
        else:
            place_int64(ids, changes.stamps_C3, covered, a["ids"], *rest)
        return row_C

    def _note_unplaced(self, changes: Changes, row_C: np.ndarray) -> None:
        """Keeps which live items have no room: a set of few ids, most often an empty one. `row_C`: where `_place` put them."""
        for one, row, dead in zip(list_ids(changes.ids), row_C.tolist(), changes.dead_C.tolist(), strict=True):
            if row == FULL and not dead and len(self._unplaced) < UNPLACED_MAX:
                self._unplaced.add(one)
            elif row >= 0 or row == FULL:
                self._unplaced.discard(one)


class Columns(NamedTuple):
    """A version's columns [R, width]: vector, bridge as uint16 (half precision), signature uint8, has_signature uint8 [R], category int32 [R],
    realtime float32."""

    vector: np.ndarray
    bridge: np.ndarray
    signature: np.ndarray
    has_signature: np.ndarray
    category: np.ndarray
    realtime: np.ndarray


def columns_of(tables: Tables) -> Columns:
    """A version's columns as the compiled passes read them; a column that the layout does not have has no elements."""

    def wide(name: str, dtype: type) -> np.ndarray:
        column = tables.columns.get(name)
        if column is None:
            return np.zeros((tables.capacity, 0), dtype)
        return column.reshape(tables.capacity, -1).view(dtype)

    return Columns(
        vector=wide("vector", np.uint16),
        bridge=wide("bridge", np.uint16),
        signature=wide("signature", np.uint8),
        has_signature=tables.columns["has_signature"],
        category=tables.columns["category"],
        realtime=wide("realtime", np.float32),
    )


def warm_tables() -> None:
    """Loads the kernels of look-up and changes from numba's cache (or compiles them), for both kinds of ids.

    Takes 1.5 s in a new process. It is done when a process starts, so that neither its first version nor its first request has to wait.
    """
    for kind, ids in ((IdKind.INT64, [1, 2]), (IdKind.TEXT, ["a", "a-longer-id"])):
        tables, encoded = make_tables(RowLayout((Column("category", "<i4", 1),), kind), ids), encode_ids(ids, kind)
        tables.find(encoded)
        tables.forget(encoded, NO_STAMP)


def make_tables(layout: RowLayout, ids: Sequence[Id]) -> Tables:
    """A few rows of zeros under these ids, in ordinary memory, to try kernels on."""
    plan = plan_arrays(layout, len(ids), sum(len(str(one)) for one in ids))
    arrays, count = open_arrays(plan, bytearray(plan.size_bytes)), len(ids)
    reset_arrays(arrays)
    tables = Tables(layout, plan, arrays)
    encoded, stamps = encode_ids(ids, layout.id_kind), pack_stamps(np.zeros(count, STAMP))
    tables.apply(Changes(encoded, stamps, np.zeros(count, np.uint8), np.zeros(count, layout.dtype)))
    return tables
