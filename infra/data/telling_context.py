"""Columns of [impressions.context] that nobody knows when a request is ranked: they tell its clicked rows from the others, or count its clicks.

A context is of the request and is taken from its first row. A label under another name, or the seconds that somebody stayed, differs between clicked rows and
others; a number of clicks was written when these were over.
Here: finding both, and what to write instead. Not here: columns of items and users (telling_features.py), requests without a contrast (doubts.py).

Arrays: Q requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from infra.data.columns import plain
from infra.data.feature_values import decode_features
from infra.data.mapped_sources import MappedSources
from infra.data.shown_impressions import ShownRows
from infra.data.telling_features import strongest_correlation
from schemas.features import Feature, Kind, Scope

_TELLING_LEAST = 0.5  # of the requests with clicked rows and others; an hour that changes within a session tells few of them apart
_COUNTING_LEAST = 0.8  # a page that gets clicks more often than another stays far below
_REQUESTS_LEAST, _USERS_MOST = 50, 2_000
_Shown = tuple[bool, Mapping[str, Any]]  # a row: whether it was clicked, and its context


def find_telling_context(sources: MappedSources) -> Iterator[str]:
    """A sentence about each such column."""
    features = [f for f in sources.features if f.scope is Scope.CONTEXT and f.kind in (Kind.NUMERIC, Kind.CATEGORICAL)]
    if sources.shown is None or not features or len(requests := _rows_by_request(sources.shown, features)) < _REQUESTS_LEAST:
        return
    clicks_Q = np.array([sum(clicked for clicked, _ in rows) for rows in requests])
    length_Q = np.array([len(rows) for rows in requests])
    for feature in features:
        place = f"[impressions.context] {feature.name}"
        share = _share_told_apart(requests, feature.name)
        firsts = [rows[0][1].get(feature.name) for rows in requests]
        if share >= _TELLING_LEAST:
            yield (
                f"{place} tells the clicked rows of {share:.0%} of the requests from the others, and a context is of a whole request, taken from its first "
                "row: what came of a shown item is not known when it is ranked; leave it out, or make a flag of it in [impressions.outcomes]"
            )
        elif abs(correlation := strongest_correlation(firsts, length_Q[None], clicks_Q)) >= _COUNTING_LEAST:
            yield (
                f"{place} goes with how many clicks its request has (partial rank correlation {correlation:+.2f}): what counts them is not known when "
                "a request is ranked; leave it out"
            )


def _share_told_apart(requests: Sequence[Sequence[_Shown]], name: str) -> float:
    """Of the requests with clicked rows and others, the share in which no cell is in both; 0 where they are few."""
    found = []
    for rows in requests:
        cells = [{context.get(name) for click, context in rows if click == clicked} for clicked in (True, False)]
        if all(cells):
            found.append(cells[0].isdisjoint(cells[1]))
    return float(np.mean(found)) if len(found) >= _REQUESTS_LEAST else 0.0


def _rows_by_request(shown: ShownRows, features: Sequence[Feature]) -> list[list[_Shown]]:
    """The rows of each request, of the first users of the file."""
    users, found = None, dict[tuple[object, object], list[_Shown]]()
    for block in shown.table.blocks():
        cells = plain(block.array("user"))
        users = pc.unique(cells).drop_null()[:_USERS_MOST] if users is None else users
        rows = block.take(np.flatnonzero(pc.is_in(cells, users).to_numpy(zero_copy_only=False)))
        request = rows.array("request" if rows.has("request") else "time").to_pylist()
        contexts = decode_features(rows, rows.source.feature_columns(), features)
        for user, name, click, context in zip(rows.array("user").to_pylist(), request, shown.clicked(rows).tolist(), contexts, strict=True):
            found.setdefault((user, name), []).append((click, context))
    return list(found.values())
