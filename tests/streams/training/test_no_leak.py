"""What only the future knows is useless: the same planted tell-tale teaches everything before the impression and nothing from it on.

Clicks are drawn by chance, so only a planted leak can be learnt: behaviours on exactly the clicked items, or a stock that says which items were clicked. Both
are true of held-out users as well.
"""

import dataclasses
from operator import itemgetter

import numpy as np
import pytest
import torch

from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.model.inputs import map_tensors
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import Events, TrainingSet, join_events
from streams.training.measures import gauc
from streams.training.questions import score_tasks
from streams.training.trainer import fit
from tests.schemas.catalogue import small_spec
from tests.streams.training.shop import shop

USERS, ITEMS, SHOWN, IMPRESSION_MS = 120, 240, 6, 1_000


def planted(behaviours_ms: int | None, stock_ms: int | None) -> TrainingSet:
    """Each item is shown once, so a stock can tell its click. The tell-tales stand at the given times; None: they are not there."""
    chance = np.random.default_rng(0)
    shown_UC = np.stack([chance.permutation(ITEMS)[:SHOWN] for _ in range(USERS)])
    clicked_UC = chance.random((USERS, SHOWN)) < 0.5
    updates = [ItemFeaturesUpdate(item_id=n, version=1, features={"category": 1, "price": 1.0, "stock": 3}) for n in range(ITEMS)]
    behaviours, impressions = [], []
    for user, (items, clicked) in enumerate(zip(shown_UC.tolist(), clicked_UC.tolist(), strict=True)):
        at = IMPRESSION_MS + 10 * user  # so that a stock can be changed between two impressions
        listed = [ShownItem(item_id=i, position=p, bid=1.0, clicked=c) for p, (i, c) in enumerate(zip(items, clicked, strict=True))]
        impressions.append(ImpressionRecord(request_id=str(user), user_id=user, time_ms=at, items=listed))
        for item, click in zip(items, clicked, strict=True):
            if behaviours_ms is not None and click:
                behaviours.append(Behaviour(user_id=user, item_id=item, time_ms=at + behaviours_ms))
            if stock_ms is not None:
                told = {"category": 1, "price": 1.0, "stock": 9 if click else 0}
                updates.append(ItemFeaturesUpdate(item_id=item, version=at + stock_ms, features=told))
    embeddings = chance.standard_normal((ITEMS, 16))
    new_items = [NewItem(item_id=n, embedding=embeddings[n].tolist()) for n in range(ITEMS)]
    spec = dataclasses.replace(small_spec(), hash_bits=64)
    return join_events(spec, make_w_hash(1, 64, 16), Events(updates, new_items, [], behaviours, impressions))


def held_out_gauc(data: TrainingSet) -> float:
    """GAUC of users 80.. after training on users ..79."""
    torch.manual_seed(0)
    network = AifNetwork(data.spec, make_w_hash(1, 64, 16))
    fit(network, data.take(np.arange(80)), TrainChoices(steps=60, batch_requests=16, copr=0.0))
    held_out = data.take(np.arange(80, USERS))
    scores = score_tasks(network, held_out)[..., 0]
    return gauc(np.repeat(np.arange(len(held_out)), SHOWN), scores.ravel(), held_out.clicked_QC.ravel())


@pytest.mark.parametrize(("behaviours_ms", "stock_ms"), [(-5, None), (None, -1)], ids=["behaviours", "stock"])
def test_a_tell_tale_before_the_impression_is_learnt(behaviours_ms: int | None, stock_ms: int | None) -> None:
    assert held_out_gauc(planted(behaviours_ms, stock_ms)) > 0.85


@pytest.mark.parametrize(
    ("behaviours_ms", "stock_ms"), [(0, None), (1, None), (None, 1)], ids=["behaviours-at-once", "behaviours", "price"]
)
def test_the_same_tell_tale_from_the_impression_on_is_useless(behaviours_ms: int | None, stock_ms: int | None) -> None:
    assert abs(held_out_gauc(planted(behaviours_ms, stock_ms)) - 0.5) < 0.12


def read_by_a_step(events: Events) -> list[np.ndarray]:
    """What a step reads of users and items, as of each impression of the shop."""
    data = join_events(shop()[0], None, events)
    batch = data.batch(np.arange(len(data)))
    found: list[np.ndarray] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.numpy())
        return tensor

    map_tensors(batch.users, keep)
    for rows in (batch.rows_BL, batch.rows_BC):
        known = rows[rows >= 0]
        map_tensors(map_tensors(data.items.inputs, itemgetter(known)), keep)
        keep(data.items.realtime_RQ[known])
    return found


def plant(events: Events) -> dict[str, Events]:
    """The clicks of every impression, told after it in several ways."""
    clicks = [(i, s.item_id) for i in events.impressions for s in i.items if s.clicked and s.item_id != 9]
    rows = [ItemFeaturesUpdate(item_id=n, version=301, features={"category": 7, "price": 99.0, "stock": 9}) for _, n in clicks]
    gone = [ItemFeaturesUpdate(op="delete", item_id=n, version=i.time_ms + 1) for i, n in clicks]
    newest = Behaviour(user_id=1, item_id=0, time_ms=300)
    late = [Behaviour(user_id=1, item_id=n, time_ms=i.time_ms - 1) for i, n in clicks]
    again = [i.model_copy(update={"items": [s.model_copy(update={"clicked": not s.clicked}) for s in i.items]}) for i in events.impressions]
    profile = UserFeaturesRecord(user_id=2, features={"country": "UK"}, time_ms=101)
    return {
        "a profile that holds since then": dataclasses.replace(events, users=[*events.users, profile]),
        "rows that come after": dataclasses.replace(events, items=[*events.items, *rows]),
        "the same, first in the log": dataclasses.replace(events, items=[*rows, *events.items]),
        "deletes": dataclasses.replace(events, items=[*events.items, *gone]),
        "behaviours that come late": dataclasses.replace(events, behaviours=[*events.behaviours, newest, *late]),
        "impressions told again": dataclasses.replace(events, impressions=[*events.impressions, *again]),
    }


@pytest.mark.parametrize("name", plant(shop()[1]))
def test_what_is_planted_after_the_impressions_changes_nothing_that_a_step_reads(name: str) -> None:
    _, events = shop()
    found, expected = read_by_a_step(plant(events)[name]), read_by_a_step(events)
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))
