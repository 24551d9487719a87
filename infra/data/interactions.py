"""Who did what with which item when, as columns in order of time. The one form for histories, counts, samples and measures.

Here: ids to codes, times, kinds. Not here: what is sampled or measured from them (sampled_impressions.py).
Rows of equal time keep the order of the file. Where a source has no times, the row number stands for it (in milliseconds).

Arrays: X interactions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.data.columns import Array, decode_ids, decode_texts, decode_times, plain
from infra.data.tables import LoadedTable
from schemas.ids import Id, IdKind
from schemas.limits import NAME_CHARS_MAX

DEFAULT_KIND = "click"


@dataclass(frozen=True)
class Interactions:
    """`user_X` and `item_X` are places in `user_ids` and `item_ids`; `kind_X` in `kinds`; `row_X` rows of the loaded table."""

    user_ids: Sequence[Id]
    item_ids: Sequence[Id]
    kinds: tuple[str, ...]
    user_X: np.ndarray
    item_X: np.ndarray
    kind_X: np.ndarray
    time_X: np.ndarray
    row_X: np.ndarray

    def __len__(self) -> int:
        return len(self.time_X)

    def before(self, time_ms: int) -> int:
        """How many are strictly before a time: rows of one basket are never each other's history."""
        return int(np.searchsorted(self.time_X, time_ms, "left"))

    def take(self, chosen: np.ndarray) -> "Interactions":
        """Some of them, by a mask or by places."""
        columns = (column[chosen] for column in (self.user_X, self.item_X, self.kind_X, self.time_X, self.row_X))
        return Interactions(self.user_ids, self.item_ids, self.kinds, *columns)


def read_interactions(table: LoadedTable, kind: IdKind, items: Sequence[Id]) -> Interactions:
    """The interactions of a table with the roles user and item, and where there are such time and kind. Places of `items` come first
    in `item_ids`. A row without user, item or time is rejected."""
    user_X, users = encode_ids(table.array("user"), kind, ())
    item_X, item_ids = encode_ids(table.array("item"), kind, items)
    time_X = read_times(table, "time")
    kind_X, kinds = _kinds(table)
    usable = (user_X >= 0) & (item_X >= 0) & (time_X >= 0)
    for name, column in (("item", item_X), ("user", user_X), ("time", time_X)):
        for row in np.flatnonzero(column < 0).tolist():
            table.reject(row, f"no usable {name}")
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(time_X[rows], kind="stable")]
    return Interactions(users, item_ids, kinds, user_X[rows], item_X[rows], kind_X[rows], time_X[rows], rows)


def read_times(table: LoadedTable, role: str) -> np.ndarray:
    """Times of a role in ms, [rows]; the row number where the mapping names no column."""
    if not table.has(role):
        return np.arange(1, len(table) + 1)
    column = table.source.roles[role]
    return decode_times(table.array(role), column.time_unit, column.time_format)


def encode_ids(array: Array, kind: IdKind, known: Sequence[Id]) -> tuple[np.ndarray, list[Id]]:
    """(places int64, -1 where a cell holds no id; the ids by place, `known` first)."""
    encoded = plain(array).dictionary_encode()
    places: dict[Id, int] = {item: place for place, item in enumerate(known)}
    of_value = np.array(
        [-1 if i is None else places.setdefault(i, len(places)) for i in decode_ids(encoded.dictionary, kind)] + [-1], np.int64
    )
    codes = encoded.indices.fill_null(len(of_value) - 1).to_numpy(zero_copy_only=False)
    return of_value[codes], list(places)


def _kinds(table: LoadedTable) -> tuple[np.ndarray, tuple[str, ...]]:
    """Kinds by number of rows, then by name: the order does not depend on the file's."""
    if not table.has("kind"):
        return np.zeros(len(table), np.int64), (DEFAULT_KIND,)
    names = np.array([kind_name(text) for text in decode_texts(table.array("kind"))], object)
    if not len(names):
        return np.zeros(0, np.int64), (DEFAULT_KIND,)
    found, code_X, count = np.unique(names.astype(str), return_inverse=True, return_counts=True)
    order = np.lexsort((found, -count))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[code_X], tuple(str(found[o]) for o in order)


def kind_name(text: str | None) -> str:
    """A kind of behaviour as events spell it: "add to cart" becomes add_to_cart."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", (text or "other").strip())[:NAME_CHARS_MAX]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:NAME_CHARS_MAX]


def clicked_only(table: LoadedTable, clicked: np.ndarray) -> LoadedTable:
    """The clicked rows of a table of impressions."""
    return table.take(np.flatnonzero(clicked))


def times_of_constant(value: object) -> int:
    """A time as a mapping writes it, in ms; -1 if it is none."""
    return int(decode_times(pa.array([value]))[0])
