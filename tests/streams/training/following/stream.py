"""A stream to follow, for tests: users who like one half of the items, told as events that can be published bit by bit."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.model.checkpoint import write_checkpoint
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from streams.training.impressions import Events
from tests.schemas.catalogue import small_spec

ITEMS, SHOWN = 30, 5


@dataclass
class TasteStream:
    """`events(n)` publishes the next n impressions and the records before each; `now_ms` is the time of the last."""

    seed: int = 0
    now_ms: int = 1_000_000
    told: int = 0
    chance: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)
        self.side = np.arange(ITEMS) % 2
        self.embeddings = self.chance.standard_normal((ITEMS, 16)) * 0.2 + np.where(self.side, 1.0, -1.0)[:, None]

    @property
    def spec(self) -> ModelSpec:
        return dataclasses.replace(small_spec(), hash_bits=64)

    def network(self, seed: int = 0) -> AifNetwork:
        torch.manual_seed(seed)
        return AifNetwork(self.spec, make_w_hash(1, 64, 16))

    def catalogue(self) -> Events:
        items = [ItemFeaturesUpdate(item_id=n, version=1, features={"category": n % 5, "price": 1.0, "stock": 1}) for n in range(ITEMS)]
        new = [NewItem(item_id=n, embedding=self.embeddings[n].tolist()) for n in range(ITEMS)]
        return Events(items, new, [UserFeaturesRecord(user_id=n, features={"country": "UK"}) for n in range(6)], [], [])

    def events(self, impressions: int, users: int = 12) -> Events:
        """Each impression is of a user with two behaviours just before it; now and then an item changes between two of them."""
        items, behaviours, shown = [], [], []
        for _ in range(impressions):
            self.now_ms += 10
            user = int(self.chance.integers(users))
            liked = np.flatnonzero(self.side == user % 2)
            behaviours += [Behaviour(user_id=user, item_id=int(n), time_ms=self.now_ms - 1) for n in self.chance.choice(liked, 2)]
            if self.told % 3 == 0:
                changed = int(self.chance.integers(ITEMS))
                told = {"category": changed % 5, "price": 1.0, "stock": int(self.chance.integers(9))}
                items.append(ItemFeaturesUpdate(item_id=changed, version=self.now_ms + 5, features=told))
            picked = self.chance.choice(ITEMS, SHOWN, replace=False).tolist()
            clicked = [ShownItem(item_id=n, position=p, bid=1.0, clicked=bool(self.side[n] == user % 2)) for p, n in enumerate(picked)]
            shown.append(ImpressionRecord(request_id=f"r{self.told}", user_id=user, time_ms=self.now_ms, items=clicked))
            self.told += 1
        return Events(items, [], [], behaviours, shown)


def write_base(path: Path, stream: TasteStream) -> Path:
    """An untrained checkpoint to start from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, stream.network(), path.stem, {})
    return path


def joined(parts: Sequence[Events]) -> Events:
    """One log of several parts."""
    names = [f.name for f in dataclasses.fields(Events)]
    return Events(*([e for part in parts for e in getattr(part, name)] for name in names))
