"""A synthetic world that moves: tastes and popularity change with time, seeded like the world itself.

Here: the truth of a moment (`MovedWorld`), and the events of a period (`DriftingCatalogue`). Not here: the world that does not move (world.py), the
follower (streams/training/following).
Items and their features, embeddings, bids and the facets of users stay. These move, with `phase` from 0 (the world as it was) to 1:

    popularity  quality turns from one function of the attributes to another one that has nothing to do with it, and with it which categories
                are in fashion: no feature of an item tells it, only clicks do
    tastes      each user's interests pass on to others at a time of their own, and their style turns; behaviours tell of it
    prices      everybody likes to pay more

Behaviours of a period follow the tastes of that period, so histories stay true for a model that does not learn any more. It loses only the part that
learning alone can give. Signals keep mean and deviation, so ranking is as hard at every phase.

Arrays: I items, U users, Z latent width, Q interests, A attributes, C categories, T two moments (before, after).
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from infra.clock import DAY_MS
from lab.catalogues.world import _HISTORIES, QUALITY_ATTRIBUTES, SIGNALS, STYLES, Items, Users, World, WorldSize, _normal
from lab.catalogues.world_catalogue import _SHOWN, _TIMES, FIRST_USER_ID, NOW_MS, WorldCatalogue
from schemas.events import Behaviour, ImpressionRecord

DRIFT_SIGNALS = SIGNALS | {"quality": 1.6, "style": 0.6}
BEHAVIOURS_PER_PERIOD = 10
_PRICE_SHIFT = 0.8  # of the logarithm
_DRIFT = 31  # stream of random numbers of what the world moves to
_OF_A_PERIOD = frozenset({_HISTORIES, _SHOWN, _TIMES})  # drawn again in each


@dataclass(frozen=True)
class MovedWorld(World):
    """The world at one phase. `still` is the one that does not move; the draws depend on `period`, the truth on `phase`."""

    still: World = field(default_factory=World)
    period: int = 0
    phase: float = 0.0

    def rng(self, *stream: int) -> np.random.Generator:
        return super().rng(*stream, self.period) if stream[0] in _OF_A_PERIOD else super().rng(*stream)

    def _turned(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """From one to the other, both independent and of one spread: the spread stays."""
        angle = self.phase * np.pi / 2
        return (np.cos(angle) * before + np.sin(angle) * after).astype(np.float32)

    @cached_property
    def items(self) -> Items:
        """The same items; another quality."""
        items, rng = self.still.items, self.rng(_DRIFT)
        layer, out = _normal(rng, QUALITY_ATTRIBUTES, 16) * 0.6, _normal(rng, 16) * 0.4
        fashion_CT = _normal(rng, self.size.categories, 2)
        liked_TI = np.stack([items.quality_I, np.tanh(items.attributes_IA @ layer) @ out])
        liked_TI = liked_TI / liked_TI.std(1, keepdims=True) + fashion_CT[items.category_I].T
        standard_TI = (liked_TI - liked_TI.mean(1, keepdims=True)) / liked_TI.std(1, keepdims=True)
        return dataclasses.replace(items, quality_I=self._turned(standard_TI[0], standard_TI[1]))

    @cached_property
    def users(self) -> Users:
        """The same people; other interests where their time has come, a turned style, higher prices."""
        users, rng = self.still.users, self.rng(_DRIFT, 1)
        n, count = users.interests_UQ.shape
        moved_UQ = rng.random((n, count)) < self.phase
        interests_UQ = np.where(moved_UQ, rng.integers(0, self.size.categories, (n, count)), users.interests_UQ)
        other_UQZ = self.still.items.latent_IZ[self.still.draw_in_category(self.rng(_DRIFT, 2), interests_UQ)]
        style_UQA = self._turned(users.style_taste_UQA, _normal(rng, n, count, STYLES))
        return dataclasses.replace(
            users,
            interests_UQ=interests_UQ,
            centre_UQZ=np.where(moved_UQ[:, :, None], other_UQZ, users.centre_UQZ),
            style_taste_UQA=style_UQA,
            price_level_U=users.price_level_U + _PRICE_SHIFT * self.phase,
        )


class DriftingCatalogue:
    """A moving world as events: the catalogue and the past of period 0, then period after period; in the last of
    `periods` the world has moved to `phase`."""

    def __init__(self, seed: int, size: WorldSize, periods: int, past_requests_per_user: int, phase: float = 1.0) -> None:
        self._size, self._past = size, dataclasses.replace(size, requests_per_user=past_requests_per_user)
        self._phase_per_period = phase / periods
        self._still = World(seed, size, DRIFT_SIGNALS)
        self.first = WorldCatalogue(self.world(0))

    def world(self, period: int) -> MovedWorld:
        """The truth of a period; of period 0 with as many impressions as the past has."""
        size = self._size if period else self._past
        return MovedWorld(self._still.seed, size, DRIFT_SIGNALS, still=self._still, period=period, phase=period * self._phase_per_period)

    def begin_ms(self, period: int) -> int:
        """When a period begins: a day each, period 1 where the past ends."""
        return NOW_MS + (period - 1) * DAY_MS

    def behaviours(self, period: int) -> Iterator[Behaviour]:
        """The past of everybody, or the newest behaviours of a period, held-out users included, in order of time."""
        past = WorldCatalogue(self.world(period)).behaviours()
        if period == 0:
            yield from past
            return
        newest: dict[int | str, list[Behaviour]] = {}
        for behaviour in past:
            newest.setdefault(behaviour.user_id, []).append(behaviour)
        for number, of_user in enumerate(newest.values()):
            for place, b in enumerate(of_user[-BEHAVIOURS_PER_PERIOD:]):
                at = self.begin_ms(period) + (place * DAY_MS + number) // BEHAVIOURS_PER_PERIOD
                yield b.model_copy(update={"time_ms": at})

    def impressions(self, period: int) -> Iterator[ImpressionRecord]:
        """The impressions of a period, in order of time; the times of the past end where period 1 begins."""
        shown = WorldCatalogue(self.world(period)).impressions()
        if period == 0:
            yield from shown
            return
        requests = self._size.users * self._size.requests_per_user
        for number, record in enumerate(shown):
            at = self.begin_ms(period) + DAY_MS * number // requests
            context = {"hour": f"h{at // 3_600_000 % 24}"}
            yield record.model_copy(update={"time_ms": at, "request_id": f"drift-{period}-{number}", "context": context})

    @property
    def held_out(self) -> np.ndarray:
        """Rows of the users that are in no impression."""
        return np.arange(self._size.users, self._size.users + self._size.held_out)

    @property
    def held_out_ids(self) -> list[int]:
        """Their ids."""
        return (FIRST_USER_ID + self.held_out).tolist()
