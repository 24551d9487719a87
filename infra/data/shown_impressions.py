"""Impressions that a file tells: one row per shown item, grouped by a request column (or by user and time).

Here: rows to records. Not here: what is sampled where a file tells positives only (sampled_impressions.py).
A request longer than 1,000 items is cut into several; an item that comes twice in one counts once, clicked if any row was.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from infra.data.columns import decode_numbers, decode_texts
from infra.data.feature_values import decode_features
from infra.data.interactions import read_interactions
from infra.data.tables import LoadedTable
from schemas.events import ImpressionRecord, ShownItem
from schemas.features import Feature
from schemas.ids import Id, IdKind
from schemas.limits import ITEMS_PER_IMPRESSION_MAX, REQUEST_ID_CHARS_MAX


def read_shown_requests(
    table: LoadedTable, clicked_R: np.ndarray, kind: IdKind, now_ms: int, bids: Mapping[Id, float], context: Sequence[Feature]
) -> Iterator[ImpressionRecord]:
    """The requests before `now_ms` in order of time. `bids` serves rows that tell none; an item of neither has the bid 1."""
    shown = read_interactions(table, kind, ())
    shown = shown.take(np.arange(shown.before(now_ms)))
    names = _request_names(table, shown.row_X, shown.user_X, shown.time_X)
    _, first, code_X = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    order = np.lexsort((_positions(table, shown.row_X), rank[code_X]))
    starts = np.flatnonzero(np.diff(rank[code_X][order], prepend=-1))
    bid_R, teacher_R = _optional_numbers(table, "bid"), _optional_numbers(table, "teacher_ecpm")
    for places in np.split(order, starts[1:]) if len(order) else ():
        rows = shown.row_X[places]
        items = [shown.item_ids[i] for i in shown.item_X[places].tolist()]
        listed = _distinct(items, clicked_R[rows].tolist(), bid_R[rows].tolist(), teacher_R[rows].tolist(), bids)
        raw = decode_features(table.take(rows[:1]), table.source.feature_columns(), context)[0]
        user, time_ms, name = shown.user_ids[shown.user_X[places[0]]], int(shown.time_X[places[0]]), str(names[places[0]])
        for number, part in enumerate(range(0, len(listed), ITEMS_PER_IMPRESSION_MAX)):
            shown_items = [ShownItem(position=p, **fields) for p, fields in enumerate(listed[part : part + ITEMS_PER_IMPRESSION_MAX])]
            request_id = (f"{name}+{number}" if number else name)[-REQUEST_ID_CHARS_MAX:]
            yield ImpressionRecord(request_id=request_id, user_id=user, time_ms=time_ms, context=raw, items=shown_items)


def _request_names(table: LoadedTable, rows: np.ndarray, user_X: np.ndarray, time_X: np.ndarray) -> np.ndarray:
    """What groups rows into requests, always within one user: the request's id, or the time."""
    if table.has("request"):
        requests = np.array([text or "" for text in decode_texts(table.array("request"))], object)[rows]
    else:
        requests = time_X.astype(object)
    names = [f"{user}-{request}" for user, request in zip(user_X.tolist(), requests.tolist(), strict=True)]
    return np.array(names, object).astype(str) if names else np.zeros(0, "<U1")


def _positions(table: LoadedTable, rows: np.ndarray) -> np.ndarray:
    return np.nan_to_num(decode_numbers(table.array("position"))[rows], nan=np.inf) if table.has("position") else np.arange(len(rows))


def _optional_numbers(table: LoadedTable, role: str) -> np.ndarray:
    return decode_numbers(table.array(role)) if table.has(role) else np.full(len(table), np.nan)


def _distinct(
    items: Sequence[Id], clicked: Sequence[bool], bid: Sequence[float], teacher: Sequence[float], bids: Mapping[Id, float]
) -> list[dict[str, object]]:
    """Fields of the shown items, each item once."""
    found: dict[Id, dict[str, object]] = {}
    for item, click, own_bid, ecpm in zip(items, clicked, bid, teacher, strict=True):
        if item in found:
            found[item]["clicked"] = bool(found[item]["clicked"]) or click
            continue
        found[item] = {
            "item_id": item,
            "bid": own_bid if own_bid > 0 else bids.get(item, 1.0),
            "teacher_ecpm": ecpm if ecpm >= 0 else None,
            "clicked": click,
        }
    return list(found.values())
