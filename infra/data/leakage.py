"""Target leakage in files: columns that contain events after the evaluation time. Examples are totals of the whole period, a last sale, a final rank.

A column of [items] or [users] has no time and counts as known at every time. If it sums up the whole period, it gives the answer away, in training and in
evaluation. So does a row of [item_history] whose date is too early. Files do not mark such columns, but two tests find them:

    future     the column goes with later positives by more than earlier ones explain. Measure: the partial rank correlation with the number of positives
               in the held-out period. Given are the numbers ever before it, in an equally long time just before it, and in the last quarter of that time.
               A category stands for the mean of the later positives in the other half of the rows. Where cells are missing, their absence is a category
    whole log  the column orders groups of items as their rate in the whole log does, and clearly less as their rate until the evaluation time. A group is
               one item, all items of a category, or all items with the same number in the column. Measure: Goodman and Kruskal's gamma over pairs of
               groups, with classes in the order of their mean rate. A price, a true category or a sum until the evaluation time fails this test

A column of [impressions.context] belongs to the request and is taken from its first row. It leaks the outcome if it separates the clicked
rows of its request, counts its clicks, or names a clicked item. A label under another name, or the seconds of a visit, differs between clicked rows
and others. A number of clicks was written after them. The category of the clicked item is that of clicked rows, and of few others. By contrast, a search
text, or the category of a page, is that of most rows.

Here: these tests, for columns of numbers and of categories, with the remedies. Not here: features that are computed as of a time (items.py), which cannot
know the future; other warnings (doubts.py).
Not found: vectors, and a column that names the favourites of single users without their counts.

Arrays: N items, users or rows, P numbers of positives that are given, V values of a category, I items, G groups, Q requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infra.data.mapped_sources import MappedSources
from infra.data.mapping_source import Source
from infra.data.tables import IdPlaces, LoadedRows, read_times
from schemas.features import Feature, Scope
from schemas.kinds import Layout

# From this correlation on. With 22 of 180 days held out, a total of the whole period has 0.8 (0.7 with 30% of noise), and the last sale has 0.8. A price, and a
# total until the evaluation, have 0.0.
SUSPICIOUS = 0.5
# Numbers without a time may sum up anything, so this correlation is enough for them, if it is also four times the chance level of so many rows. A number that
# is one quarter later positives has 0.3. The year of a film, or whether it is a comedy, has 0.15 in a real log of half a year.
NOTICEABLE = 0.25
_CHANCES = 4.0
_LEAST, _MOST = (
    50,
    20_000,
)  # items, users, requests or numbers that are examined: fewer give no evidence, of more items or users a sample is drawn
_SEED = 0

MADE_OF = 0.9  # gamma from which on a column follows a rate
_CLOSER = 0.5  # most pairs in another order with the rate of all time, as a share of those with the rate until the evaluation
_GROUPS_LEAST, _GROUPS_MOST, _ITEMS_MOST = 12, 500, 200_000
_CLASS_GROUPS_LEAST = 8  # groups of a class, on average: smaller classes follow any rate

_TELLING_LEAST = 0.5  # of the requests with clicked rows and others; an hour that changes within a session tells few of them apart
_COUNTING_LEAST = 0.8  # a page that gets clicks more often than another stays far below
_NAMING_LEAST = 0.8  # of the requests with clicked rows and others
_OTHERS_LESS = 0.4  # of the others so many fewer are what the context names
_USERS_MOST = 2_000
_Shown = tuple[bool, Mapping[str, Any], Mapping[str, Any]]  # a row: whether it was clicked, its context, and the features of its item

_UNDATED = (
    "a column without a time counts as always known: if it sums up the whole period, leave it out, or take count_days or [item_history]"
)
_WEAK = "a price can do the same; but if the column sums up the whole period, leave it out, or use count_days or [item_history]"
_DATED = "a row counts as known from its time on; if it sums up a later period, set known_after_days"


def find_leaking_columns(sources: MappedSources) -> Iterator[str]:
    """A sentence about each column that knows the future."""
    made = find_made_of_the_log(sources)
    yield from (_describe_made(place, *gammas) for place, gammas in made.items())
    for place, correlation in find_known_future(sources).items():
        if place not in made:
            yield _describe_known_future(place, correlation)


def _describe_made(place: str, whole: float, before: float) -> str:
    """What two gammas say of a column: that it is made of the whole log."""
    return (
        f"{place} orders items or categories by their counts in the whole log (gamma {whole:.3f}), more than by those before the evaluation "
        f"time ({before:.3f}). It contains the answers; {_UNDATED}"
    )


def _describe_known_future(place: str, correlation: float) -> str:
    """What a correlation says of a column: that it tells the future, or that it may."""
    plain = abs(correlation) >= SUSPICIOUS
    why = _WEAK if not plain else _DATED if place.startswith("[item_history]") else _UNDATED
    return (
        f"{place} goes with what happens after the evaluation time {'' if plain else 'somewhat '}more than what came before explains (partial rank "
        f"correlation {correlation:+.2f}); {why}"
    )


def find_known_future(sources: MappedSources) -> dict[str, float]:
    """Rounded correlations of the suspicious columns, by names such as "[items] features.total". For a number without a time a noticeable correlation is
    enough. Empty where there is too little data."""
    if sources.period is None or sources.end_ms <= sources.now_ms:
        return {}
    found = {}
    for asked in (*_of_items(sources), *_of_users(sources)):
        noticeable = max(NOTICEABLE, _CHANCES / len(asked.rows) ** 0.5)
        for name in asked.names:
            values = [row.get(name) for row in asked.rows]
            correlation = strongest_correlation(values, asked.given_PN, asked.after_N)
            undated_number = asked.section != "item_history" and all(isinstance(value, float | None) for value in values)
            if abs(correlation) >= (min(SUSPICIOUS, noticeable) if undated_number else SUSPICIOUS):
                found[f"[{asked.section}] features.{name}"] = round(correlation, 2)
    return found


@dataclass(frozen=True)
class _Asked:
    """Columns of one section: their names, their cells for each of N items or users, and the positives of each: given_PN before a time, after_N after it."""

    section: str
    names: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    given_PN: np.ndarray
    after_N: np.ndarray


def _of_items(sources: MappedSources) -> Iterator[_Asked]:
    """Columns of [items] as told at the evaluation time; of [item_history] at a time before, when many of its rows were written."""
    history, now, length = sources.mapping.item_history, sources.now_ms, sources.end_ms - sources.now_ms
    asked = [("items", undated_columns(sources), now)]
    if history is not None and (written := _busiest_time(sources, history, now - length)) is not None:
        asked.append(("item_history", _columns(sources, history), written))
    for section, names, time_ms in asked:
        counts_PN, places = _counts(sources, len(sources.item_rows.ids), "item_X", time_ms)
        if names and len(places) >= _LEAST:
            yield _Asked(section, names, sources.states.told_at(places, time_ms), counts_PN[:-1], counts_PN[-1])


def undated_columns(sources: MappedSources) -> list[str]:
    """Names of the features of [items] that can be examined and have no values in [item_history]."""
    dated = _columns(sources, sources.mapping.item_history)
    return [name for name in _columns(sources, sources.mapping.items) if name not in dated]


def _columns(sources: MappedSources, source: Source | None) -> list[str]:
    """Names of the features of items in the columns of a section that can be examined. A column of which the model reads rates alone is no feature."""
    single = {f.name for f in sources.features if f.scope is Scope.ITEM and f.layout.is_single}
    columns = source.feature_columns() if source is not None else {}
    return [name for name, column in columns.items() if column.value is None and name in single]


def _busiest_time(sources: MappedSources, history: Source, until_ms: int) -> int | None:
    """The time, up to a limit, when most rows of a history became known: fresh rows say most about the future."""
    time_R = read_times(sources.table(history).sample, "time") + sources.history_known_after_ms
    times, rows = np.unique(time_R[(time_R >= int(sources.positives.time_X[0])) & (time_R <= until_ms)], return_counts=True)
    return int(times[::-1][rows[::-1].argmax()]) if len(times) else None


def _of_users(sources: MappedSources) -> Iterator[_Asked]:
    """The features of users in columns, with the users' positives before and after the evaluation time."""
    users = sources.mapping.users
    if users is None:
        return
    columns = users.feature_columns()
    features = [f for f in sources.features if f.scope is Scope.USER and f.layout.is_single and f.name in columns]
    names = [f.name for f in features if columns[f.name].value is None]
    counts_PN, places = _counts(sources, len(sources.positives.user_ids), "user_X", sources.now_ms)
    if not names:
        return
    row_N = np.array([sources.profiles.get(sources.positives.user_ids[place], -1) for place in places.tolist()], np.int64)
    counts_PN, row_N = counts_PN[:, row_N >= 0], row_N[row_N >= 0]
    if len(row_N) >= _LEAST:
        rows = sources.user_rows.rows_at(row_N).features(sources.features)
        yield _Asked("users", names, rows, counts_PN[:-1], counts_PN[-1])


