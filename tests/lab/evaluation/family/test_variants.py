"""The family against the served network and plain loops: one family, and parts that are switched off are gone."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lab.evaluation.family.codes import (
    CLUSTER_SPREAD,
    CLUSTERS,
    cluster_rows,
    factored_din,
    moment_tier_features,
    principal_directions,
    similarity_edges,
    tier_features,
    with_codes,
)
from lab.evaluation.family.head import LAYERS, ColdTrunk, FieldGate
from lab.evaluation.family.network import FamilyNetwork, build_network, variant_spec
from lab.evaluation.family.variant import ABLATIONS, AIF, BASE, BRIDGES, FULL, MORE_PARAMETERS, TABLE_2, TABLE_3, TEACHER, Variant
from schemas.model.bea import BridgeEmbedding
from schemas.model.lsh import lsh_similarity, make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.simtier import simtier_reference
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet, join_events
from streams.training.trainer import fit
from tests.streams.training import test_trainer
from tests.streams.training.shop import shop

CHEAP = frozenset({"category", "price"})
EVERY = [*dict.fromkeys((*TABLE_2, *TABLE_3, *BRIDGES, TEACHER))]


def shop_data(variant: Variant) -> TrainingSet:
    spec, events = shop()
    spec = variant_spec(variant, spec, CHEAP)
    data = join_events(spec, make_w_hash(1, spec.hash_bits, 16), events)
    return data if variant.is_served else with_codes(data, moments=variant.tiers == "clusters")


def network_of(variant: Variant, data: TrainingSet) -> AifNetwork:
    torch.manual_seed(0)
    return build_network(variant, data.spec, make_w_hash(1, data.spec.hash_bits, 16)).eval()


def logits_of(network: AifNetwork, data: TrainingSet) -> torch.Tensor:
    return test_trainer.logits_of(network, data, range(len(data)))


def test_names_are_unique_so_no_cell_stands_for_two_models() -> None:
    assert len({v.name for v in EVERY}) == len(EVERY)


def test_aif_is_the_network_that_is_served_and_nothing_else_is() -> None:
    assert type(network_of(AIF, shop_data(AIF))) is AifNetwork
    assert all(not v.is_served for v in (BASE, FULL, MORE_PARAMETERS, *ABLATIONS))


def test_the_family_in_aifs_configuration_gives_the_served_networks_logits() -> None:
    served_data = shop_data(AIF)
    served = network_of(AIF, served_data)
    data = with_codes(served_data)
    family = FamilyNetwork(AIF, data.spec, served.w_hash_KM).eval()
    for name in ("item_half", "bea", "behaviour", "user_half"):
        getattr(family, name).load_state_dict(getattr(served, name).state_dict())
    head = served.head
    family.head.context.load_state_dict(head.context.state_dict())
    family.head.realtime.load_state_dict(head.realtime.state_dict())
    family.head.din_gain.data = head.din_gain.data
    for name in ("user", "bea", "din", "sim"):
        family.head.project[name].load_state_dict(getattr(head, f"project_{name}").state_dict())
    ends = dict(zip(segments := head.user_segments | head.item_segments, np.cumsum(list(segments.values())), strict=True))
    columns = np.concatenate([np.arange(ends[name] - width, ends[name]) for name, width in family.head.widths.items()])
    layers = family.head.trunk
    layers[0].weight.data, layers[0].bias.data = head.first.weight.data[:, columns], head.first.bias.data
    for ours, theirs in zip(list(layers)[2:], list(head.rest[1]), strict=True):
        ours.load_state_dict(theirs.state_dict())
    known = torch.from_numpy(data.row_QC >= 0)
    torch.testing.assert_close(logits_of(family, data)[known], logits_of(served, served_data)[known], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", EVERY, ids=lambda v: v.name)
def test_every_model_of_the_tables_trains_and_gives_finite_logits(variant: Variant) -> None:
    data = shop_data(variant)
    network = network_of(variant, data)
    fit(network, data, TrainChoices(steps=2))
    assert logits_of(network, data).isfinite().all()
    unused = [name for name, p in network.named_parameters() if p.grad is None]
    assert not [name for name in unused if not name.startswith(("bea.", "user_half.", "item_half.key"))], unused


@pytest.mark.parametrize("variant", [AIF, FULL, *ABLATIONS], ids=lambda v: v.name)
def test_logits_do_not_depend_on_other_requests_or_candidates(variant: Variant) -> None:
    data = shop_data(variant)
    network = network_of(variant, data)
    together = logits_of(network, data)
    one = dataclasses.replace(
        data, row_QC=data.row_QC[:1, ::-1].copy(), time_Q=data.time_Q[:1], user_Q=data.user_Q[:1], history_end_Q=data.history_end_Q[:1]
    )
    flipped = logits_of(network, one)[0].flip(0)
    known = torch.from_numpy(data.row_QC[0] >= 0)
    torch.testing.assert_close(flipped[known], together[0][known], rtol=1e-4, atol=1e-5)


def test_without_async_no_rich_feature_is_left_anywhere() -> None:
    spec, _ = shop()
    for variant in (BASE, *ABLATIONS):
        left = {f.name for f in variant_spec(variant, spec, CHEAP).schema.features}
        assert ({"country"} <= left) == variant.has("async")
        assert {spec.schema.bid, spec.schema.sim_category, spec.schema.multimodal} - {None} <= left


def test_what_is_switched_off_has_no_field_and_no_parameters() -> None:
    fields = {"bea": {"bea", "bea_x"}, "long_term": {"din", "din_x", "tiers"}, "sim": {"sim", "sim_x"}}
    for variant in ABLATIONS:
        network = network_of(variant, shop_data(variant))
        for part, names in fields.items():
            assert (names <= set(network.head.widths)) == variant.has(part)
        assert any(n.startswith("bea.") for n, _ in network.named_parameters()) == variant.has("bea")


def test_full_cross_is_algorithm_1_with_the_candidate_as_its_only_bridge() -> None:
    variant = next(v for v in BRIDGES if v.cross == "full")
    data = shop_data(variant)
    network = network_of(variant, data)
    assert isinstance(network, FamilyNetwork)
    batch = data.batch(np.array([0]))
    keys_RD = network.item_rows(data.items.inputs)[1]
    rows = data.candidate_rows(batch, keys_RD[batch.rows_BC], keys_RD[batch.rows_BC])
    behaviours = dataclasses.replace(batch.users.behaviours, vectors_BLD=torch.zeros(1, batch.rows_BL.shape[1], data.spec.width))
    states = network.user_states(dataclasses.replace(batch.users, behaviours=behaviours))
    found = network.head._bea(states, rows, network.bea)
    for c in range(batch.rows_BC.shape[1]):
        single = BridgeEmbedding(dataclasses.replace(data.spec, bridges=1))
        single.load_state_dict(network.bea.state_dict() | {"bridges_ND": rows.bridge_BCN[0, c : c + 1]})
        torch.testing.assert_close(found[:, c], single.user_vectors(states.rows_BGD)[:, 0], rtol=1e-4, atol=1e-5)


def test_codes_of_signatures_measure_equation_6_and_their_tiers_are_equation_9() -> None:
    data = shop_data(BASE)
    bits, packed = data.spec.hash_bits, join_events(data.spec, make_w_hash(1, data.spec.hash_bits, 16), shop()[1]).items
    has = packed.has_signature_R
    codes, words = data.items.signatures_RW[has][:, :bits], packed.signatures_RW[has].numpy()
    similarity = (codes @ codes.T).double().numpy()
    np.testing.assert_allclose((similarity + 1) / 2, lsh_similarity(words, words), atol=1e-6)
    edges = data.spec.tier_edges
    features = tier_features(
        codes[None] @ codes[None].transpose(1, 2), torch.ones(1, len(codes), dtype=torch.bool), similarity_edges(edges, "lsh")
    )
    counts = np.rint(np.expm1(features[0, :, : len(edges) + 1].numpy()))
    assert counts.tolist() == simtier_reference(words, words, edges).tolist()


def test_a_tier_of_cosines_is_the_tier_of_signatures_with_the_same_angle() -> None:
    edges = (0.5, 0.75, 1.0)
    assert similarity_edges(edges, "mm")[:2] == pytest.approx((math.cos(math.pi * 0.5), math.cos(math.pi * 0.25)))
    assert similarity_edges(edges, "mm")[2] < 1.0 and similarity_edges(edges, "lsh")[0] == pytest.approx(0.0, abs=1e-5)


def test_factored_din_equals_its_sum_over_behaviours() -> None:
    chance = torch.Generator().manual_seed(0)
    candidates, history, values = (torch.randn(2, n, 5, generator=chance) for n in (3, 7, 7))
    has = torch.rand(2, 7, generator=chance) < 0.7
    similarity = (candidates @ history.transpose(1, 2)) * has[:, None, :]
    length = has.sum(1)[:, None]
    torch.testing.assert_close(factored_din(candidates, history, values, has), similarity @ values / length[..., None])


def test_tiers_from_clusters_are_a_logistic_step_about_the_mean_of_each_clusters_known_behaviours() -> None:
    chance = torch.Generator().manual_seed(0)
    candidates, history = torch.randn(2, 3, 5, generator=chance), torch.randn(2, 7, 5, generator=chance)
    cluster = torch.randint(0, 3, (2, 7), generator=chance)
    has = torch.tensor([[True] * 5 + [False] * 2, [False] * 7])
    codes = [
        torch.cat([vectors, numbers[..., None].float()], dim=2)
        for vectors, numbers in ((candidates, torch.zeros(2, 3)), (history, cluster))
    ]
    found = moment_tier_features(*codes, has, (0.0, 0.4))
    at_least = [torch.full((3,), 5.0), *(torch.zeros(3) for _ in range(3))]
    for k in set(cluster[0, :5].tolist()):
        of_it = history[0, :5][cluster[0, :5] == k]
        for n, edge in ((1, 0.0), (2, 0.4)):
            at_least[n] += len(of_it) * torch.sigmoid((candidates[0] @ of_it.mean(dim=0) - edge) / CLUSTER_SPREAD)
    counts = torch.stack([at_least[n] - at_least[n + 1] for n in range(3)], dim=1)
    torch.testing.assert_close(found[0], torch.cat([counts.log1p(), counts / 5], dim=1))
    assert found[1].abs().max() == 0


def test_clusters_of_a_catalogue_hold_what_lies_together() -> None:
    rng = np.random.default_rng(0)
    centres = np.linalg.qr(rng.standard_normal((CLUSTERS, CLUSTERS)))[0]
    group = np.repeat(np.arange(CLUSTERS), 13)
    assert np.array_equal(cluster_rows(centres[group] + 0.05 * rng.standard_normal((len(group), CLUSTERS))), group)
    assert np.array_equal(cluster_rows(np.eye(3)), np.arange(3))  # fewer rows than clusters


def test_principal_directions_keep_similarities_of_a_catalogue_that_lies_in_few() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 9))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    narrow = unit @ principal_directions(unit, 3)
    np.testing.assert_allclose(narrow @ narrow.T, unit @ unit.T, atol=1e-5)


def test_cold_has_seven_layers_and_its_gate_passes_fields_unchanged_at_weight_zero() -> None:
    trunk = ColdTrunk([4, 6], 1)
    assert sum(isinstance(layer, torch.nn.Linear) for layer in trunk.layers) == LAYERS
    gate = FieldGate(2)
    torch.nn.init.zeros_(gate.excite.weight)
    torch.nn.init.zeros_(gate.excite.bias)
    fields = [torch.randn(1, 3, 4), torch.randn(1, 3, 6)]
    assert all(torch.equal(a, b) for a, b in zip(gate(fields), fields, strict=True))


def test_fifteen_percent_more_parameters_are_about_that() -> None:
    def trunk_parameters(variant: Variant) -> int:
        widths = [96, 8, 32, 33, 1]
        return sum(p.numel() for p in ColdTrunk(widths, 1, variant.hidden_scale).parameters())

    assert trunk_parameters(MORE_PARAMETERS) / trunk_parameters(BASE) == pytest.approx(1.15, abs=0.04)
