"""Impressions from a file: one row per shown item, grouped by a request column (or by user and time).

Here: rows to requests, as records and as a log. Not here: sampling from positives (sampled_impressions.py).
A request of more than 1,000 items is cut into several records. An item that occurs twice in one counts once, and as clicked if any of its rows was.
Rows are sorted by user and request, then by the place of each request's first row, all in bounded memory (spool.py). So the rows of a request may be
anywhere in the file. Rows from the evaluation time on are requests of their own.

Arrays: R rows.
"""

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.data.columns import decode_flags, decode_membership, decode_numbers, decode_texts, distinct, plain
from infra.data.interactions import COLUMNS, SCHEMA, Interactions
from infra.data.mapping import OUTCOME, Impressions
from infra.data.spool import Spool, SpoolBounds, sort_into_spool, sort_rows
from infra.data.tables import LoadedRows, LoadedTable
from schemas.errors import Misconfigured
from schemas.events import ImpressionRecord, ShownItem
from schemas.features import Feature
from schemas.ids import Id
from schemas.limits import ITEMS_PER_IMPRESSION_MAX, REQUEST_ID_CHARS_MAX
from schemas.statistics import CLICK

T = TypeVar("T")
_REQUEST, _FIRST, _POSITION = "#request", "#first", "#position"


class ShownRows:
    """The rows of a file of impressions, with clicks and other outcomes."""

    def __init__(self, table: LoadedTable) -> None:
        assert isinstance(table.source, Impressions)
        self.table, self.outcomes = table, tuple(table.source.outcomes)

    def clicked(self, rows: LoadedRows) -> np.ndarray:
        """Which of some rows were clicked, [R] bool. One that says neither is named, and counts as not clicked."""
        return self._flags(rows, "clicked")

    def codes(self, rows: LoadedRows) -> np.ndarray:
        """The outcomes of some rows as bits, [R] int64: the click first, then the outcomes in their order."""
        code_R = self.clicked(rows).astype(np.int64)
        for bit, name in enumerate(self.outcomes, start=1):
            code_R |= self._flags(rows, OUTCOME + name).astype(np.int64) << bit
        return code_R

    def by_request(self, users_max: int, tell: Callable[[LoadedRows], Iterable[T]]) -> list[list[T]]:
        """The values that `tell` gives for each row, by request, of the first users of the file. Warnings use them."""
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
        flags, known = decode_membership(cells, column.one_of) if column.one_of else decode_flags(cells, column.at_least)
        if not known.any() and not column.one_of:
            self._require_a_flag(role)
        rows.reject_cells(~known, role, "flag, taken as false")
        return flags

    def _require_a_flag(self, role: str) -> None:
        """Raises if no cell of the whole column is a flag or a number."""
        at_least = self.table.source.roles[role].at_least
        if len(self.table) and not any(decode_flags(rows.array(role), at_least)[1].any() for rows in self.table.blocks()):
            cell = next(self.table.blocks()).array(role)[0].as_py()
            name = role.removeprefix(OUTCOME)
            raise Misconfigured(
                "bad_mapping",
                f"[impressions] {role}: no cell of its column is a flag, the first is {cell!r}; "
                f'name the values that are, like {name} = {{ column = "event", in = ["click"] }}',
            )


