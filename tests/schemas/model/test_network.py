"""The whole network for every shape of schema: what must not matter does not, and gradients reach every parameter."""

import dataclasses

import numpy as np
import pytest
import torch

from schemas.features import Scope
from schemas.model.inputs import CandidateRows, FeatureTensors, build_user_inputs, map_tensors
from tests.schemas.model.samples import (
    SPECS,
    cat_tensors,
    encode_items,
    make_candidates,
    make_items,
    make_network,
    make_user,
    pad_behaviours,
    rank_reference,
    stack_users,
)

every_schema = pytest.mark.parametrize("name", SPECS)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def trained_like(spec):
    """A network whose every parameter has moved, so that no term is hidden by a start at zero."""
    network = make_network(spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.requires_grad_(False)


@every_schema
def test_the_head_is_one_matrix_over_the_concatenated_segments(name):
    network = trained_like(SPECS[name])
    states, rows = network.user_states(make_user(network, make_items(10, seed=2))), make_candidates(network, make_items(7, seed=1))
    head = network.head
    user = head.user_part(states, rows.context)[:, None].expand(-1, 7, -1)
    plain = head.rest(head.first(torch.cat([user, head.item_part(states, rows)], dim=-1)))
    torch.testing.assert_close(network.joint_logits(states, rows), plain, **CLOSE)
    assert network.joint_logits(states, rows).shape == (1, 7, len(SPECS[name].tasks))


@every_schema
def test_padding_and_the_other_users_of_a_batch_do_not_change_a_users_logits(name):
    network = trained_like(SPECS[name])
    users = [make_user(network, make_items(n, seed=n), seed=n) for n in (3, 11, 0, 6)]
    rows = make_candidates(network, make_items(5, seed=1))
    batch = network.user_states(stack_users(users))
    together = network.joint_logits(batch, cat_tensors([rows] * 4))
    for i, user in enumerate(users):
        alone = network.joint_logits(network.user_states(user), rows)
        padded = dataclasses.replace(user, behaviours=pad_behaviours(user.behaviours, 20))
        torch.testing.assert_close(network.joint_logits(network.user_states(padded), rows), alone, **CLOSE)
        torch.testing.assert_close(together[i : i + 1], alone, **CLOSE)
        torch.testing.assert_close(
            network.joint_logits(map_tensors(batch, lambda of_users, i=i: of_users[i : i + 1]), rows), alone, **CLOSE
        )


def test_a_candidates_logits_do_not_depend_on_the_other_candidates():
    network = trained_like(SPECS["full"])
    states, rows = network.user_states(make_user(network, make_items(10))), make_candidates(network, make_items(9, seed=1))
    order = torch.randperm(9)
    shuffled = CandidateRows(**{f: getattr(rows, f) if f == "context" else getattr(rows, f)[:, order] for f in rows.__dataclass_fields__})
    torch.testing.assert_close(network.joint_logits(states, shuffled), network.joint_logits(states, rows)[:, order], **CLOSE)


@every_schema
def test_gradients_reach_every_parameter(name):
    network = make_network(SPECS[name])
    network.requires_grad_(True)
    items = make_items(12, seed=5)
    vectors, bridge = network.item_rows(FeatureTensors.from_block(encode_items(network.spec, items)))
    rows = dataclasses.replace(make_candidates(network, items), vectors_BCD=vectors[None], bridge_BCN=bridge[None])
    network.joint_logits(network.user_states(make_user(network, make_items(16, seed=2))), rows).square().sum().backward()
    assert network.bea.bridges_ND.grad is not None and network.bea.bridges_ND.grad.abs().sum() > 0
    empty_scopes = {"user_half.w_profile.weight"} if not network.spec.schema.of(Scope.USER) else set()
    of_aif = {n: p for n, p in network.named_parameters() if not n.startswith("ranker.")}
    silent = {n for n, p in of_aif.items() if p.grad is None or not p.grad.abs().sum() > 0}
    assert silent <= empty_scopes and all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


def test_gradients_reach_the_vectors_of_behaviours():
    network = make_network(SPECS["full"])
    user, rows = make_user(network, make_items(6, seed=1)), make_candidates(network, make_items(4, seed=1))
    vectors = user.behaviours.vectors_BLD.clone().requires_grad_()
    user = dataclasses.replace(user, behaviours=dataclasses.replace(user.behaviours, vectors_BLD=vectors))
    network.joint_logits(network.user_states(user), rows).sum().backward()
    assert vectors.grad is not None and (vectors.grad[0, -4:].abs().sum(1) > 0).all()


@every_schema
def test_the_same_seed_gives_the_same_network(name):
    one, same, other = (make_network(SPECS[name], seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.values(), same.values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


@every_schema
def test_a_cold_user_and_rows_of_nothing_give_finite_scores(name):
    network = trained_like(SPECS[name])
    states, rows = network.user_states(build_user_inputs(network.spec, {}, ())), make_candidates(network, [{}, {}])
    score, probabilities = network.scores(network.joint_logits(states, rows), rows.bid_BC)
    assert score.isfinite().all() and ((probabilities >= 0) & (probabilities <= 1)).all()


def test_each_part_sees_the_latest_behaviours_that_its_spec_says():
    network = trained_like(SPECS["full"])  # attended 4, simtier 5, sim 2 of a category, DIN all
    history = make_items(12, seed=8)
    user = make_user(network, history)
    whole = network.user_states(user)
    assert whole.simtier_BSW.shape[1] == 5 and whole.din.count_B.item() > 5
    only_last_4 = user.behaviours.mask_BL & (torch.arange(12)[None] >= 8)
    cut = dataclasses.replace(user, behaviours=dataclasses.replace(user.behaviours, mask_BL=only_last_4))
    torch.testing.assert_close(network.user_states(cut).user_BU, whole.user_BU, **CLOSE)


def test_nothing_reads_more_of_a_history_than_the_spec_says():
    whole = trained_like(SPECS["full"])
    bounded = trained_like(dataclasses.replace(SPECS["full"], behaviours_max=7))
    bounded.load_state_dict(whole.state_dict())
    user = make_user(whole, make_items(12, seed=8))
    latest = dataclasses.replace(user, behaviours=map_tensors(user.behaviours, lambda t: t[:, -7:]))
    assert bounded.user_states(user).din.count_B.item() < whole.user_states(user).din.count_B.item()
    for ours, theirs in ((bounded.user_states(user), whole.user_states(latest)),):
        torch.testing.assert_close(dataclasses.asdict(ours), dataclasses.asdict(theirs), **CLOSE)


def test_a_candidate_without_a_signature_has_zeros_for_din_and_tiers():
    network = trained_like(SPECS["raw_din_two_tasks"])
    states, rows = network.user_states(make_user(network, make_items(9))), make_candidates(network, make_items(4, seed=1))
    unsigned = dataclasses.replace(rows, has_signature_BC=torch.zeros_like(rows.has_signature_BC))
    garbage = dataclasses.replace(unsigned, signatures_BCW=torch.full_like(rows.signatures_BCW, 170))
    assert torch.equal(network.joint_logits(states, unsigned), network.joint_logits(states, garbage))
    assert not torch.allclose(network.joint_logits(states, unsigned), network.joint_logits(states, rows))


def test_scores_are_probability_times_bid_or_the_probability():
    logits, bids = torch.tensor([[[0.0], [2.0]]]), torch.tensor([[3.0, 0.5]])
    score, probabilities = make_network(SPECS["full"]).scores(logits, bids)
    torch.testing.assert_close(score, torch.tensor([[1.5, 0.5 / (1 + np.exp(-2.0))]], dtype=torch.float32))
    assert probabilities.shape == (1, 2, 1)
    assert make_network(SPECS["no_bid_text_ids"]).scores(logits, bids)[0][0, 0] == 0.5


def test_the_reference_ranking_is_by_score_then_by_id():
    network = trained_like(SPECS["full"])
    item, other = make_items(2, seed=1)
    rows = make_candidates(network, [item, other, item, item])
    states = network.user_states(make_user(network, make_items(5)))
    scores = network.scores(network.joint_logits(states, rows), rows.bid_BC)[0][0].tolist()
    ranked = rank_reference(network, states, rows, [10, 7, 9, -1], 3)
    tied = [(-1, scores[3]), (9, scores[2]), (10, scores[0])]
    expected = sorted([*tied, (7, scores[1])], key=lambda entry: -entry[1])[:3]
    assert [(i, s) for i, s, _ in ranked] == expected
    text = [i for i, _, _ in rank_reference(network, states, rows, ["10", "zz", "9", "a"], 4) if i != "zz"]
    assert text == ["10", "9", "a"]
