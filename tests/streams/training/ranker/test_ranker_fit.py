"""The ranker learns what AIF does not tell it, from histories as of the request, and what it learnt holds wherever the sequence is cut."""

import dataclasses

import numpy as np
import pytest
import torch

from schemas.errors import Misconfigured
from schemas.ids import IdKind
from schemas.model.network import AifNetwork
from schemas.model.ranker.layers import make_room
from schemas.model.ranker.spec import RankerSpec, encode_items
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet, join_events
from streams.training.model_file import apply_choices
from streams.training.questions import score_tasks
from streams.training.ranker.fit import fit_ranker
from streams.training.ranker.sequences import RankerRows
from tests.streams.training.shop import item, shop
from tests.streams.training.test_trainer import taste_world

SPEC = RankerSpec(width=16, heads=2, layers=2, item_buckets=997, history_max=3, history_step=2, attention_norm=4)


def with_ranker(data: TrainingSet, ranker: RankerSpec = SPEC) -> tuple[AifNetwork, TrainingSet]:
    """A network of the data's spec with a ranker, and the data as it reads it. The world's events have integer ids from 0."""
    spec = dataclasses.replace(data.spec, ranker=ranker)
    ids = [*data.items.index]
    token_H = torch.from_numpy(encode_items(ranker, ids)[data.histories.item_H])
    torch.manual_seed(0)
    network = AifNetwork(spec, np.ones((spec.hash_bits, 16), np.float32)).eval()
    return network, dataclasses.replace(data, spec=spec, histories=dataclasses.replace(data.histories, token_H=token_H))


def final_logits(network: AifNetwork, data: TrainingSet) -> tuple[torch.Tensor, torch.Tensor]:
    """(AIF's logits, the ranker's), [Q, C, T] each."""
    assert network.ranker is not None
    aif, requests = torch.from_numpy(score_tasks(network, data)), np.arange(len(data))
    with torch.no_grad():
        return aif, RankerRows(data).logits(network.ranker, requests, data.batch(requests), aif)


def test_an_untrained_ranker_keeps_the_order_and_a_trained_one_knows_the_taste() -> None:
    network, data = with_ranker(taste_world())
    before, (aif, final) = {n: w.clone() for n, w in network.state_dict().items()}, final_logits(network, data)
    assert torch.equal(aif, final)
    fit_ranker(network, data, TrainChoices(ranker_steps=150, batch_requests=16, copr=0.0, learning_rate=0.01))
    aif, final = final_logits(network, data)
    clicked = torch.from_numpy(data.clicked_QC) > 0
    assert ((final[..., 0] > 0) == clicked).float().mean() > 0.95 > ((aif[..., 0] > 0) == clicked).float().mean()
    changed = {name for name, weight in network.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and all(name.startswith("ranker.") for name in changed)


@pytest.mark.parametrize("cut", range(5))
def test_any_cut_of_a_trained_rankers_sequence_gives_the_logits_of_training(cut: int) -> None:
    network, data = with_ranker(taste_world())
    ranker = network.ranker
    assert ranker is not None
    fit_ranker(network, data, TrainChoices(ranker_steps=3, batch_requests=4))
    aif, final = final_logits(network, data)
    batch, histories = data.batch(np.arange(1)), data.histories
    places = slice(int(histories.begin_U[data.user_Q[0]]), int(data.history_end_Q[0]))
    behaviours = ranker.behaviour_tokens(histories.token_H[None, places], histories.kind_H[None, places])
    tokens = torch.cat([ranker.profile_token(batch.users.profile), behaviours, ranker.context_token(batch.context)], 1)
    items = torch.from_numpy(RankerRows(data).row_tokens[data.row_QC[:1]])
    with torch.no_grad():
        past = make_room(SPEC, tokens.shape[1])
        for first, end in ((0, cut), (cut, tokens.shape[1])):
            if first < end:
                past.put(first, ranker.extend(tokens[:, first:end], past.part(0, first)))
        ours = ranker.score(ranker.candidate_tokens(items, aif[:1]), aif[:1], past)
        every, one_by_one = torch.arange(tokens.shape[1])[None], ranker.candidate_tokens(items, aif[:1])
        specified = ranker.full(tokens, every, torch.ones_like(every, dtype=torch.bool), one_by_one, aif[:1])
    torch.testing.assert_close(ours, final[:1], atol=1e-5, rtol=0)
    torch.testing.assert_close(specified, final[:1], atol=1e-5, rtol=0)


def test_requests_with_longer_histories_in_the_batch_change_nothing() -> None:
    spec, events = shop(IdKind.INT64)
    data = join_events(dataclasses.replace(spec, ranker=SPEC), None, events)
    network = AifNetwork(data.spec, None).eval()
    assert network.ranker is not None
    torch.nn.init.normal_(network.ranker.head.weight)
    aif, together = final_logits(network, data)
    for q in range(len(data)):
        with torch.no_grad():
            alone = RankerRows(data).logits(network.ranker, np.array([q]), data.batch(np.array([q])), aif[q : q + 1])
        torch.testing.assert_close(alone, together[q : q + 1], atol=1e-5, rtol=0)


def test_a_request_reads_its_window_of_the_history_as_of_its_time() -> None:
    """Behaviours outside of the window, and those that are not before the request, change nothing; those inside do."""
    spec, events = shop(IdKind.INT64)
    spec = dataclasses.replace(spec, ranker=SPEC)
    data = join_events(spec, None, events)
    network = AifNetwork(spec, None).eval()
    assert network.ranker is not None
    torch.nn.init.normal_(network.ranker.head.weight)
    lengths = (data.history_end_Q - data.histories.begin_U[data.user_Q]).tolist()
    assert (
        lengths == [2, 4, 0] and data.histories.token_H[3] == encode_items(SPEC, [item(9, IdKind.INT64)])[0]
    )  # an item without a row has its token
    _, before = final_logits(network, data)
    data.histories.token_H[:2] += 1  # of the second request's four behaviours the window leaves out the first two
    _, after = final_logits(network, data)
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [False, True, True]


def test_a_model_file_names_the_sizes_of_a_ranker() -> None:
    spec, _ = shop()
    assert apply_choices(spec, {"ranker": {"width": 32, "layers": 1}}).ranker == RankerSpec(width=32, layers=1)
    with pytest.raises(Misconfigured, match=r"ranker\.widht; did you mean 'width'"):
        apply_choices(spec, {"ranker": {"widht": 32}})
    with pytest.raises(Misconfigured, match="a whole number from 8"):
        apply_choices(spec, {"ranker": {"width": 1}})