class ShownRequests:
    """The rows by request, the requests in order of time. `found`: all rows with a user, an item and a time, and their cells. No request crosses `cut_ms`."""

    def __init__(self, shown: ShownRows, found: Interactions, cut_ms: int, bounds: SpoolBounds) -> None:
        assert found.rows is not None
        self._shown, self._found, self._cut_ms, self._bounds = shown, found, cut_ms, bounds
        made = {name: pa.float64() if name == _POSITION else pa.int64() for name in (*COLUMNS, _REQUEST, _FIRST, _POSITION)}
        cells = [field for field in found.rows.schema if field.name not in made]
        schema = pa.schema([*made.items(), *cells])
        by_request = sort_rows(self._coded_rows(schema), schema, [COLUMNS[0], _REQUEST], bounds)
        self._rows = sort_into_spool(_with_first(by_request), schema, [_FIRST, _POSITION], bounds)

    def _coded_rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, oldest first, each with its request, its position and its own number."""
        assert self._found.rows is not None
        for first, block in self._found.rows.blocks():
            rows = self._shown.table.rows(block)
            number_R, time_R, request_R = np.arange(first, first + len(rows)), rows.numbers(COLUMNS[3]), _request_codes(rows)
            made = {
                COLUMNS[2]: self._shown.codes(rows),
                _REQUEST: np.where(time_R < self._cut_ms, request_R, ~request_R),
                _FIRST: number_R,
                _POSITION: np.nan_to_num(_optional_numbers(rows, "position"), nan=np.inf)
                if rows.has("position")
                else number_R.astype(float),
            }
            columns = [pa.array(made[f.name], f.type) if f.name in made else block.column(f.name) for f in schema]
            yield from pa.table(columns, schema=schema).combine_chunks().to_batches()

    def count_repeats(self) -> tuple[int, int, int]:
        """(rows, rows that repeat the item of another row of their request, those of them with another outcome)."""
        repeated = other = 0
        for table in _whole_requests(self._rows.blocks()):
            rows = np.stack([table.column(name).to_numpy() for name in (_FIRST, COLUMNS[1], COLUMNS[2])])
            changes = np.diff(rows[:, np.lexsort(rows[::-1])], axis=1) != 0
            again = ~changes[:2].any(axis=0)
            repeated, other = repeated + int(again.sum()), other + int((again & changes[2]).sum())
        return len(self._rows), repeated, other

    def log(self) -> Interactions:
        """The shown items in order of time, as in the events: each item of a request once, at the time of the request's first row. The kinds are the
        click and the outcomes; the code of an item has a bit for each outcome of any of its rows."""
        rows = Spool.of(self._items_once(), SCHEMA, self._bounds)
        return Interactions.of(self._found.user_ids, self._found.item_ids, (CLICK, *self._shown.outcomes), rows)

    def _items_once(self) -> Iterator[pa.Table]:
        for table in _whole_requests(self._rows.blocks()):
            user_R, item_R, code_R, time_R, first_R = (table.column(name).to_numpy() for name in (*COLUMNS, _FIRST))
            starts = np.flatnonzero(np.diff(first_R, prepend=-1))
            begun_R = np.minimum.reduceat(time_R, starts)[np.searchsorted(first_R[starts], first_R)]
            chosen, code_S = _once(first_R, item_R, code_R)
            yield pa.table([user_R[chosen], item_R[chosen], code_S, begun_R[chosen]], schema=SCHEMA)

    def records(self, period_ms: tuple[int, int], bids: Mapping[Id, float], context: Sequence[Feature]) -> Iterator[ImpressionRecord]:
        """The requests of a period, [first, last) in ms, in order of time. `bids` serves rows without one; an item without any has the bid 1."""
        begin, end = (bisect_left(self._rows.column(_FIRST), self._found.before(time_ms)) for time_ms in period_ms)
        for table in _whole_requests(self._rows.blocks(begin, end)):
            within = table.column(COLUMNS[3]).to_numpy() < period_ms[1]
            yield from self._records(self._shown.table.rows(table.filter(pa.array(within))), bids, context)

    def _records(self, rows: LoadedRows, bids: Mapping[Id, float], context: Sequence[Feature]) -> Iterator[ImpressionRecord]:
        """The records of whole requests, each at the time of its first row, so that later clicks of the request are no history of it."""
        found = self._found
        user_R, item_R, code_R, time_R, first_R = (rows.numbers(name) for name in (*COLUMNS, _FIRST))
        starts = np.flatnonzero(np.diff(first_R, prepend=-1))
        raw, begun = rows.take(starts).features(context), np.minimum.reduceat(time_R, starts).tolist()
        names = decode_texts(rows.take(starts).array("request")) if rows.has("request") else time_R[starts].tolist()
        chosen, code_S = _once(first_R, item_R, code_R)
        in_order = np.argsort(chosen)
        chosen, code_S = chosen[in_order], code_S[in_order]
        listed = [*self._shown_items(rows.take(chosen), [found.item_ids[item] for item in item_R[chosen].tolist()], code_S, bids)]
        cuts = np.searchsorted(first_R[chosen], first_R[starts]).tolist()
        for start, (first, end), request_context, text, time_ms in zip(
            starts.tolist(), itertools.pairwise([*cuts, len(listed)]), raw, names, begun, strict=True
        ):
            user, name = found.user_ids[user_R[start]], f"{user_R[start]}-{'' if text is None else text}"
            for number, cut in enumerate(range(first, end, ITEMS_PER_IMPRESSION_MAX)):
                part = listed[cut : min(end, cut + ITEMS_PER_IMPRESSION_MAX)]
                items = [ShownItem(position=position, **fields) for position, fields in enumerate(part)]
                request_id = (f"{name}+{number}" if number else name)[-REQUEST_ID_CHARS_MAX:]
                yield ImpressionRecord(request_id=request_id, user_id=user, time_ms=time_ms, context=request_context, items=items)

    def _shown_items(self, rows: LoadedRows, items: Sequence[Id], codes: np.ndarray, bids: Mapping[Id, float]) -> Iterator[dict[str, Any]]:
        """The fields of a shown item of each row."""
        bid_R, teacher_R = _optional_numbers(rows, "bid").tolist(), _optional_numbers(rows, "teacher_ecpm").tolist()
        for item, code, bid, ecpm in zip(items, codes.tolist(), bid_R, teacher_R, strict=True):
            yield {
                "item_id": item,
                "bid": bid if bid > 0 else bids.get(item, 1.0),
                "teacher_ecpm": ecpm if ecpm >= 0 else None,
                "clicked": bool(code & 1),
                "outcomes": [name for bit, name in enumerate(self._shown.outcomes, start=1) if code >> bit & 1],
            }


def _once(first_R: np.ndarray, item_R: np.ndarray, code_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the first row of each item of each request, by request and item; the bits of all its rows), [S] int64."""
    order = np.lexsort((item_R, first_R))
    begins = np.flatnonzero(np.r_[True, (np.diff(item_R[order]) != 0) | (np.diff(first_R[order]) != 0)])
    return order[begins], np.bitwise_or.reduceat(code_R[order], begins)


