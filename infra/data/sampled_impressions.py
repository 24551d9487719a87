"""Impressions and held-out users from positives alone: the recipe of catalogues that tell what was bought but not what was shown.

    cut t       every `every_days`, the last one `window_days` before the evaluation begins
    request     one per user with a history before t and a positive in [t, t + window), at time t
    positives   up to `positives_max` of the user's items in the window, among the items sold in the last `pool_days` before t
    negatives   `negatives` for each, uniform over those items without what the user took in the window
    evaluation  the same at the time where the evaluation begins, with all candidates instead of a sample

Here: which items, as places. Not here: events. Invariants: no window reaches into the evaluation; the order of the items of a request says
nothing; the same interactions and seed give the same samples. Source: design section 8.

Arrays: I items, P pool, X interactions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from infra.data.interactions import Interactions
from infra.data.item_statistics import DAY_MS
from infra.data.mapping import Sampling

REQUESTS_MAX = 20_000
CUTS_MAX = 400


@dataclass(frozen=True, slots=True)
class SampledRequest:
    """One request: the user's place among the positives' users, the time, the items' places and which of them were taken."""

    user: int
    time_ms: int
    items: np.ndarray
    clicked: np.ndarray


def plan_cuts(first_ms: int, now_ms: int, window_ms: int, every_ms: int) -> list[int]:
    """The times of the requests, oldest first: whole windows before `now_ms`, with something before them."""
    last = now_ms - window_ms
    return list(range(last, first_ms, -max(1, every_ms)))[:CUTS_MAX][::-1]


def sample_requests(
    positives: Interactions, history: Interactions, items: int, cuts: list[int], window_ms: int, sampling: Sampling
) -> Iterator[SampledRequest]:
    """The requests of all cuts in order of time. `history` tells who is known; items from place `items` on are not in the catalogue."""
    requests_max = -(-REQUESTS_MAX // max(1, len(cuts)))
    for number, cut in enumerate(cuts):
        rng = np.random.default_rng([sampling.seed, number])
        pool = recent_items(positives, items, cut, sampling.pool_days)
        taken = taken_items(positives, history, cut, cut + window_ms)
        users = sorted(taken)
        if len(users) > requests_max:
            users = sorted(rng.choice(users, requests_max, replace=False).tolist())
        for user in users:
            request = _sample(rng, user, cut, taken[user], pool, sampling)
            if request is not None:
                yield request


def recent_items(positives: Interactions, items: int, time_ms: int, days: float) -> np.ndarray:
    """Places of the catalogue's items with a positive in the days before a time, ascending: [P]."""
    found = np.unique(positives.item_X[positives.before(time_ms - round(days * DAY_MS)) : positives.before(time_ms)])
    return found[found < items]


def taken_items(positives: Interactions, history: Interactions, start_ms: int, end_ms: int | None) -> dict[int, np.ndarray]:
    """The items that each user with a history before `start_ms` took from then on (and before `end_ms`), by the user's place, ascending."""
    known = {history.user_ids[u] for u in np.unique(history.user_X[: history.before(start_ms)]).tolist()}
    window = slice(positives.before(start_ms), len(positives) if end_ms is None else positives.before(end_ms))
    pairs = np.unique(np.stack([positives.user_X[window], positives.item_X[window]], 1), axis=0)
    users, first = np.unique(pairs[:, 0], return_index=True)
    taken = np.split(pairs[:, 1], first[1:])
    return {u: t for u, t in zip(users.tolist(), taken, strict=False) if positives.user_ids[u] in known}


def _sample(
    rng: np.random.Generator, user: int, cut: int, taken: np.ndarray, pool: np.ndarray, sampling: Sampling
) -> SampledRequest | None:
    """One request; None where the pool holds nothing to choose between."""
    liked = np.intersect1d(taken, pool, assume_unique=True)
    if not len(liked):
        return None
    liked = rng.permutation(liked)[: sampling.positives_max]
    wanted = sampling.negatives * len(liked)
    drawn = rng.choice(pool, min(len(pool), wanted + len(taken)), replace=False)
    others = drawn[~np.isin(drawn, taken)][:wanted]
    if not len(others):
        return None
    order = rng.permutation(len(liked) + len(others))
    return SampledRequest(user, cut, np.concatenate([liked, others])[order], (np.arange(len(order)) < len(liked))[order])


def draw_candidates(rng: np.random.Generator, pool: np.ndarray, relevant: np.ndarray, most: int) -> np.ndarray:
    """At most `most` places of the pool, all of `relevant` (which are in it) among them, ascending."""
    if len(pool) <= most:
        return pool
    others = rng.permutation(np.setdiff1d(pool, relevant, assume_unique=True))[: max(0, most - len(relevant))]
    return np.sort(np.concatenate([relevant[:most], others]))
