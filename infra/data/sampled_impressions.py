"""Impressions sampled from positives alone, for data with purchases but without shown items.

    cut t       every `every_days`, the last one `window_days` before the evaluation begins
    request     one per user with a history before t and a positive in [t, t + window), at time t
    positives   up to `positives_max` of the user's items in the window, among the items taken in the last `pool_days` before t, or ever
    negatives   `negatives` for each, uniform over those items without what the user took in the window
    round       where the cuts give very few requests, each is asked again with other positives and negatives, because the evaluation asks as a cut does
    moment      where the cuts give few requests (users are active for a day only): one at a time at which its user took something, with the positives
                from then on
    evaluation  the same at the time where the evaluation begins, with all candidates instead of a sample

Here: which items, as places. Not here: events. Invariants: no window reaches into the evaluation; the order of a request's items carries no information;
the same interactions and seed give the same samples.
Memory: of moments, the order of the positives by user.

Arrays: I items, P pool, X interactions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from infra.clock import DAY_MS
from infra.data.interactions import Interactions
from infra.data.mapping import Sampling

REQUESTS_MAX = 20_000
CUTS_MAX = 400
REQUESTS_LEAST = 4_000  # with moments, where the cuts have fewer
REQUESTS_FEW = REQUESTS_LEAST // 2  # of the cuts; of fewer a network learns the items by heart
ROUNDS_OF_FEW = 4
_POOLS = 100  # of moments: each pool is as of the first of some


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
    return list(range(last, first_ms, -max(1, every_ms))[:CUTS_MAX])[::-1]


def sample_requests(
    positives: Interactions, history: Interactions, items: int, cuts: list[int], window_ms: int, sampling: Sampling, rounds: int = 1
) -> Iterator[SampledRequest]:
    """The requests of all cuts in order of time, each in so many rounds with a sample of its own. `history` tells who is known; items from place `items` on
    are not in the catalogue."""
    requests_max = -(-REQUESTS_MAX // max(1, len(cuts)))
    known = KnownUsers(positives, history)
    for number, cut in enumerate(cuts):
        rng = np.random.default_rng([sampling.seed, number])
        pool = recent_items(positives, items, cut, sampling.pool_days)
        users = known.takers(cut, cut + window_ms).tolist()
        if len(users) > requests_max:
            users = sorted(rng.choice(users, requests_max, replace=False).tolist())
        taken = taken_items(positives, users, cut, cut + window_ms)
        for user in users * rounds:
            request = _sample(rng, user, cut, taken[user], pool, sampling)
            if request is not None:
                yield request


def sample_moments(
    positives: Interactions, history: Interactions, items: int, until_ms: int, window_ms: int, sampling: Sampling, count: int
) -> Iterator[SampledRequest]:
    """Requests at times at which their users took something, in order of time; each asks for what the user takes from then on."""
    if not count:
        return
    rng = np.random.default_rng([sampling.seed, REQUESTS_MAX])
    user_X, item_X, time_X = (column[: positives.before(until_ms)] for column in (positives.user_X, positives.item_X, positives.time_X))
    known = np.flatnonzero((KnownUsers(positives, history).first_U[user_X] < time_X) & (time_X <= until_ms - window_ms))
    chosen = np.sort(rng.choice(known, min(count, len(known)), replace=False))
    by_user = np.argsort(user_X, kind="stable")
    begin_U = np.searchsorted(user_X[by_user], np.arange(len(positives.user_ids) + 1))
    for part in np.array_split(chosen, _POOLS):
        if not len(part):
            continue
        pool = recent_items(positives, items, int(time_X[part[0]]), sampling.pool_days)
        for user, time_ms in zip(user_X[part].tolist(), time_X[part].tolist(), strict=True):
            own = by_user[begin_U[user] : begin_U[user + 1]]
            first, last = np.searchsorted(time_X[own], [time_ms, time_ms + window_ms])
            request = _sample(rng, user, time_ms, np.unique(item_X[own[first:last]]), pool, sampling)
            if request is not None:
                yield request


def recent_items(positives: Interactions, items: int, time_ms: int, days: float | None) -> np.ndarray:
    """Places of the catalogue's items with a positive in the days before a time, or ever before it, ascending: [P]."""
    return np.flatnonzero(positives.counts(items, 0 if days is None else time_ms - round(days * DAY_MS), time_ms))


def have_few_requests(positives: Interactions, history: Interactions, cuts: list[int], window_ms: int) -> bool:
    """Whether these cuts give fewer than REQUESTS_FEW requests."""
    known, requests = KnownUsers(positives, history), 0
    for cut in cuts[::-1]:  # the newest has most users
        requests += len(known.takers(cut, cut + window_ms))
        if requests >= REQUESTS_FEW:
            return False
    return True


class KnownUsers:
    """Which users of the positives have a history before a time. `first_U`: the time of the first behaviour of each, [users of the positives]."""

    def __init__(self, positives: Interactions, history: Interactions) -> None:
        self._positives, never = positives, np.iinfo(np.int64).max
        first_U = np.full(len(history.user_ids), never)
        for block in history.blocks():
            np.minimum.at(first_U, block.user_X, block.time_X)
        if positives.user_ids is not history.user_ids:
            first_of = dict(zip(history.user_ids, first_U.tolist(), strict=True))
            first_U = np.array([first_of.get(user, never) for user in positives.user_ids], np.int64)
        self.first_U = first_U

    def takers(self, start_ms: int, end_ms: int, pool: np.ndarray | None = None) -> np.ndarray:
        """Places of the known users with a positive in [start, end), in the pool where one is given, ascending."""
        taken_U = np.zeros(len(self._positives.user_ids), bool)
        for block in self._positives.blocks(self._positives.before(start_ms), self._positives.before(end_ms)):
            taken_U[block.user_X if pool is None else block.user_X[np.isin(block.item_X, pool)]] = True
        return np.flatnonzero(taken_U & (self.first_U < start_ms))


def taken_items(positives: Interactions, users: Sequence[int], start_ms: int, end_ms: int) -> dict[int, np.ndarray]:
    """The items that each of these users took from a time on and before another, by the user's place, ascending."""
    wanted_U = np.zeros(len(positives.user_ids), bool)
    wanted_U[list(users)] = True
    found = [np.zeros((0, 2), np.int64)]
    for block in positives.blocks(positives.before(start_ms), positives.before(end_ms)):
        chosen = block.take(wanted_U[block.user_X])
        found.append(np.stack([chosen.user_X, chosen.item_X], 1))
    pairs = np.unique(np.concatenate(found), axis=0)
    takers, first = np.unique(pairs[:, 0], return_index=True)
    return dict(zip(takers.tolist(), np.split(pairs[:, 1], first[1:]), strict=False))


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
