"""The fit: the same seed and steps give the same weights, the loss falls, and the model ranks better than popularity."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from schemas.errors import Misconfigured
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.copr import copr_loss, label_gains
from streams.training.impressions import Batch, Events, TrainingSet, join_events
from streams.training.losses import click_loss
from streams.training.measures import gauc
from streams.training.trainer import fit, item_vectors, task_logits
from tests.schemas.catalogue import small_spec
from tests.streams.training.shop import shop


def network_of(data: TrainingSet, seed: int = 0) -> AifNetwork:
    torch.manual_seed(seed)
    return AifNetwork(data.spec, make_w_hash(1, data.spec.hash_bits, data.spec.schema.mm_width))


def taste_world(users: int = 60, items: int = 40) -> TrainingSet:
    """Each user likes one half of the embedding space and says so by two behaviours; items are equally popular."""
    chance = np.random.default_rng(0)
    side = np.arange(items) % 2
    embeddings = chance.standard_normal((items, 16)) * 0.2 + np.where(side, 1.0, -1.0)[:, None]
    updates = [ItemFeaturesUpdate(item_id=n, version=0, features={"category": n % 5, "price": 1.0}) for n in range(items)]
    new_items = [NewItem(item_id=n, embedding=embeddings[n].tolist()) for n in range(items)]
    behaviours, impressions = [], []
    for user in range(users):
        likes = user % 2
        liked = [n for n in range(items) if side[n] == likes]
        behaviours += [Behaviour(user_id=user, item_id=int(n), time_ms=10) for n in chance.choice(liked, 2)]
        picked = chance.choice(items, 8, replace=False)
        shown = [ShownItem(item_id=int(n), position=p, bid=1.0, clicked=bool(side[n] == likes)) for p, n in enumerate(picked)]
        impressions.append(ImpressionRecord(request_id=str(user), user_id=user, time_ms=20, items=shown))
    spec = dataclasses.replace(small_spec(), hash_bits=64)
    return join_events(spec, make_w_hash(1, 64, 16), Events(updates, new_items, [], behaviours, impressions))


@torch.no_grad()
def logits_of(network: AifNetwork, data: TrainingSet, requests: Sequence[int]) -> torch.Tensor:
    """Click logits [len(requests), C]."""
    return task_logits(network, data, data.batch(np.array(requests)), item_vectors(network, data))[..., 0]


def test_the_same_seed_and_steps_give_the_same_weights() -> None:
    data = taste_world()
    networks = [network_of(data) for _ in range(2)]
    for network in networks:
        fit(network, data, TrainChoices(steps=5, seed=3))
    weights = [network.state_dict() for network in networks]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("losses", [{}, {"copr": 0.0, "click": 0.0, "softmax": 1.0}])
def test_a_fit_that_diverges_says_so_and_names_the_learning_rate(losses: dict[str, float]) -> None:
    data = taste_world(users=4)
    network = network_of(data)
    network.bea.bridges_ND.data.fill_(torch.nan)
    with pytest.raises(Misconfigured, match=r"diverged.*below 0\.5"):
        fit(network, data, TrainChoices(steps=4, learning_rate=0.5, **losses))


def test_other_seeds_give_other_weights() -> None:
    data = taste_world()
    networks = [network_of(data) for _ in range(2)]
    for seed, network in enumerate(networks):
        fit(network, data, TrainChoices(steps=5, seed=seed))
    assert not torch.equal(networks[0].bea.bridges_ND, networks[1].bea.bridges_ND)


def test_several_fits_give_the_mean_of_the_weights_that_fits_of_other_seeds_give_alone() -> None:
    data = taste_world()
    networks = [network_of(data) for _ in range(4)]
    shares: list[float] = []
    report = fit(networks[0], data, TrainChoices(steps=5, seed=3, fits=3), shares.append)
    for seed, network in enumerate(networks[1:], start=3):
        fit(network, data, TrainChoices(steps=5, seed=seed))
    mean, *alone = [network.state_dict() for network in networks]
    for name, weight in mean.items():
        torch.testing.assert_close(weight, torch.stack([other[name] for other in alone]).mean(dim=0))
    assert not torch.equal(alone[0]["bea.bridges_ND"], alone[1]["bea.bridges_ND"])
    assert report.steps == 15 == len(shares) and shares == sorted(shares) and shares[-1] < 1


def test_the_losses_fall() -> None:
    data = taste_world()
    softmax = TrainChoices(steps=40, copr=0.0, click=0.0, softmax=1.0)
    assert 0 < fit(network_of(data), data, softmax).loss < fit(network_of(data), data, dataclasses.replace(softmax, steps=1)).loss
    network = network_of(data)
    first, last = (fit(network, data, TrainChoices(steps=steps)) for steps in (1, 40))
    assert last.copr < first.copr and last.click < first.click


def test_a_taste_is_learnt_that_popularity_cannot_know() -> None:
    data = taste_world()
    network = network_of(data)
    shares: list[float] = []
    report = fit(network, data, TrainChoices(steps=60, batch_requests=32), shares.append)
    assert report.steps == 60 and shares == sorted(shares) and report.click < 0.4
    logits = logits_of(network, data, range(len(data)))
    users, clicked = np.repeat(np.arange(len(data)), 8), data.clicked_QC.ravel()
    popularity = np.bincount(data.row_QC.ravel(), weights=clicked)[data.row_QC].ravel()
    assert gauc(users, logits.numpy().ravel(), clicked) > 0.9 > gauc(users, popularity, clicked)


def test_what_stands_in_masked_and_padded_places_never_matters() -> None:
    spec, events = shop()
    data = join_events(spec, make_w_hash(1, spec.hash_bits, 16), events)
    network = network_of(data).eval()
    batch = data.batch(np.arange(3))
    b = batch.users.behaviours
    junk = dataclasses.replace(
        b,
        item_bucket_BL=b.item_bucket_BL.where(b.mask_BL, 1),
        kind_BL=b.kind_BL.where(b.mask_BL, 1),
        category_BL=b.category_BL.where(b.mask_BL, 7),
        signatures_BLW=b.signatures_BLW.where(b.has_signature_BL[..., None], 0xA5),
    )
    changed = dataclasses.replace(
        batch,
        users=dataclasses.replace(batch.users, behaviours=junk),
        bid_BC=batch.bid_BC.where(batch.mask_BC, 1e6),
        teacher_BC=batch.teacher_BC.where(batch.mask_BC, 1e6),
        clicked_BC=batch.clicked_BC.where(batch.mask_BC, 1.0),
    )

    def losses(of: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = task_logits(network, data, of, torch.full((len(data.items.version_R), spec.width), 0.1))[..., 0]
        gains = label_gains(of.teacher_BC, of.clicked_BC, of.bid_BC)
        return copr_loss(logits, of.bid_BC, gains, of.mask_BC), click_loss(logits, of.clicked_BC, of.mask_BC)

    for expected, found in zip(losses(batch), losses(changed), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_logits_do_not_depend_on_who_else_is_in_the_batch() -> None:
    spec, events = shop()
    data = join_events(spec, make_w_hash(1, spec.hash_bits, 16), events)
    network = network_of(data).eval()
    together = logits_of(network, data, range(3))
    for request in range(3):
        known = data.row_QC[request] >= 0
        torch.testing.assert_close(logits_of(network, data, [request])[0][known], together[request][known], rtol=1e-5, atol=1e-6)


def test_nothing_to_learn_from_is_said() -> None:
    spec, events = shop()
    nothing = join_events(spec, make_w_hash(1, spec.hash_bits, 16), dataclasses.replace(events, impressions=events.impressions[-1:]))
    with pytest.raises(Misconfigured, match="nothing_to_learn"):
        fit(network_of(nothing), nothing, TrainChoices(steps=1))
