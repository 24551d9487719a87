"""Embeddings, Eq. 1-4 and Algorithm 1 against plain loops in float64."""

import dataclasses

import numpy as np
import pytest
import torch

from schemas.features import Scope, encode_features
from schemas.model.bea import join_bridges
from schemas.model.embeddings import VALUE_ABS_MAX, FeatureEmbedding
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.user_half import profile_attention
from tests.schemas.model.samples import FULL, SPECS, encode_items, make_items, make_network, make_user


def softmax(scores):
    weights = np.exp(np.asarray(scores) - np.max(scores))
    return weights / weights.sum()


def mlp(layers, x):
    for layer in layers:
        x = np.maximum(x, 0) if isinstance(layer, torch.nn.ReLU) else layer.weight.numpy() @ x + layer.bias.numpy()
    return x


def layer_norm(layer, x):
    return (x - x.mean()) / np.sqrt(x.var() + layer.eps) * layer.weight.numpy() + layer.bias.numpy()


@pytest.fixture
def network():
    """The full small network in float64, without gradient."""
    return make_network(SPECS["full"]).double().requires_grad_(False)


def widened(tensors):
    return FeatureTensors(tensors.categorical, tensors.numeric.double(), tensors.bags, tensors.embeddings.double())


def test_the_features_of_a_row_stand_side_by_side_in_kind_then_declared_order():
    features, block = FULL.of(Scope.ITEM), encode_features(FULL.of(Scope.ITEM), make_items(9))
    torch.manual_seed(0)
    embedding = FeatureEmbedding(features, 4)
    found = embedding(FeatureTensors.from_block(block)).detach().numpy()
    tables, at = {}, 0
    for name in ("category", "brand", "stock", "tags", "words"):
        feature = FULL.item(name)
        tables[name], at = embedding.table.detach().numpy()[at : at + feature.buckets], at + feature.buckets
    for r in range(9):
        categorical = [tables[n][b] for n, b in zip(("category", "brand", "stock"), block.categorical_RC[r], strict=True)]
        bags = []
        for name, bag in zip(("tags", "words"), block.bags_RBV[r], strict=True):
            present = [tables[name][b] for b in bag if b > 0]
            bags.append(np.mean(present, axis=0) if present else np.zeros(4))
        np.testing.assert_allclose(found[r], np.concatenate([*categorical, *bags, block.numeric_RN[r], block.embeddings_RE[r]]), atol=1e-6)
    assert found.shape == (9, embedding.width) and sum(embedding.widths) == embedding.width


def test_a_finite_number_of_any_size_stays_finite_through_the_item_half():
    network = make_network(SPECS["full"])
    items = encode_items(network.spec, [{"quality": 3e38, "image": [3e38] * 12}])
    vectors, bridge = network.item_rows(FeatureTensors.from_block(items))
    assert vectors.isfinite().all() and bridge.isfinite().all()
    assert network.item_half.features(FeatureTensors.from_block(items)).abs().max() == VALUE_ABS_MAX


def test_a_scope_without_features_is_one_column_of_zeros():
    embedding = FeatureEmbedding((), 4)
    assert embedding(FeatureTensors.from_block(encode_features((), [{}, {}]))).tolist() == [[0.0], [0.0]]
    assert embedding.width == 1 and not list(embedding.parameters())


def test_the_item_half_is_equation_4_and_line_3_of_algorithm_1(network):
    items = widened(FeatureTensors.from_block(encode_items(network.spec, make_items(6))))
    vectors, weights = network.item_rows(items)
    half, bridges = network.item_half, network.bea.bridges_ND.numpy()
    for r, x in enumerate(half.features(items).numpy()):
        np.testing.assert_allclose(vectors[r], layer_norm(half.vector_norm, mlp(half.vector, x)), atol=1e-10)
        key = layer_norm(half.key_norm, mlp(half.key, x))
        np.testing.assert_allclose(weights[r], softmax([key @ b / np.sqrt(len(b)) for b in bridges]), atol=1e-10)


