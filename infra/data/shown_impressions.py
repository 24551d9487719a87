"""Impressions from a file: one row per shown item, grouped by a request column (or by user and time).

Here: rows to records. Not here: sampling from positives (sampled_impressions.py).
A request of more than 1,000 items is cut into several. An item that occurs twice in one counts once, and as clicked if any of its rows was.
Rows are sorted by time, then by request, then by the place of each request's first row, all in bounded memory (sorted_rows.py): the rows of
a request need not lie together in the file.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import decode_flags, decode_membership, decode_numbers, decode_texts, distinct, holds_flags, plain
from infra.data.interactions import Interactions, read_interactions
from infra.data.mapping import OUTCOME, Impressions
from infra.data.sorted_rows import sort_rows
from infra.data.spool import SpoolBounds
from infra.data.tables import LoadedRows, LoadedTable
from schemas.errors import Misconfigured
from schemas.events import ImpressionRecord, ShownItem
from schemas.features import Feature
from schemas.ids import Id, IdKind
from schemas.limits import ITEMS_PER_IMPRESSION_MAX, REQUEST_ID_CHARS_MAX

T = TypeVar("T")
_USER, _ITEM, _TIME, _REQUEST, _FIRST, _POSITION, _CLICKED = "#user", "#item", "#time", "#request", "#first", "#position", "#clicked"
_SORTED = (_USER, _ITEM, _TIME, _REQUEST, _FIRST, _POSITION, _CLICKED)


class ShownRows:
    """The rows of a file of impressions, with clicks and other outcomes."""

    def __init__(self, table: LoadedTable) -> None:
        assert isinstance(table.source, Impressions)
        self.table, self.outcomes = table, tuple(table.source.outcomes)
        self._words: dict[str, bool] = {}

    def clicked(self, rows: LoadedRows) -> np.ndarray:
        """Which of some rows were clicked, [R] bool. One that says neither is named, and counts as not clicked."""
        return self._flags(rows, "clicked")

    def outcomes_of(self, rows: LoadedRows) -> list[list[str]]:
        """The names of what came of each of some rows, beside the click."""
        flag_NR = {name: came_R.tolist() for name, came_R in self.flags_of(rows).items()}
        return [[name for name in self.outcomes if flag_NR[name][row]] for row in range(len(rows))]

    def flags_of(self, rows: LoadedRows) -> dict[str, np.ndarray]:
        """Whether each outcome beside the click came of each of some rows, [R] bool by name."""
        return {name: self._flags(rows, OUTCOME + name) for name in self.outcomes}

    def by_request(self, users_max: int, tell: Callable[[LoadedRows], Iterable[T]]) -> list[list[T]]:
        """What `tell` says of each row, together by request, of the first users of the file: what doubts are judged by."""
        users, found = None, dict[tuple[object, object], list[T]]()
        for rows in self.table.blocks():
            cells = plain(rows.array("user"))
            users = pc.unique(cells).drop_null()[:users_max] if users is None else users
            chosen = rows.take(np.flatnonzero(pc.is_in(cells, users).to_numpy(zero_copy_only=False)))
            request = chosen.array("request" if chosen.has("request") else "time").to_pylist()
            for user, name, told in zip(chosen.array("user").to_pylist(), request, tell(chosen), strict=True):
                found.setdefault((user, name), []).append(told)
        return list(found.values())

    def _flags(self, rows: LoadedRows, role: str) -> np.ndarray:
        cells, column = rows.array(role), self.table.source.roles[role]
        found = decode_membership(cells, column.one_of) if column.one_of else decode_flags(cells, column.at_least, self._as_words(role))
        rows.reject_cells(~found[1], role, "flag, taken as false")
        return found[0]

    def _as_words(self, role: str) -> bool:
        """Whether the cells are words like true and no: one of them in the whole column says so. Raises where no cell is a flag or a number."""
        if role not in self._words:
            self._words[role] = self._find_words(role, self.table.source.roles[role].at_least)
        return self._words[role]

    def _find_words(self, role: str, at_least: float | None) -> bool:
        if any(holds_flags(rows.array(role), at_least) for rows in self.table.blocks()):
            return True
        if len(self.table) and not any(decode_flags(rows.array(role), at_least, False)[1].any() for rows in self.table.blocks()):
            cell = next(self.table.blocks()).array(role)[0].as_py()
            name = role.removeprefix(OUTCOME)
            raise Misconfigured(
                "bad_mapping",
                f"[impressions] {role}: no cell of its column is a flag, the first is {cell!r}; "
                f'name the values that are, like {name} = {{ column = "event", in = ["click"] }}',
            )
        return False


def read_shown_requests(
    shown: ShownRows,
    kind: IdKind,
    period_ms: tuple[int, int],
    bids: Mapping[Id, float],
    context: Sequence[Feature],
    bounds: SpoolBounds,
) -> Iterator[ImpressionRecord]:
    """The requests of a period, [first, last) in ms, in order of time. `bids` serves rows that tell none; an item of neither has the bid 1."""
    table = shown.table
    columns = table.spool.schema.names
    found = read_interactions(table, kind, (), bounds, columns)
    schema = pa.schema([(name, pa.float64() if name == _POSITION else pa.int64()) for name in _SORTED])
    for name in columns:
        schema = schema.append(table.spool.schema.field(name))
    by_request = sort_rows(_requests_of(shown, found, period_ms, schema), schema, [_USER, _REQUEST], bounds)
    in_order = sort_rows(_with_first(by_request), schema, [_FIRST, _POSITION], bounds)
    for rows in _whole_requests(in_order):
        yield from _records(shown, table.rows(rows), found, bids, context)


def _requests_of(shown: ShownRows, found: Interactions, period_ms: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a period, oldest first, each with its request, its position and its own number."""
    assert found.rows is not None
    for first, block in found.rows.blocks(*map(found.before, period_ms)):
        rows = shown.table.rows(block)
        number_R = np.arange(first, first + len(rows))
        position_R = np.nan_to_num(decode_numbers(rows.array("position")), nan=np.inf) if rows.has("position") else number_R.astype(float)
        made = {
            **{name: rows.numbers(name) for name in (_USER, _ITEM, _TIME)},
            _REQUEST: request_codes(rows),
            _FIRST: number_R,
            _POSITION: position_R,
            _CLICKED: shown.clicked(rows).astype(np.int64),
        }
        columns = [pa.array(made[f.name], f.type) if f.name in made else block.column(f.name) for f in schema]
        yield from pa.table(columns, schema=schema).combine_chunks().to_batches()


