"""Columns of [impressions.context] that are not known when a request is ranked: they separate its clicked rows, count its clicks, or name a clicked item.

A context belongs to the request and is taken from its first row. A label under another name, or the seconds of a visit, differs between clicked rows and
others. A number of clicks was written after them. The category of the clicked item is that of clicked rows, and of few others. By contrast, a search text,
or the category of a page, is that of most rows.
Here: finding these columns, with the remedy. Not here: columns of items and users (leakage.py), requests without a contrast (doubts.py).

Arrays: Q requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from infra.data.mapped_sources import MappedSources
from infra.data.rank_measures import strongest_correlation
from infra.data.tables import IdPlaces, LoadedRows
from schemas.features import Feature, Scope
from schemas.kinds import Layout

_TELLING_LEAST = 0.5  # of the requests with clicked rows and others; an hour that changes within a session tells few of them apart
_COUNTING_LEAST = 0.8  # a page that gets clicks more often than another stays far below
_NAMING_LEAST = 0.8  # of the requests with clicked rows and others
_OTHERS_LESS = 0.4  # of the others so many fewer are what the context names
_REQUESTS_LEAST, _USERS_MOST = 50, 2_000
_Shown = tuple[bool, Mapping[str, Any], Mapping[str, Any]]  # a row: whether it was clicked, its context, and the features of its item


def find_leaking_context(sources: MappedSources) -> Iterator[str]:
    """A sentence about each such column."""
    features = [f for f in sources.features if f.scope is Scope.CONTEXT and f.layout.is_single]
    if sources.shown is None or not features or len(requests := _rows_by_request(sources, features)) < _REQUESTS_LEAST:
        return
    clicks_Q = np.array([sum(clicked for clicked, _, _ in rows) for rows in requests])
    length_Q = np.array([len(rows) for rows in requests])
    categories = [f.name for f in sources.features if f.scope is Scope.ITEM and f.layout is Layout.BUCKET]
    for feature in features:
        place = f"[impressions.context] {feature.name}"
        share = _share_told_apart(requests, feature.name)
        firsts = [rows[0][1].get(feature.name) for rows in requests]
        if share >= _TELLING_LEAST:
            yield (
                f"{place} tells the clicked rows of {share:.0%} of the requests from the others, but a context belongs to the whole request and is taken "
                "from its first row. Outcomes are not known when a request is ranked; leave it out, or make a flag of it in [impressions.outcomes]"
            )
        elif abs(correlation := strongest_correlation(firsts, length_Q[None], clicks_Q)) >= _COUNTING_LEAST:
            yield (
                f"{place} goes with how many clicks its request has (partial rank correlation {correlation:+.2f}). The clicks are not known when "
                "a request is ranked; leave it out"
            )
        elif named := [
            (share, others, of_item) for of_item in categories for share, others in _shares_named(requests, feature.name, of_item)
        ]:
            share, others, of_item = max(named)
            yield (
                f"{place} names the {of_item} of the clicked item in {share:.0%} of the requests, and of {others:.0%} of the other shown items. The click is "
                "not known when a request is ranked; leave it out"
            )


def _share_told_apart(requests: Sequence[Sequence[_Shown]], name: str) -> float:
    """Of the requests with clicked rows and others, the share in which no cell is in both; 0 where they are few."""
    found = []
    for rows in requests:
        cells = [{context.get(name) for click, context, _ in rows if click == clicked} for clicked in (True, False)]
        if all(cells):
            found.append(cells[0].isdisjoint(cells[1]))
    return float(np.mean(found)) if len(found) >= _REQUESTS_LEAST else 0.0


def _shares_named(requests: Sequence[Sequence[_Shown]], name: str, of_item: str) -> Iterator[tuple[float, float]]:
    """(share of requests whose clicked item has the category of the context, share of other items with it), if the first is far larger. The category
    that goes with a cell is learnt from one half of the requests and tested on the other."""
    mixed = [rows for rows in requests if len({click for click, _, _ in rows}) == 2]
    counts: dict[object, Counter[object]] = defaultdict(Counter)
    for rows in mixed[::2]:
        counts[rows[0][1].get(name)].update(item[of_item] for click, _, item in rows if click and of_item in item)
    asked = [(counts[cell].most_common(1)[0][0], rows) for rows in mixed[1::2] if counts.get(cell := rows[0][1].get(name))]
    if len(asked) < _REQUESTS_LEAST // 2 or len(asked) < _NAMING_LEAST * len(mixed[1::2]):
        return
    hits = [any(click and item.get(of_item) == category for click, _, item in rows) for category, rows in asked]
    others = [item.get(of_item) == category for category, rows in asked for click, _, item in rows if not click]
    if np.mean(hits) >= _NAMING_LEAST and np.mean(hits) - np.mean(others) >= _OTHERS_LESS:
        yield float(np.mean(hits)), float(np.mean(others))


def _rows_by_request(sources: MappedSources, features: Sequence[Feature]) -> list[list[_Shown]]:
    """The rows of each request, of the first users of the file."""
    shown, places = sources.shown, IdPlaces(sources.id_kind, sources.item_rows.ids)
    assert shown is not None
    item_I = sources.states.told_at(np.arange(len(sources.item_rows.ids)), sources.now_ms)

    def tell(rows: LoadedRows) -> Iterator[_Shown]:
        places_R = places.encode(rows.array("item"), shown.table.id_forms["item"])
        items = (item_I[place] if 0 <= place < len(item_I) else {} for place in places_R.tolist())
        return zip(shown.clicked(rows).tolist(), rows.features(features), items, strict=True)

    return shown.by_request(_USERS_MOST, tell)
