"""Score, then learn: what learns and what stays, that scores are of weights that have not seen it, and that poison changes nothing."""

import dataclasses

import numpy as np
import torch

from schemas.train_choices import TrainChoices
from streams.training.following.learner import OnlineLearner, ProgressiveValidation
from streams.training.impressions import TrainingSet, join_events
from streams.training.trainer import Learnt
from tests.streams.training.following.stream import TasteStream, joined

OPTIONS = TrainChoices(batch_requests=8, seed=2, learning_rate=1e-2)


def round_of(stream: TasteStream, impressions: int = 32) -> TrainingSet:
    return join_events(stream.spec, stream.network().w_hash_KM, joined([stream.catalogue(), stream.events(impressions)]))


def test_embeddings_and_bridges_learn_and_the_hash_and_the_multimodal_embeddings_stay() -> None:
    stream = TasteStream()
    data, learner = round_of(stream), OnlineLearner(stream.network(), OPTIONS)
    before = {name: t.clone() for name, t in learner.network.state_dict().items()}
    assert learner.network.w_hash_KM is not None
    w_hash, embeddings = learner.network.w_hash_KM.copy(), data.items.multimodal_RM.copy()
    list(learner.learn(data))
    changed = {name for name, t in learner.network.state_dict().items() if not torch.equal(t, before[name])}
    assert {"bea.bridges_ND", "item_half.features.table", "user_half.features.table"} <= changed
    assert np.array_equal(learner.network.w_hash_KM, w_hash) and np.array_equal(data.items.multimodal_RM, embeddings)
    assert not any("hash" in name or "multimodal" in name for name in before)


def test_a_batch_is_scored_by_weights_that_have_not_seen_it() -> None:
    stream = TasteStream()
    data = round_of(stream, 8)
    networks = [stream.network() for _ in range(2)]
    (scored,) = OnlineLearner(networks[0], OPTIONS).learn(data)
    learnt = OnlineLearner(networks[1], OPTIONS)
    (first, *_) = learnt.learn(data)
    (again,) = learnt.learn(data)
    assert np.array_equal(first.logits_BC, scored.logits_BC)
    assert again.click < first.click


def test_progressive_validation_sees_a_taste_being_learnt_and_keeps_only_the_newest() -> None:
    stream = TasteStream()
    learner, window = OnlineLearner(stream.network(), OPTIONS), ProgressiveValidation(requests_max=64)
    early = None
    for number in range(8):
        for scored in learner.learn(round_of(stream, 64)):
            window.add(scored)
        early = window.figures() if number == 0 else early
    late = window.figures()
    assert early is not None and late["gauc"] > 0.9 > early["gauc"] and late["click"] < early["click"]
    assert late["requests"] == 64


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    stream = TasteStream()
    data = round_of(stream, 8)
    data = dataclasses.replace(data, clicked_QC=np.full_like(data.clicked_QC, np.inf))
    learner = OnlineLearner(stream.network(), OPTIONS)
    before = {name: t.clone() for name, t in learner.network.state_dict().items()}
    scored = list(learner.learn(data))
    assert [s.applied for s in scored] == [False] and learner.steps == 0
    assert all(torch.equal(t, before[name]) for name, t in learner.network.state_dict().items())


def test_a_bid_beyond_all_measure_is_learnt_from_and_stays_finite() -> None:
    stream = TasteStream()
    told = stream.events(8)
    poison = [
        i.model_copy(update={"items": [s.model_copy(update={"bid": 1e300, "teacher_ecpm": 1e300}) for s in i.items]})
        for i in told.impressions
    ]
    events = dataclasses.replace(joined([stream.catalogue(), told]), impressions=poison)
    learner = OnlineLearner(stream.network(), OPTIONS)
    assert [s.applied for s in learner.learn(join_events(stream.spec, stream.network().w_hash_KM, events))] == [True]


def test_what_cannot_be_scored_says_nothing() -> None:
    nan = float("nan")
    nothing = Learnt(np.full((2, 1), np.nan), np.ones((2, 1)), np.ones((2, 1), bool), nan, nan, nan, False)
    window = ProgressiveValidation()
    window.add(nothing)
    assert window.figures()["requests"] == 0 and window.figures()["gauc"] is None
