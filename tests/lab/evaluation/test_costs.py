"""Measurements other than quality: hash bits, similarity's cost, grouping."""

import numpy as np
import pytest
import torch

from lab.evaluation.costs import (
    BITS,
    EDGES,
    attention_din,
    bridges_ms,
    cluster_tiers,
    cosine_tiers,
    counted_bridges,
    counted_costs,
    counted_full_cross,
    factored_din,
    full_cross_ms,
    grouped_speedup,
    lsh_tiers,
    measure_costs,
    ungroup,
)
from lab.evaluation.family.codes import expect_at_least, similarity_edges
from lab.evaluation.tables import sigma_ratio
from schemas.model.din import din_reference
from schemas.model.lsh import lsh_similarity
from schemas.model.simtier import simtier_reference
from streams.training.impressions import TrainingSet
from tests.streams.training.shop import shop
from tests.streams.training.test_trainer import network_of, taste_world


@pytest.mark.parametrize("bits", [32, 128])
def test_the_spread_of_hashed_similarity_follows_its_law(bits: int) -> None:
    embeddings = np.random.default_rng(0).standard_normal((200, 16))
    assert sigma_ratio(embeddings, bits) == pytest.approx(1.0, abs=0.05)


def test_counted_costs_are_the_papers() -> None:
    costs = counted_costs()
    saved = {name: 1 - cost / costs["din_simtier"] for name, cost in costs.items()}
    assert saved["lsh_256"] == pytest.approx(0.9375) and saved["mm_din_simtier"] == 0.5
    assert saved["lsh_din_simtier"] == saved["din_lsh_simtier"] == pytest.approx(0.4375)


def test_the_timed_forms_compute_what_they_stand_for() -> None:
    rng = np.random.default_rng(0)
    unit_CD, unit_LD, value_LD = (rng.standard_normal((rows, 64)).astype(np.float32) / 8 for rows in (5, 9, 9))
    bits_CK, bits_LK = rng.random((5, BITS)) < 0.5, rng.random((9, BITS)) < 0.5
    items, sequence = np.packbits(bits_CK, axis=1), np.packbits(bits_LK, axis=1)
    words = items.view(np.uint64), sequence.view(np.uint64)
    similarity = lsh_similarity(items, sequence)
    tiers = simtier_reference(items, sequence, EDGES)
    assert np.array_equal(lsh_tiers(*words), np.cumsum(tiers[:, ::-1], axis=1)[:, ::-1][:, 1:])
    cosines = np.stack([(np.arccos(-unit_CD @ unit_LD.T) / np.pi >= edge).sum(axis=1) for edge in EDGES], axis=1)
    assert cosines[:, :-1].any() and np.array_equal(cosine_tiers(unit_CD, unit_LD), cosines)
    found = factored_din(2.0 * bits_CK - 1, (2.0 * bits_LK - 1).T @ value_LD, BITS * 9)
    values = torch.from_numpy(value_LD)[None]
    direct = din_reference(torch.from_numpy(similarity)[None].float(), values, torch.ones(1, 9, dtype=torch.bool), "centred")
    np.testing.assert_allclose(found, direct[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(factored_din(unit_CD, unit_LD.T @ value_LD, 9), (unit_CD @ unit_LD.T) @ value_LD / 9, atol=1e-5)
    weights = torch.softmax(torch.from_numpy(unit_CD @ unit_LD.T) / 8, dim=1).numpy()
    np.testing.assert_allclose(attention_din(unit_CD, unit_LD, value_LD), weights @ value_LD, atol=1e-4)
    assert measure_costs(3, 40).keys() == counted_costs().keys()


def test_the_timed_moments_are_those_that_the_family_learns_from() -> None:
    rng = np.random.default_rng(0)
    codes, count, mean = rng.standard_normal((4, 5)) / 3, rng.random(6) * 9, rng.standard_normal((6, 5)) / 3
    edges = similarity_edges(EDGES[:-1], "clusters")  # the last is "equal", which allows for rounding there
    expected = expect_at_least(*(torch.from_numpy(x)[None] for x in (codes, count, mean)), edges)
    np.testing.assert_allclose(cluster_tiers(codes, count, mean)[:, :-1], expected[0].numpy())


def test_bridges_cost_a_candidate_little_and_full_cross_a_pass_through_the_layers() -> None:
    spec, _ = shop()
    assert counted_bridges(spec, 8) == 8 * spec.bridge_width < counted_full_cross(spec)
    assert bridges_ms(spec, 2, candidates=20) > 0 and full_cross_ms(spec, candidates=20) > 0


def shown_pairs(data: TrainingSet) -> set[tuple[int, int, float]]:
    q, c = np.nonzero(data.row_QC >= 0)
    return set(zip(data.user_Q[q].tolist(), data.row_QC[q, c].tolist(), data.clicked_QC[q, c].tolist(), strict=True))


def test_single_impressions_are_the_grouped_ones_taken_apart() -> None:
    data = taste_world(users=6)
    single = ungroup(data)
    assert single.row_QC.shape == (48, 1) and shown_pairs(single) == shown_pairs(data)
    assert len(single.context.categorical) == 48


def test_grouping_runs_the_user_half_once_per_request_and_not_once_per_impression() -> None:
    data = taste_world()
    network = network_of(data)
    users: list[int] = []
    network.user_half.register_forward_hook(lambda _module, _inputs, output: users.append(len(output[0])))
    assert grouped_speedup(network, data, requests=32, steps=1) > 0
    assert users == [32, 32, 32 * 8, 32 * 8]
