"""The seeded synthetic world: users with tastes, items with attributes, and the true probability of a click.

Here: the truth (latent vectors, tastes, histories, the click probability). Not here: events (world_catalogue.py), training, Kafka.
Invariants: the same (seed, size) gives the same world. The first items of a larger world with as many categories are the items of a smaller one.
Latent vectors leave this file only as noisy views (`embeddings_of`).

Every signal of a click is one that a named part of AIF can pick up, and is measured by one weight of `SIGNALS`:

    interest   several interests of a user in the latent space of items      LSH-DIN and SimTier over the whole history (Eq. 7-9)
    current    the interest that dominates the last 20 behaviours            self- and cross-attention over behaviours (Eq. 2-3)
    style      a taste for style that differs by category, absent from the   SIM-hard: the sub-sequence of the candidate's category
               multimodal embedding
    facet      an item's occasion picks which facet of the user matters      bridge embeddings (BEA, Algorithm 1)
    quality    a non-linear function of item attributes                      the item half (Eq. 4)
    price      distance of the price from what the user likes to pay         raw real-time features in the head

Histories are short by default. `LIGHT` and `KUAIRAND_1K` give lengths as real services have them, and more interests than the recent behaviours show.

Arrays: I items, U users, H behaviours of all users, L places of a history, S items of one user.
Also: Z latent width, Q interests, G facets, F facet width, A attributes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

LATENT_WIDTH, EMBEDDING_WIDTH = 16, 64
STYLES, QUALITY_ATTRIBUTES, FACETS, FACET_WIDTH = 4, 6, 6, 4
_FAITHFUL = 0.9  # share of a run's behaviours that follow its interest
RECENT = 20  # behaviours dominated by the current interest
CHUNK_ITEMS = 65_536
WAVE_PLACES = 1 << 20  # places of the histories that are drawn together
BLOCK_PLACES = 256 * 96
NOISE_CHUNK_ITEMS = 256  # small chunks, so that the embedding of a single item is cheap
SIGNALS = {"interest": 1.5, "current": 0.7, "style": 0.3, "facet": 0.9, "quality": 0.9, "price": 0.5}
CLICK_BIAS = -4.5
# After a click, the user buys by other weights: price and quality count more than taste.
PURCHASE = {"interest": 0.4, "quality": 0.8, "price": 1.0}
PURCHASE_BIAS = -0.7

_ITEMS, _EMBEDDINGS, _USERS, _HISTORIES, _CONSTANTS = range(5)  # streams of random numbers: a change in one does not change the others


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """The lengths of histories, and their content.

    lengths    (z, behaviours), ascending: the length of a user whose standard normal draw is z, interpolated in logarithms; the ends are bounds
    interests  Q of a user
    stray      share of behaviours that follow no interest
    run        mean number of behaviours in a row that mostly follow one interest, so that recent behaviours show few of the interests;
               1 = each follows its own
    """

    lengths: tuple[tuple[float, int], ...] = (
        (2 * math.log(12 / 45), 12),
        (0.0, 45),
        (2 * math.log(96 / 45), 96),
    )  # log-normal, deviation 1/2
    interests: int = 4
    stray: float = 0.1
    run: int = 1

    @property
    def longest(self) -> int:
        """The most behaviours of a user."""
        return self.lengths[-1][1]

    def lengths_of(self, z_U: np.ndarray) -> np.ndarray:
        """Behaviours of each user, int64 [U]."""
        at, behaviours = zip(*self.lengths, strict=True)
        return (np.exp(np.interp(z_U, at, np.log(behaviours))) + 1e-6).astype(np.int64)


# P10, P50, P90, P99 and maximum as published for KuaiRand-1K; its minimum is not published.
KUAIRAND_1K = HistoryShape(
    ((-3.09, 100), (-1.2816, 1_998), (0.0, 8_327), (1.2816, 24_418), (2.3263, 62_626), (3.09, 127_557)), 12, 0.3, 200
)
LIGHT = HistoryShape(((-2.3263, 30), (0.0, 300), (2.3263, 3_000)), 12, 0.3, 25)


@dataclass(frozen=True, slots=True)
class WorldSize:
    """How many of each. `held_out` users come after the `users` and never appear in impressions."""

    items: int = 20_000
    users: int = 2_000
    held_out: int = 300
    requests_per_user: int = 6
    shown_per_request: int = 24
    history: HistoryShape = HistoryShape()

    @property
    def categories(self) -> int:
        return max(1, min(64, self.items // 8))


@dataclass(frozen=True)
class Items:
    """The true items, one row each. `latent_IZ` and `quality_I` are never published."""

    category_I: np.ndarray
    latent_IZ: np.ndarray
    style_IA: np.ndarray
    attributes_IA: np.ndarray
    quality_I: np.ndarray
    facet_IF: np.ndarray
    occasion_I: np.ndarray
    log_price_I: np.ndarray
    bid_I: np.ndarray


@dataclass(frozen=True)
class Users:
    """The true users, held-out ones last. Only the facets and the price level are published, with noise."""

    interests_UQ: np.ndarray  # categories
    centre_UQZ: np.ndarray  # where in the latent space
    weight_UQ: np.ndarray
    current_U: np.ndarray
    style_taste_UQA: np.ndarray
    facets_UGF: np.ndarray
    price_level_U: np.ndarray


@dataclass(frozen=True)
class Histories:
    """Behaviours, user after user, the newest of each last. `waves` has (users, places): those that are drawn together, right-aligned in so many places."""

    item_H: np.ndarray
    bought_H: np.ndarray
    length_U: np.ndarray
    waves: tuple[tuple[slice, int], ...]

    def items_of(self, user: int) -> np.ndarray:
        """Item rows of one user, oldest first, [L]."""
        end = int(self.length_U[: user + 1].sum())
        return self.item_H[end - int(self.length_U[user]) : end]


def used_places(length_U: np.ndarray, places: int) -> np.ndarray:
    """Which places of right-aligned histories hold a behaviour, bool [U, L]."""
    return np.arange(places) >= places - length_U[:, None]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class World:
    """One world. Everything is drawn on first use and kept; nothing depends on the order of the calls.

    Worlds that differ in `signals` only have the same items, users and histories: other clicks.
    """

    seed: int = 0
    size: WorldSize = WorldSize()
    signals: Mapping[str, float] = field(default_factory=lambda: SIGNALS, hash=False)

    def rng(self, *stream: int) -> np.random.Generator:
        """A generator for one purpose, the same in every process."""
        return np.random.default_rng([self.seed, *stream])

    @cached_property
    def items(self) -> Items:
        """All items, drawn in chunks, so that an item does not depend on how many follow it."""
        chunks = [self._draw_items(chunk) for chunk in range(-(-self.size.items // CHUNK_ITEMS))]
        return Items(**{name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]})

    def _draw_items(self, chunk: int) -> dict[str, np.ndarray]:
        constants, categories = self.rng(_CONSTANTS), self.size.categories
        centre_CZ = _unit(_normal(constants, categories, LATENT_WIDTH))
        layer, out = (_normal(constants, QUALITY_ATTRIBUTES, 16) * 0.6, _normal(constants, 16) * 0.4)
        category_price = _normal(constants, categories) * 0.7
        first = chunk * CHUNK_ITEMS
        rows = min(CHUNK_ITEMS, self.size.items - first)
        rng = self.rng(_ITEMS, chunk)
        category = rng.integers(0, categories, CHUNK_ITEMS)[:rows]
        covered = min(categories, rows) if chunk == 0 else 0
        category[:covered] = np.arange(covered)  # no category is empty
        drawn = {
            width: _normal(self.rng(_ITEMS, chunk, width), rows, n)
            for width, n in enumerate((LATENT_WIDTH, STYLES, QUALITY_ATTRIBUTES, FACET_WIDTH, 2))
        }
        occasion = self.rng(_ITEMS, chunk, 9).integers(0, FACETS, rows)
        return {
            "category_I": category,
            "latent_IZ": _unit(centre_CZ[category] + 0.9 * _unit(drawn[0])),
            "style_IA": drawn[1],
            "attributes_IA": drawn[2],
            "quality_I": np.tanh(drawn[2] @ layer) @ out,
            "facet_IF": drawn[3],
            "occasion_I": occasion,
            "log_price_I": 2.5 + 0.5 * drawn[4][:, 0] + category_price[category],
            "bid_I": np.exp(0.3 * drawn[4][:, 1]),
        }

    def embeddings_of(self, first: int, last: int) -> np.ndarray:
        """The published multimodal embeddings of items first..last-1: a noisy linear view of the latents, [last - first, EMBEDDING_WIDTH]."""
        view_ZE = _normal(self.rng(_CONSTANTS, 1), LATENT_WIDTH, EMBEDDING_WIDTH) / np.sqrt(LATENT_WIDTH)
        chunks = range(first // NOISE_CHUNK_ITEMS, -(-last // NOISE_CHUNK_ITEMS))
        noise = np.concatenate([_normal(self.rng(_EMBEDDINGS, chunk), NOISE_CHUNK_ITEMS, EMBEDDING_WIDTH) for chunk in chunks])
        noise = noise[first % NOISE_CHUNK_ITEMS :][: last - first]
        return np.round(self.items.latent_IZ[first:last] @ view_ZE + 0.12 * noise, 4)

    @cached_property
    def _by_category(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Items in category order, and where each category begins and how many it has."""
        count = np.bincount(self.items.category_I, minlength=self.size.categories)
        return (np.argsort(self.items.category_I, kind="stable"), np.cumsum(count) - count, count)

    def draw_in_category(self, rng: np.random.Generator, categories: np.ndarray) -> np.ndarray:
        """A uniform item of each given category, same shape."""
        order, begin, count = self._by_category
        return order[begin[categories] + (rng.random(categories.shape) * count[categories]).astype(np.int64)]

    @cached_property
    def users(self) -> Users:
        """All users, held-out ones last."""
        rng, n, count = self.rng(_USERS), self.size.users + self.size.held_out, self.size.history.interests
        interests = np.argsort(rng.random((n, self.size.categories)), axis=1)[:, :count]
        if interests.shape[1] < count:  # a tiny world: interests may share a category
            interests = rng.integers(0, self.size.categories, (n, count))
        weight = rng.dirichlet(np.full(count, 1.5), n)
        return Users(
            interests_UQ=interests,
            centre_UQZ=self.items.latent_IZ[self.draw_in_category(rng, interests)],
            weight_UQ=weight.astype(np.float32),
            current_U=(rng.random((n, 1)) > np.cumsum(weight, 1)).sum(1).clip(0, count - 1),
            style_taste_UQA=_normal(rng, n, count, STYLES),
            facets_UGF=_normal(rng, n, FACETS, FACET_WIDTH),
            price_level_U=(2.5 + 0.6 * _normal(rng, n)),
        )

    @cached_property
    def histories(self) -> Histories:
        """Behaviours of every user: an interest, then the best of six items of its category by taste and quality."""
        rng, shape, n = self.rng(_HISTORIES), self.size.history, len(self.users.current_U)
        length_U = shape.lengths_of(rng.standard_normal(n))
        together, waves, parts, much = max(1, WAVE_PLACES // shape.longest), [], [], None
        for first in range(0, n, together):
            wave = slice(first, min(first + together, n))
            places = shape.longest if n <= together else max(RECENT, int(length_U[wave].max()))
            item_UL, utility_UL = self._draw_histories(rng, wave, places)
            much = np.quantile(utility_UL, 0.85) if much is None else much
            used_UL = used_places(length_U[wave], places)
            parts.append((item_UL[used_UL], utility_UL[used_UL] > much))
            waves.append((wave, places))
        item_H, bought_H = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Histories(item_H, bought_H, length_U, tuple(waves))

    def _draw_histories(self, rng: np.random.Generator, wave: slice, places: int) -> tuple[np.ndarray, np.ndarray]:
        """(items, how much each is liked) of the users of a wave, [U, L] each."""
        users, shape = self.users, self.size.history
        n = len(users.current_U[wave])
        which = (rng.random((n, places, 1)) > np.cumsum(users.weight_UQ[wave], 1)[:, None]).sum(2).clip(0, shape.interests - 1)
        if shape.run > 1:
            begins = rng.random((n, places)) < 1 / shape.run
            of_run = np.take_along_axis(which, np.maximum.accumulate(begins * np.arange(places), axis=1), 1)
            which = np.where(rng.random((n, places)) < _FAITHFUL, of_run, which)
        recent = rng.random((n, RECENT)) < 0.7
        which[:, -RECENT:] = np.where(recent, users.current_U[wave, None], which[:, -RECENT:])
        stray = rng.random((n, places)) < shape.stray  # curiosity: any item of any category
        any_category = rng.integers(0, self.size.categories, which.shape)
        category = np.where(stray, any_category, np.take_along_axis(users.interests_UQ[wave], which, 1))
        step = max(1, BLOCK_PLACES // places)
        blocks = [
            self._choose(rng, np.arange(n)[a : a + step] + wave.start, which[a : a + step], stray[a : a + step], category[a : a + step])
            for a in range(0, n, step)
        ]
        item, utility = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return item, utility

    def _choose(
        self, rng: np.random.Generator, user: np.ndarray, which: np.ndarray, stray: np.ndarray, category: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        users, items = self.users, self.items
        offered = self.draw_in_category(rng, np.repeat(category[:, :, None], 6, axis=2))
        row = user[:, None]
        centre, taste = users.centre_UQZ[row, which], users.style_taste_UQA[row, which]
        liking = 4 * np.einsum("uhkz,uhz->uhk", items.latent_IZ[offered], centre) + np.einsum(
            "uhka,uha->uhk", items.style_IA[offered], taste
        )
        utility = liking * ~stray[:, :, None] + 0.5 * items.quality_I[offered] + rng.gumbel(size=offered.shape)
        best = utility.argmax(2)[:, :, None]
        return np.take_along_axis(offered, best, 2)[:, :, 0], np.take_along_axis(utility, best, 2)[:, :, 0]

    def _signals(self, user: np.ndarray, item_US: np.ndarray) -> dict[str, np.ndarray]:
        """The raw signals of `SIGNALS`, each [len(user), S]."""
        users, items = self.users, self.items
        near_USQ = items.latent_IZ[item_US] @ users.centre_UQZ[user].transpose(0, 2, 1)
        row = np.arange(len(user))[:, None]
        same_USQ = items.category_I[item_US][:, :, None] == users.interests_UQ[user][:, None]
        style_USQ = items.style_IA[item_US] @ users.style_taste_UQA[user].transpose(0, 2, 1)
        facet_USF = users.facets_UGF[user][row, items.occasion_I[item_US]]
        return {
            "interest": np.log(np.einsum("usq,uq->us", np.exp(5 * near_USQ), users.weight_UQ[user])),
            "current": np.take_along_axis(near_USQ, users.current_U[user][:, None, None], 2)[:, :, 0],
            "style": (style_USQ * same_USQ).sum(2),
            "facet": np.einsum("usf,usf->us", items.facet_IF[item_US], facet_USF),
            "quality": items.quality_I[item_US],
            "price": -np.abs(items.log_price_I[item_US] - users.price_level_U[user][:, None]),
        }

    @cached_property
    def _scales(self) -> dict[str, tuple[float, float]]:
        """Mean and deviation of each signal over random pairs, so that the weights of `SIGNALS` are comparable."""
        rng = self.rng(_CONSTANTS, 2)
        user = rng.integers(0, self.size.users, 200)
        signals = self._signals(user, rng.integers(0, self.size.items, (200, 200)))
        return {name: (float(values.mean()), float(values.std()) + 1e-9) for name, values in signals.items()}

    def click_probability(self, user: np.ndarray, item_US: np.ndarray) -> np.ndarray:
        """The true probability of a click of user row u on each of its S items, [U, S] float32."""
        logit = np.full(item_US.shape, CLICK_BIAS, np.float32)
        for name, values in self._signals(user, item_US).items():
            mean, deviation = self._scales[name]
            logit += self.signals[name] * (values - mean) / deviation
        return 1 / (1 + np.exp(-logit))

    def purchase_probability(self, user: np.ndarray, item_US: np.ndarray) -> np.ndarray:
        """The true probability that user row u, having clicked, buys each of its S items, [U, S] float32."""
        logit = np.full(item_US.shape, PURCHASE_BIAS, np.float32)
        signals = self._signals(user, item_US)
        for name, weight in PURCHASE.items():
            mean, deviation = self._scales[name]
            logit += weight * (signals[name] - mean) / deviation
        return 1 / (1 + np.exp(-logit))

    def true_ecpm(self, user: np.ndarray, item_US: np.ndarray) -> np.ndarray:
        """Click probability times bid: what the ranking teacher sees, [U, S] float32."""
        return self.click_probability(user, item_US) * self.items.bid_I[item_US]
