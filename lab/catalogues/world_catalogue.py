"""The synthetic world as a catalogue: its schema, and its truth as events.

Here: which noisy views are published, when, and under which ids; the held-out users with the right answers. Not here: the truth (world.py).
Invariants: no latent vector, taste or true quality is in any event; time stamps and versions are functions of the seed.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from infra.clock import DAY_MS
from infra.data.interactions import Interactions, Log
from lab.catalogues.catalogue import Evaluation, HeldOutUser
from lab.catalogues.world import EMBEDDING_WIDTH, FACET_WIDTH, FACETS, QUALITY_ATTRIBUTES, STYLES, World, used_places
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, RawFeatures, ShownItem, UserFeaturesRecord
from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import Id
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC, Transform
from schemas.train_choices import TrainChoices

START_MS = 1_767_225_600_000  # 2026-01-01: when the items were published
NOW_MS = START_MS + 40 * DAY_MS  # when the held-out users are measured
FIRST_ITEM_ID, FIRST_USER_ID = 100_000, 1_000
CHUNK_ITEMS = 4_096
CANDIDATES = 10_000
RELEVANT = 10
KINDS = ("click", "buy")
_SHOWN, _TIMES, _CANDIDATES, _CHANGES, _PROFILES, _BOUGHT = range(10, 16)
BUY = "buy"  # the outcome that a click may have
# Names for the world's categories and occasions, for people; no event has them.
_OCCASIONS = ("everyday", "office", "evening", "sports", "travel", "garden")
# fmt: off
_GOODS = (
    "jacket", "shirt", "sweater", "scarf", "hat", "gloves", "belt", "socks", "boots", "sandals", "sneakers", "backpack", "suitcase",
    "wallet", "watch", "ring", "necklace", "lamp", "chair", "table", "sofa", "shelf", "rug", "curtain", "pillow", "blanket", "towel",
    "mirror", "vase", "clock", "candle", "kettle", "mug", "plate", "bowl", "knife", "pan", "toaster", "blender", "mixer", "oven",
    "fridge", "heater", "fan", "phone", "tablet", "laptop", "keyboard", "headphones", "speaker", "camera", "lens", "tripod", "drone",
    "bicycle", "helmet", "tent", "stove", "torch", "rope", "ball", "racket", "skates", "puzzle",
)
# fmt: on

_VIEWS = {"style": STYLES, "attribute": QUALITY_ATTRIBUTES, "trait": FACET_WIDTH}  # groups of numeric item features


def world_schema() -> FeatureSchema:
    """The features of the world: the item half reads category, occasion, styles, attributes, traits and the embedding; the head the price."""
    numbers = tuple(Feature(f"{name}_{n}", Scope.ITEM, NUMERIC) for name, count in _VIEWS.items() for n in range(count))
    item = (
        Feature("category", Scope.ITEM, CATEGORICAL, buckets=1_024),
        Feature("occasion", Scope.ITEM, CATEGORICAL, buckets=64),
        *numbers,
        Feature("price", Scope.ITEM, NUMERIC, transform=Transform.LOG1P, mean=2.6, scale=0.9, default=12.0, realtime=True),
        Feature("bid", Scope.ITEM, NUMERIC, default=1.0),
        Feature("picture", Scope.ITEM, EMBEDDING, width=EMBEDDING_WIDTH),
    )
    user = (
        *(Feature(f"facet_{g}", Scope.USER, EMBEDDING, width=FACET_WIDTH) for g in range(FACETS)),
        Feature("price_level", Scope.USER, NUMERIC, mean=2.5, scale=0.6, default=2.5),
    )
    other = (
        Feature("dwell_s", Scope.BEHAVIOUR, NUMERIC, transform=Transform.LOG1P, mean=3.0),
        Feature("hour", Scope.CONTEXT, CATEGORICAL, buckets=64),
    )
    return FeatureSchema((*item, *user, *other), sim_category="category", bid="bid", multimodal="picture", behaviour_kinds=KINDS)


class WorldCatalogue:
    """A `Catalogue` of the synthetic world. Item row i has id FIRST_ITEM_ID + i, user row u FIRST_USER_ID + u."""

    model: Mapping[str, Any] = {"rank_by": "ecpm"}
    train = TrainChoices(steps=200)

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def schema(self) -> FeatureSchema:
        return world_schema()

    @property
    def item_count(self) -> int:
        return self.world.size.items

    @property
    def impression_count(self) -> int:
        return self.world.size.users * self.world.size.requests_per_user

    def title(self, features: Mapping[str, Any]) -> str:
        category, occasion = int(features["category"][1:]), int(features["occasion"][1:])
        return f"{_OCCASIONS[occasion % len(_OCCASIONS)]} {_GOODS[category % len(_GOODS)]}, {features['price']:.2f}"

    def items(self) -> Iterator[ItemFeaturesUpdate]:
        for first in range(0, self.item_count, CHUNK_ITEMS):
            rows = np.arange(first, min(first + CHUNK_ITEMS, self.item_count))
            for row, features in zip(rows.tolist(), self._item_features(rows), strict=True):
                yield ItemFeaturesUpdate(item_id=FIRST_ITEM_ID + row, version=START_MS, features=features)

    def _item_features(self, rows: np.ndarray) -> list[dict[str, Any]]:
        items = self.world.items
        names = [f"{name}_{n}" for name, count in _VIEWS.items() for n in range(count)]
        numbers = np.round(np.concatenate([items.style_IA[rows], items.attributes_IA[rows], items.facet_IF[rows]], 1).astype(np.float64), 3)
        price, bid = (
            np.round(np.expm1(items.log_price_I[rows].astype(np.float64).clip(0.1)), 2),
            np.round(items.bid_I[rows].astype(np.float64), 4),
        )
        columns = zip(
            items.category_I[rows].tolist(), items.occasion_I[rows].tolist(), numbers.tolist(), price.tolist(), bid.tolist(), strict=True
        )
        return [
            {"category": f"c{c}", "occasion": f"o{o}", **dict(zip(names, values, strict=True)), "price": p, "bid": b}
            for c, o, values, p, b in columns
        ]

    def new_items(self) -> Iterator[NewItem]:
        for first in range(0, self.item_count, CHUNK_ITEMS):
            last = min(first + CHUNK_ITEMS, self.item_count)
            embeddings = np.round(self.world.embeddings_of(first, last).astype(np.float64), 4)
            for row, embedding in enumerate(embeddings.tolist(), first):
                yield NewItem(item_id=FIRST_ITEM_ID + row, embedding=embedding)

    @cached_property
    def _profiles(self) -> list[dict[str, Any]]:
        users, rng = self.world.users, self.world.rng(_PROFILES)
        facets = np.round(users.facets_UGF + 0.1 * rng.standard_normal(users.facets_UGF.shape), 3)
        level = np.round(users.price_level_U + 0.1 * rng.standard_normal(users.price_level_U.shape), 3)
        return [
            {**{f"facet_{g}": f for g, f in enumerate(fs)}, "price_level": p} for fs, p in zip(facets.tolist(), level.tolist(), strict=True)
        ]

    def users(self) -> Iterator[UserFeaturesRecord]:
        for user, features in enumerate(self._profiles):
            yield UserFeaturesRecord(user_id=FIRST_USER_ID + user, features=features)

    @cached_property
    def behaviour_columns(self) -> dict[str, np.ndarray]:
        """All behaviours in order of time: user row, item row, bought, dwell_s, time_ms. Thirty days a user, evenly with jitter."""
        histories, rng, parts = self.world.histories, self.world.rng(_TIMES), []
        for wave, places in histories.waves:
            length = histories.length_U[wave]
            used_UL = used_places(length, places)
            age_UL = (places - np.arange(places) - rng.random(used_UL.shape)) / length[:, None]
            time_ms = NOW_MS - 1 - (age_UL * 30 * DAY_MS).astype(np.int64)
            parts.append((time_ms[used_UL], rng.normal(3.0, 0.7, used_UL.shape)[used_UL]))
        time_H, dwell_H = (np.concatenate(part) for part in zip(*parts, strict=True))
        columns = {
            "user": np.repeat(np.arange(len(histories.length_U)), histories.length_U),
            "item": histories.item_H,
            "bought": histories.bought_H,
            "dwell_s": np.round(np.exp(dwell_H + 0.5 * histories.bought_H)),
            "time_ms": time_H,
        }
        order = np.argsort(time_H, kind="stable")
        return {name: values[order] for name, values in columns.items()}

    def behaviours(self) -> Iterator[Behaviour]:
        columns = (values.tolist() for values in self.behaviour_columns.values())
        for user, item, bought, dwell_s, time_ms in zip(*columns, strict=True):
            yield self._behaviour(user, item, bought, dwell_s, time_ms)

    @staticmethod
    def _behaviour(user: int, item: int, bought: bool, dwell_s: float, time_ms: int) -> Behaviour:
        return Behaviour(
            user_id=FIRST_USER_ID + user, item_id=FIRST_ITEM_ID + item, kind=KINDS[bought], time_ms=time_ms, features={"dwell_s": dwell_s}
        )

    @cached_property
    def _shown(self) -> dict[str, np.ndarray]:
        """Requests R and their shown items S: half from the user's interests, half from anywhere; clicks by the true probability."""
        world, size, rng = self.world, self.world.size, self.world.rng(_SHOWN)
        user_R = np.tile(np.arange(size.users), size.requests_per_user)
        shape = (len(user_R), size.shown_per_request)
        interest = np.take_along_axis(world.users.interests_UQ[user_R], rng.integers(0, world.users.interests_UQ.shape[1], shape), 1)
        liked, any_item = (world.draw_in_category(rng, interest), rng.integers(0, size.items, shape))
        item_RS = np.where(np.arange(shape[1]) % 2 == 0, liked, any_item)
        blocks = range(0, len(user_R), 1_024)
        probability, purchase = (
            np.concatenate([of(user_R[a : a + 1_024], item_RS[a : a + 1_024]) for a in blocks])
            for of in (world.click_probability, world.purchase_probability)
        )
        time_R = np.sort(NOW_MS - (rng.random(len(user_R)) * 2 * DAY_MS).astype(np.int64))
        clicked = rng.random(shape) < probability
        bought = clicked & (world.rng(_BOUGHT).random(shape) < purchase)
        return {"user": user_R, "item": item_RS, "probability": probability, "clicked": clicked, "bought": bought, "time_ms": time_R}

    def impressions(self) -> Iterator[ImpressionRecord]:
        shown, bids = (self._shown, np.round(self.world.items.bid_I.astype(np.float64), 4))
        for r, (user, time_ms) in enumerate(zip(shown["user"].tolist(), shown["time_ms"].tolist(), strict=True)):
            item, bid = shown["item"][r], bids[shown["item"][r]]
            ecpm = np.round(shown["probability"][r] * bid, 6)
            outcomes = [[BUY] if bought else [] for bought in shown["bought"][r].tolist()]
            ids = item.tolist()
            rows = zip(ids, bid.tolist(), ecpm.tolist(), shown["clicked"][r].tolist(), outcomes, strict=True)
            listed = [
                ShownItem(item_id=FIRST_ITEM_ID + i, position=position, bid=b, teacher_ecpm=e, clicked=c, outcomes=o)
                for position, (i, b, e, c, o) in enumerate(rows)
                if ids.index(i) == position  # an item that is drawn again is shown once
            ]
            context: RawFeatures = {"hour": f"h{time_ms // 3_600_000 % 24}"}
            yield ImpressionRecord(request_id=f"world-{r}", user_id=FIRST_USER_ID + user, time_ms=time_ms, context=context, items=listed)

    def price_changes(self, n: int, seed: int) -> Iterator[ItemFeaturesUpdate]:
        """n drifted items: price and bid each move by at least 5 percent, never the same again for another seed."""
        rng = self.world.rng(_CHANGES, seed)
        rows = rng.integers(0, self.item_count, n)
        drift = np.exp(rng.choice((-1, 1), (n, 2)) * (0.05 + np.abs(rng.normal(0, 0.2, (n, 2)))))
        for k, (row, features) in enumerate(zip(rows.tolist(), self._item_features(rows), strict=True)):
            price, bid = (max(0.01, round(features["price"] * drift[k, 0], 2)), max(0.0001, round(features["bid"] * drift[k, 1], 4)))
            version = NOW_MS + seed * DAY_MS + k
            yield ItemFeaturesUpdate(item_id=FIRST_ITEM_ID + row, version=version, features={**features, "price": price, "bid": bid})

    def arrivals(self, n: int, seed: int) -> Iterator[tuple[ItemFeaturesUpdate, NewItem]]:
        """n new items made like random ones of the catalogue, with other embeddings; ids after the catalogue's, apart for each seed."""
        rng = self.world.rng(_CHANGES, seed, 1)
        rows = rng.integers(0, self.item_count, n)
        for k, (row, features) in enumerate(zip(rows.tolist(), self._item_features(rows), strict=True)):
            item_id = FIRST_ITEM_ID + self.item_count + seed * 1_000_000 + k
            embedding = self.world.embeddings_of(row, row + 1)[0] + 0.05 * rng.standard_normal(EMBEDDING_WIDTH)
            update = ItemFeaturesUpdate(item_id=item_id, version=NOW_MS + k, features=features)
            yield (update, NewItem(item_id=item_id, embedding=np.round(embedding.astype(np.float64), 4).tolist()))

    def evaluation(self) -> Evaluation:
        held_out = np.arange(self.world.size.users, self.world.size.users + self.world.size.held_out)
        rng, count = self.world.rng(_CANDIDATES), min(CANDIDATES, self.item_count)
        histories = self._histories_of(held_out)
        users = []
        for user in held_out.tolist():
            rows = np.sort(rng.choice(self.item_count, count, replace=False))
            best = rows[np.argsort(-self.world.true_ecpm(np.array([user]), rows[None])[0], kind="stable")[:RELEVANT]]
            relevant: frozenset[Id] = frozenset((FIRST_ITEM_ID + best).tolist())
            users.append(HeldOutUser(FIRST_USER_ID + user, self._profiles[user], histories[user], FIRST_ITEM_ID + rows, relevant))
        return Evaluation(tuple(users), self._popularity(), "HR", NOW_MS)

    @property
    def log(self) -> Log:
        columns = self.behaviour_columns
        users, items = (
            range(FIRST_USER_ID, FIRST_USER_ID + len(self.world.histories.length_U)),
            range(FIRST_ITEM_ID, FIRST_ITEM_ID + self.item_count),
        )
        taken = Interactions(users, items, KINDS, columns["user"], columns["item"], columns["bought"].astype(np.int64), columns["time_ms"])
        return Log(items, NOW_MS, taken, taken, None)

    def _histories_of(self, users: np.ndarray) -> dict[int, list[Behaviour]]:
        columns = self.behaviour_columns
        chosen = np.isin(columns["user"], users)
        histories: dict[int, list[Behaviour]] = {user: [] for user in users.tolist()}
        for row in zip(*(values[chosen].tolist() for values in columns.values()), strict=True):
            histories[row[0]].append(self._behaviour(*row))
        return histories

    def _popularity(self) -> dict[Id, float]:
        """Clicks in the impressions times the bid."""
        shown = self._shown
        clicks = np.bincount(shown["item"][shown["clicked"]], minlength=self.item_count)
        score = clicks * self.world.items.bid_I
        clicked = np.flatnonzero(clicks)
        return dict(zip((FIRST_ITEM_ID + clicked).tolist(), score[clicked].tolist(), strict=True))