def _request_codes(rows: LoadedRows) -> np.ndarray:
    """The code that groups rows of a user into requests: 64 bits of the request's id, or the time. Two ids of one user that share them are one in 10^19."""
    if not rows.has("request"):
        return rows.numbers(COLUMNS[3])
    cells, places = distinct(rows.array("request"))
    hashes = b"".join(hashlib.blake2b((text or "").encode(), digest_size=8).digest() for text in decode_texts(cells))
    return np.frombuffer(hashes, ">i8").astype(np.int64)[places]


def _with_first(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Rows that lie together by request, each with the number of its request's first row: the smallest, as they kept their order."""
    last: tuple[int, int, int] | None = None
    for table in tables:
        user_R, request_R, number_R = (table.column(name).to_numpy() for name in (COLUMNS[0], _REQUEST, _FIRST))
        if not len(table):
            continue
        begins = np.r_[True, (np.diff(user_R) != 0) | (np.diff(request_R) != 0)]
        first_R = number_R[begins][np.cumsum(begins) - 1]
        if last is not None and last[:2] == (user_R[0], request_R[0]):
            first_R[np.cumsum(begins) == 1] = last[2]
        last = (int(user_R[-1]), int(request_R[-1]), int(first_R[-1]))
        place = table.schema.get_field_index(_FIRST)
        yield from table.set_column(place, table.schema.field(place), pa.array(first_R)).combine_chunks().to_batches()


def _whole_requests(blocks: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    """Rows in order of their requests, cut where one ends."""
    left: pa.Table | None = None
    for _, table in blocks:
        rows = table if left is None else pa.concat_tables([left, table])
        first_R = rows.column(_FIRST).to_numpy()
        end = int(np.searchsorted(first_R, first_R[-1], "left")) if len(rows) else 0
        if end:
            yield rows.slice(0, end)
        left = rows.slice(end)
    if left is not None and len(left):
        yield left


def _optional_numbers(rows: LoadedRows, role: str) -> np.ndarray:
    return decode_numbers(rows.array(role)) if rows.has(role) else np.full(len(rows), np.nan)