def _counts(sources: MappedSources, owners: int, owner: str, time_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """(positives of each owner [P + 1, N], places of the owners). The rows of the counts are: ever before a time; as long before it as the held-out period
    lasts; the last quarter of that; as long after it. Only owners with a positive before the time count, and a sample of them where they are many."""
    length, log = sources.end_ms - sources.now_ms, sources.positives
    spans = ((0, time_ms), (time_ms - length, time_ms), (time_ms - length // 4, time_ms), (time_ms, time_ms + length))
    counts = [log.counts(owners, start, end, owner) for start, end in spans]
    # Owners without a past are in the log only if they have a future. With them, any cell that is made of the past would seem to know the future.
    places = np.flatnonzero(counts[0])
    if len(places) > _MOST:
        places = np.sort(np.random.default_rng(_SEED).choice(places, _MOST, replace=False))
    return np.stack(counts)[:, places], places


# --- made of the whole log -----------------------------------------------------------------------------------------------


def find_made_of_the_log(sources: MappedSources) -> dict[str, tuple[float, float]]:
    """The columns, such as "[items] features.rate", each with its gamma with a rate of all time and with that until the evaluation time."""
    if sources.period is None or sources.end_ms <= sources.now_ms:
        return {}
    items, logs = len(sources.item_rows.ids), [sources.positives, *([sources.shown_log] if sources.shown is not None else [])]
    counts = [np.stack([log.counts(items, 0, int(log.time_X[-1]) + 1), log.counts(items, 0, sources.now_ms)]) for log in logs]
    places = np.sort(np.random.default_rng(_SEED).permutation(counts[0].shape[1])[:_ITEMS_MOST])
    counts, rows = [count_2I[:, places] for count_2I in counts], sources.states.told_at(places, sources.now_ms)
    columns = {name: np.array([row.get(name) for row in rows], object) for name in undated_columns(sources)}
    codes = {name: _codes(cells) for name, cells in columns.items()}
    found = {}
    for name, cells in columns.items():
        pairs = [pair for group_I in (np.arange(len(places)), *codes.values()) for pair in _compare(cells, codes[name], group_I, counts)]
        made = [(whole, before) for whole, before in pairs if whole >= MADE_OF and 1 - whole <= _CLOSER * (1 - before)]
        if made:
            found[f"[items] features.{name}"] = max(made)
    return found


def _codes(cells: np.ndarray) -> np.ndarray:
    """Which items have the same cell, [I]; -1 if absent."""
    codes: dict[Any, int] = {None: -1}
    return np.array([codes.setdefault(cell, len(codes) - 1) for cell in cells], np.int64)


def _compare(cells: np.ndarray, code_I: np.ndarray, group_I: np.ndarray, counts: Sequence[np.ndarray]) -> Iterator[tuple[float, float]]:
    """Gammas of a column with each rate of the groups. Nothing if items of one group differ in the column. `counts`: of positives, and of shown items."""
    used_I = np.flatnonzero((group_I >= 0) & (code_I >= 0))
    of_I, groups = group_I[used_I], int(group_I.max(initial=-1)) + 1
    place_G = np.zeros(groups, np.int64)
    place_G[of_I] = used_I  # one item of each group
    code_G = code_I[place_G]
    if (code_G[of_I] != code_I[used_I]).any():
        return
    sums = [np.stack([np.bincount(of_I, count_I[used_I], groups) for count_I in count_2I]) for count_2I in counts]
    known_G = np.flatnonzero(sums[-1][1])  # chosen by counts before the evaluation, not after it
    numbers = all(isinstance(cell, float) for cell in cells[place_G[known_G]])
    if len(known_G) < max(_GROUPS_LEAST, 0 if numbers else _CLASS_GROUPS_LEAST * len(np.unique(code_G[known_G]))):
        return
    known_G = np.random.default_rng(_SEED).permutation(known_G)[:_GROUPS_MOST]
    in_all, by_item = np.ones((2, groups)), np.tile(np.bincount(of_I, minlength=groups), (2, 1))
    for base_2G in (in_all, by_item, *sums[1:]):  # the last: counts of shown items
        gammas = []
        for rate_G in sums[0][:, known_G] / base_2G[:, known_G]:
            value_G = cells[place_G[known_G]].astype(float) if numbers else _order_of_classes(code_G[known_G], rate_G)
            gammas.append(gamma(value_G, rate_G))
        yield abs(gammas[0]), float(gammas[1] * np.sign(gammas[0]))


def _order_of_classes(code_G: np.ndarray, rate_G: np.ndarray) -> np.ndarray:
    """Each class as the mean rank of its groups, [G]."""
    _, of_G = np.unique(code_G, return_inverse=True)
    rank_G = np.unique(rate_G, return_inverse=True)[1]
    return np.asarray((np.bincount(of_G, rank_G) / np.bincount(of_G))[of_G])


# --- contexts of requests ---


def find_leaking_context(sources: MappedSources) -> Iterator[str]:
    """A sentence about each such column."""
    features = [f for f in sources.features if f.scope is Scope.CONTEXT and f.layout.is_single]
    if sources.shown is None or not features or len(requests := _rows_by_request(sources, features)) < _LEAST:
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
    return float(np.mean(found)) if len(found) >= _LEAST else 0.0


def _shares_named(requests: Sequence[Sequence[_Shown]], name: str, of_item: str) -> Iterator[tuple[float, float]]:
    """(share of requests whose clicked item has the category of the context, share of other items with it), if the first is far larger. The category
    that goes with a cell is learnt from one half of the requests and tested on the other."""
    mixed = [rows for rows in requests if len({click for click, _, _ in rows}) == 2]
    counts: dict[object, Counter[object]] = defaultdict(Counter)
    for rows in mixed[::2]:
        counts[rows[0][1].get(name)].update(item[of_item] for click, _, item in rows if click and of_item in item)
    asked = [(counts[cell].most_common(1)[0][0], rows) for rows in mixed[1::2] if counts.get(cell := rows[0][1].get(name))]
    if len(asked) < _LEAST // 2 or len(asked) < _NAMING_LEAST * len(mixed[1::2]):
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
        places_R = places.encode(rows, "item")
        items = (item_I[place] if 0 <= place < len(item_I) else {} for place in places_R.tolist())
        return zip(shown.clicked(rows).tolist(), rows.features(features), items, strict=True)

    return shown.by_request(_USERS_MOST, tell)


# --- how two columns go together by their ranks ---


def strongest_correlation(values: Sequence[Any], given_PN: np.ndarray, after_N: np.ndarray) -> float:
    """The partial rank correlation with after_N of a column as numbers, as categories or as cells that are there or not: the one that is farthest from 0."""
    there = [value is not None for value in values]
    found = [category_correlation(there, after_N, given_PN)]
    if all(isinstance(value, float) for value in values if value is not None):
        known_N = np.array(there)
        number_N = np.array([value for value in values if value is not None], np.float64)
        if known_N.sum() >= _LEAST:
            found.append(partial_rank_correlation(number_N, after_N[known_N], given_PN[:, known_N]))
    else:
        found.append(category_correlation(values, after_N, given_PN))
    return max(found, key=abs)


def category_correlation(values: Sequence[Any], after_N: np.ndarray, given_PN: np.ndarray) -> float:
    """The partial rank correlation of a column of categories. Each category stands for the mean of after_N in one half of the rows, and is measured on the
    other. `values`: N cells, of which None is a category, too; after_N and given_PN as in `partial_rank_correlation`."""
    rank_N = _ranks(after_N)
    _, code_N = np.unique(np.array([str(value) for value in values]), return_inverse=True)
    half_N = np.random.default_rng(_SEED).permutation(len(values)) % 2 == 0
    found = []
    for learnt_N in (half_N, ~half_N):
        rows_V = np.bincount(code_N[learnt_N], minlength=code_N.max() + 1)
        sum_V = np.bincount(code_N[learnt_N], rank_N[learnt_N], minlength=len(rows_V))
        mean_V = (sum_V + rank_N[learnt_N].mean()) / (rows_V + 1)  # a category without rows in the other half has the mean of all
        found.append(partial_rank_correlation(mean_V[code_N[~learnt_N]], after_N[~learnt_N], given_PN[:, ~learnt_N]))
    return float(np.mean(found))


def partial_rank_correlation(one_N: np.ndarray, other_N: np.ndarray, given_PN: np.ndarray) -> float:
    """The correlation of the ranks of one_N and other_N, both without the part that the ranks of given_PN explain (least squares).
    It is from -1 to 1, and 0 if one of them is constant."""
    given_NP = np.stack([_ranks(given_N) for given_N in (*given_PN, np.zeros(len(one_N)))], axis=1)
    left = [_rest(values_N, given_NP) for values_N in (one_N, other_N)]
    size = float(np.linalg.norm(left[0]) * np.linalg.norm(left[1]))
    return float(left[0] @ left[1]) / size if size > 1e-9 * len(one_N) else 0.0


def _rest(values_N: np.ndarray, given_NP: np.ndarray) -> np.ndarray:
    """The ranks of some values without the part that is explained."""
    rank_N = _ranks(values_N)
    return np.asarray(rank_N - given_NP @ np.linalg.lstsq(given_NP, rank_N, rcond=None)[0])


def _ranks(values_N: np.ndarray) -> np.ndarray:
    """Ranks from 0 to 1, equal values the mean of theirs."""
    _, place_N, count_V = np.unique(values_N, return_inverse=True, return_counts=True)
    return np.asarray(((np.cumsum(count_V) - (count_V + 1) / 2) / len(values_N))[place_N])


def gamma(one_G: np.ndarray, other_G: np.ndarray) -> float:
    """Of the pairs that differ in both: those in the same order minus those in the other, as a share of all. -1 to 1, 0 if absent."""
    sign_GG = (np.sign(values_G[:, None] - values_G).astype(np.int8) for values_G in (one_G, other_G))
    agrees_GG = np.multiply(*sign_GG)
    return float(agrees_GG.sum(dtype=np.int64) / max(1, np.count_nonzero(agrees_GG)))