def request_codes(rows: LoadedRows) -> np.ndarray:
    """What groups rows into requests, always within one user: the request's id, or the time."""
    if not rows.has("request"):
        return rows.numbers(_TIME)
    cells, places = distinct(rows.array("request"))
    return np.array([_code(text) for text in decode_texts(cells)], np.int64)[places]


def _code(text: str | None) -> int:
    """64 bits of a request's id: two requests of one user that share them would be one in 10^19 pairs."""
    return int.from_bytes(hashlib.blake2b((text or "").encode(), digest_size=8).digest(), "big", signed=True)


def _with_first(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Rows that lie together by request, each with the number of its request's first row: the smallest, as they kept their order."""
    last: tuple[int, int, int] | None = None
    for table in tables:
        user_R, request_R, number_R = (table.column(name).to_numpy() for name in (_USER, _REQUEST, _FIRST))
        if not len(table):
            continue
        begins = np.r_[True, (np.diff(user_R) != 0) | (np.diff(request_R) != 0)]
        first_R = number_R[begins][np.cumsum(begins) - 1]
        if last is not None and last[:2] == (user_R[0], request_R[0]):
            first_R[np.cumsum(begins) == 1] = last[2]
        last = (int(user_R[-1]), int(request_R[-1]), int(first_R[-1]))
        place = table.schema.get_field_index(_FIRST)
        yield from table.set_column(place, table.schema.field(place), pa.array(first_R)).combine_chunks().to_batches()


def _whole_requests(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, cut where a request ends."""
    left: pa.Table | None = None
    for table in tables:
        rows = table if left is None else pa.concat_tables([left, table])
        first_R = rows.column(_FIRST).to_numpy()
        end = int(np.searchsorted(first_R, first_R[-1], "left")) if len(rows) else 0
        if end:
            yield rows.slice(0, end)
        left = rows.slice(end)
    if left is not None and len(left):
        yield left


def _records(
    shown: ShownRows, rows: LoadedRows, found: Interactions, bids: Mapping[Id, float], context: Sequence[Feature]
) -> Iterator[ImpressionRecord]:
    """The records of whole requests, each at the time of its first row: what was clicked later in it is no history of it."""
    first_R, user_R, item_R, time_R = (rows.numbers(name) for name in (_FIRST, _USER, _ITEM, _TIME))
    clicked_R, bid_R, teacher_R = rows.numbers(_CLICKED) > 0, _optional_numbers(rows, "bid"), _optional_numbers(rows, "teacher_ecpm")
    outcomes_R = shown.outcomes_of(rows)
    starts = np.flatnonzero(np.diff(first_R, prepend=-1))
    raw = rows.take(starts).features(context)
    names = decode_texts(rows.take(starts).array("request")) if rows.has("request") else time_R[starts].tolist()
    for start, end, request_context, text in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], raw, names, strict=True):
        part = slice(start, end)
        items = [found.item_ids[i] for i in item_R[part].tolist()]
        listed = _distinct(items, clicked_R[part].tolist(), outcomes_R[part], bid_R[part].tolist(), teacher_R[part].tolist(), bids)
        name = f"{user_R[start]}-{'' if text is None else text}"
        for number, cut in enumerate(range(0, len(listed), ITEMS_PER_IMPRESSION_MAX)):
            shown_items = [ShownItem(position=p, **fields) for p, fields in enumerate(listed[cut : cut + ITEMS_PER_IMPRESSION_MAX])]
            request_id = (f"{name}+{number}" if number else name)[-REQUEST_ID_CHARS_MAX:]
            user, time_ms = found.user_ids[user_R[start]], int(time_R[part].min())
            yield ImpressionRecord(request_id=request_id, user_id=user, time_ms=time_ms, context=request_context, items=shown_items)


def _optional_numbers(rows: LoadedRows, role: str) -> np.ndarray:
    return decode_numbers(rows.array(role)) if rows.has(role) else np.full(len(rows), np.nan)


def _distinct(
    items: Sequence[Id],
    clicked: Sequence[bool],
    outcomes: Sequence[list[str]],
    bid: Sequence[float],
    teacher: Sequence[float],
    bids: Mapping[Id, float],
) -> list[dict[str, Any]]:
    """Fields of the shown items, each item once."""
    found: dict[Id, dict[str, Any]] = {}
    for item, click, came, own_bid, ecpm in zip(items, clicked, outcomes, bid, teacher, strict=True):
        if item in found:
            found[item]["clicked"] |= click
            found[item]["outcomes"] += [name for name in came if name not in found[item]["outcomes"]]
            continue
        found[item] = {
            "item_id": item,
            "bid": own_bid if own_bid > 0 else bids.get(item, 1.0),
            "teacher_ecpm": ecpm if ecpm >= 0 else None,
            "clicked": click,
            "outcomes": came,
        }
    return list(found.values())