def test_the_user_half_is_equations_1_to_3_and_lines_1_and_2_of_algorithm_1(network):
    spec, users = network.spec, make_user(network, make_items(9, seed=3))
    behaviours = users.behaviours
    half = network.user_half
    history = network.behaviour(
        type(behaviours)(
            **{f: getattr(behaviours, f) for f in behaviours.__dataclass_fields__} | {"features": widened(behaviours.features)}
        )
    )
    used = history[:, -spec.attended_behaviours :]
    user, rows = half(widened(users.profile), used, behaviours.mask_BL[:, -spec.attended_behaviours :])
    sequence, scale = used[0].numpy(), np.sqrt(spec.width)
    features = half.features(widened(users.profile))[0].numpy()
    profile = half.w_profile.weight.numpy() @ features + half.w_profile.bias.numpy()
    mixed = []
    for query in sequence:  # Eq. 2
        attended = softmax([query @ key / scale for key in sequence]) @ sequence
        mixed.append(mlp(half.attention.ffn, attended) + query)
    by_profile = softmax([profile @ key / scale for key in sequence]) @ sequence  # Eq. 3
    np.testing.assert_allclose(user[0], np.concatenate([profile, np.mean(mixed, axis=0), by_profile]), atol=1e-10)
    pieces = np.split(features, np.cumsum(half.features.widths)[:-1])
    groups = [linear.weight.numpy() @ piece for linear, piece in zip(half.rows, pieces, strict=True)]
    matrix = np.stack([*groups, np.mean(mixed, axis=0), by_profile]) + half.row_identity_GD.numpy()
    np.testing.assert_allclose(rows[0], matrix, atol=1e-10)
    keys = [layer_norm(network.bea.user_norm, network.bea.user_key.weight.numpy() @ u + network.bea.user_key.bias.numpy()) for u in matrix]
    for n, bridge in enumerate(network.bea.bridges_ND.numpy()):
        pooled = softmax([bridge @ key / scale for key in keys]) @ matrix
        expected = mlp(network.bea.f, pooled) + network.bea.skip.weight.numpy() @ pooled
        np.testing.assert_allclose(network.bea.user_vectors(rows)[0, n], expected, atol=1e-10)


def test_equation_1_reads_how_many_newer_behaviours_there_are_and_starts_as_if_it_did_not():
    spec = SPECS["recency"]
    network = make_network(spec).requires_grad_(False)
    behaviours = make_user(network, make_items(9, seed=3)).behaviours
    weights_SX, gate_S = (w.clone().double().numpy() for w in (network.behaviour.w_recency_SD, network.behaviour.recency_gate_S))
    found, latest = (network.behaviour(map_tensors(behaviours, lambda t, n=n: t[:, -n:]))[0].numpy() for n in (9, 4))
    np.testing.assert_allclose(found[-4:], latest, rtol=1e-5, atol=1e-5)
    network.behaviour.w_recency_SD.zero_()
    network.behaviour.recency_gate_S.zero_()
    for newer, plain in enumerate(network.behaviour(behaviours)[0].numpy()[::-1]):
        recency = [np.exp(-newer / scale) for scale in spec.recency]
        np.testing.assert_allclose(found[8 - newer], (plain + recency @ weights_SX) * np.exp(recency @ gate_S), rtol=1e-5, atol=1e-5)
    torch.manual_seed(0)
    without = AifNetwork(dataclasses.replace(spec, recency=()), None).state_dict()
    torch.manual_seed(0)
    started = AifNetwork(spec, None).state_dict()
    zeros = [started.pop(f"behaviour.{name}") for name in ("w_recency_SD", "recency_gate_S")]
    assert not any(array.any() for array in zeros) and all(torch.equal(without[name], tensor) for name, tensor in started.items())


@pytest.mark.parametrize("seed", range(5))
def test_a_new_network_has_every_row_of_the_user_at_a_bridge_and_every_item_between_them(seed):
    spec = dataclasses.replace(SPECS["full"], bridges=9, width=16)
    torch.manual_seed(seed)
    network = AifNetwork(spec, make_w_hash(0, spec.hash_bits, spec.schema.mm_width))
    rows = network.user_half.row_identity_GD
    keys = network.bea.user_norm(network.bea.user_key(rows))
    read = torch.softmax(network.bea.bridges_ND @ keys.T / spec.width**0.5, dim=-1)
    assert read.argmax(dim=1).tolist() == [n % len(rows) for n in range(9)]
    assert read.amax(dim=1).min() > 0.5
    _, weights = network.item_rows(FeatureTensors.from_block(encode_items(spec, make_items(200))))
    assert weights.max() < 0.5 and weights.mean(dim=0).min() > 0.03
    assert network.head.project_bea.weight.abs().max() > 2 / spec.bridge_width**0.5  # a linear layer of torch starts below half of that


def test_line_4_of_algorithm_1_is_a_weighted_sum_of_the_user_vectors():
    weights, vectors = torch.rand(2, 3, 4), torch.rand(2, 4, 5)
    expected = np.zeros((2, 3, 5))
    for b, c, n in np.ndindex(2, 3, 4):
        expected[b, c] += weights[b, c, n].item() * vectors[b, n].numpy()
    np.testing.assert_allclose(join_bridges(weights, vectors), expected, atol=1e-6)


def test_a_user_without_behaviours_attends_to_nothing_and_gives_no_nan():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert profile_attention(torch.randn(2, 4), torch.zeros(2, 3, 4), mask).tolist() == [[0.0] * 4] * 2
    network = make_network(SPECS["full"])
    assert network.user_half.attention.self_attention(torch.zeros(2, 3, 8), mask).tolist() == [[0.0] * 8] * 2
