"""A fit of the head alone: its changes, its inputs, and that it still learns a taste."""

import copy

import numpy as np
import pytest
import torch

from schemas.errors import Misconfigured
from schemas.model.parameters import segment_widths
from schemas.train_choices import LIKENESS, TrainChoices
from streams.training.likeness import read_columns
from streams.training.measures import gauc
from streams.training.similarity_start import start_from_similarity
from streams.training.trainer import fit
from tests.streams.training.test_trainer import logits_of, network_of, taste_world

CHOICES = TrainChoices(steps=40, copr=0.0, click=0.0, softmax=1.0, hold=0.0, learns=LIKENESS)


@pytest.mark.parametrize("fits", [1, 2])
def test_it_changes_the_head_alone_and_the_head_reads_nothing_that_tells_items_apart(fits: int) -> None:
    data = taste_world()
    network = network_of(data)
    before = copy.deepcopy(network.state_dict())
    fit(network, data, TrainChoices(steps=5, fits=fits, learns=LIKENESS))
    changed = {name for name, weight in network.state_dict().items() if not torch.equal(weight, before[name])}
    assert {"head.first.weight", "head.rest.1.0.weight"} <= changed and all(name.startswith("head.") for name in changed)
    assert not any(name.startswith("head.project_") for name in changed)
    unread = read_columns(network.spec) == 0
    assert (network.head.first.weight[:, unread] == 0).all() and (network.head.first.weight[:, ~unread] != 0).any(dim=0).all()


def test_it_reads_of_a_candidate_its_sums_its_tiers_and_its_numbers() -> None:
    spec = network_of(taste_world()).spec
    user, item = segment_widths(spec)
    read = torch.split(read_columns(spec)[sum(user.values()) :], list(item.values()))
    whole = {name for name, columns in zip(item, read, strict=True) if columns.all()}
    assert whole >= {"tiers", "realtime"} and whole <= {"tiers", "realtime", "sim"}
    assert {name: int(columns.sum()) for name, columns in zip(item, read, strict=True) if name not in whole} == {
        "item": 0, "user_x": 1, "bea": 0, "bea_x": 0, "din": 0, "din_x": 1, **{name: 1 for name in ("sim", "sim_x") if name not in whole},
    }  # fmt: skip


def test_it_learns_a_taste_from_the_likeness_to_the_history() -> None:
    data = taste_world()
    network = network_of(data)
    start_from_similarity(network)
    fit(network, data, CHOICES)
    users, clicked = np.repeat(np.arange(len(data)), 8), data.clicked_QC.ravel()
    assert gauc(users, logits_of(network, data, range(len(data))).numpy().ravel(), clicked) > 0.9


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(Misconfigured, match="learns = 'head', expected all or likeness"):
        TrainChoices(learns="head")
