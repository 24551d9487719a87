"""DIN (Eq. 8), SimTier (Eq. 9) and SIM-hard (3.3): fast forms against plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.model.din import DinSums, build_din_sums, din_from_sums, din_reference
from schemas.model.lsh import equal_bits_min, lsh_similarity
from schemas.model.sim_hard import build_sim_table, look_up_sim
from schemas.model.simtier import decode_signs, equal_bits, simtier_counts, simtier_features, simtier_reference

EDGES = (0.25, 0.45, 0.5, 0.6, 0.75, 1.0)
SEEDS = st.integers(0, 2**32 - 1)


def draw_histories(seed, width=3, dtype=torch.float64):
    """items [B, C, W], sequence [B, L, W], has [B, L], values [B, L, D]."""
    rng = np.random.default_rng(seed)
    users, candidates, length = rng.integers(1, 4), rng.integers(1, 6), rng.integers(1, 9)
    items = rng.integers(0, 256, (users, candidates, width), np.uint8)
    sequence = rng.integers(0, 256, (users, length, width), np.uint8)
    copied = rng.random((users, length)) < 0.3  # equal signatures happen
    sequence[copied] = np.broadcast_to(items[:, :1], sequence.shape)[copied]
    has = rng.random((users, length)) < 0.8
    values = torch.from_numpy(rng.standard_normal((users, length, 4))).to(dtype)
    return items, sequence, has, values


@given(SEEDS, st.sampled_from(["raw", "centred"]))
@settings(deadline=None)
def test_the_factored_din_equals_equation_8(seed, form):
    items, sequence, has, values = draw_histories(seed)
    has_t = torch.from_numpy(has)
    signs = decode_signs(torch.from_numpy(sequence), has_t).double()
    candidates = decode_signs(torch.from_numpy(items), torch.ones(items.shape[:2], dtype=torch.bool)).double()
    similarity = torch.from_numpy(np.stack([lsh_similarity(i, s) for i, s in zip(items, sequence, strict=True)]))
    direct = din_reference(similarity, values, has_t, form)
    torch.testing.assert_close(din_from_sums(candidates, build_din_sums(values, signs, has_t), form), direct)
    for b in range(len(items)):
        for c in range(items.shape[1]):
            weights = [2 * s - 1 if form == "centred" else s for s in similarity[b, c].tolist()]
            terms = [w * v for w, v, h in zip(weights, values[b].numpy(), has[b], strict=True) if h]
            plain = sum(terms, np.zeros(4)) / (max(1, len(terms)) if form == "centred" else 1)
            np.testing.assert_allclose(direct[b, c].numpy(), plain, atol=1e-12)


@given(SEEDS)
@settings(deadline=None)
def test_adding_behaviours_one_by_one_gives_the_sums_of_the_whole_history(seed):
    _, sequence, has, values = draw_histories(seed)
    has_t = torch.ones_like(torch.from_numpy(has))
    signs = decode_signs(torch.from_numpy(sequence), has_t).double()
    whole, sums = build_din_sums(values, signs, has_t), build_din_sums(values[:, :0], signs[:, :0], has_t[:, :0])
    for j in range(values.shape[1]):
        one = slice(j, j + 1)
        new = build_din_sums(values[:, one], signs[:, one], has_t[:, one])
        sums = DinSums(*(getattr(sums, name) + getattr(new, name) for name in DinSums.__dataclass_fields__))
    for name in DinSums.__dataclass_fields__:
        torch.testing.assert_close(getattr(sums, name), getattr(whole, name), check_dtype=False)


@given(SEEDS)
@settings(deadline=None)
def test_tiers_by_products_and_by_similarity_are_equal(seed):
    items, sequence, has, _ = draw_histories(seed)
    everywhere = torch.ones(items.shape[:2], dtype=torch.bool)
    counts = simtier_counts(
        decode_signs(torch.from_numpy(items), everywhere),
        decode_signs(torch.from_numpy(sequence), torch.from_numpy(has)),
        torch.from_numpy(has),
        EDGES,
    )
    for b in range(len(items)):
        kept = sequence[b][has[b]]
        reference = simtier_reference(items[b], kept, EDGES)
        assert counts[b].tolist() == reference.tolist()
        assert reference.sum(1).tolist() == [len(kept)] * len(items[b])


def test_the_top_tier_counts_equal_signatures_only():
    signature = np.array([[0x35, 0xF0]], np.uint8)
    nearly = signature ^ np.array([[0, 1]], np.uint8)
    assert simtier_reference(signature, np.concatenate([signature, nearly, signature]), (0.5, 1.0)).tolist() == [[0, 1, 2]]


def test_many_candidates_are_counted_in_chunks_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(0)
    items, sequence = rng.integers(0, 256, (50, 2), np.uint8), rng.integers(0, 256, (9, 2), np.uint8)
    monkeypatch.setattr("schemas.model.simtier.PAIRS_PER_CHUNK", 20)
    yes = torch.ones(1, 50, dtype=torch.bool)
    counts = simtier_counts(
        decode_signs(torch.from_numpy(items)[None], yes), decode_signs(torch.from_numpy(sequence)[None], yes[:, :9]), yes[:, :9], EDGES
    )
    assert counts[0].tolist() == simtier_reference(items, sequence, EDGES).tolist()


def test_edges_as_whole_numbers_agree_with_the_similarity_for_every_number_of_bits():
    for bits in (8, 16, 64, 128, 1024):
        edges = tuple(k / 20 for k in range(1, 21))
        for edge, minimum in zip(edges, equal_bits_min(edges, bits), strict=True):
            assert minimum / bits >= edge and (minimum == 0 or (minimum - 1) / bits < edge)


def test_tier_features_are_log1p_and_share_and_blank_without_a_signature():
    counts = torch.tensor([[[1.0, 3.0], [4.0, 0.0]]])
    features = simtier_features(counts, torch.tensor([4]), torch.tensor([[True, False]]))
    torch.testing.assert_close(features[0, 0], torch.tensor([math.log(2), math.log(4), 0.25, 0.75]))
    assert features[0, 1].tolist() == [0.0] * 4
    assert simtier_features(torch.zeros(1, 1, 2), torch.tensor([0]), torch.tensor([[True]])).isfinite().all()


def test_equal_bits_count_what_is_not_different():
    items, sequence = np.array([[0b10110000]], np.uint8), np.array([[0b10110001], [0b01001111]], np.uint8)
    yes = torch.ones(1, 2, dtype=torch.bool)
    found = equal_bits(decode_signs(torch.from_numpy(items)[None], yes[:, :1]), decode_signs(torch.from_numpy(sequence)[None], yes))
    assert found.tolist() == [[[7.0, 0.0]]]


def sim_by_loop(values, categories, mask, category, latest):
    chosen = [v for v, c, m in zip(values, categories, mask, strict=True) if m and c == category and c > 0][-latest:]
    return (np.mean(chosen, axis=0) if chosen else np.zeros(values.shape[-1])), math.log1p(len(chosen))


@given(SEEDS, st.integers(1, 4))
@settings(deadline=None)
def test_a_sub_sequence_is_the_mean_of_the_latest_behaviours_of_the_category(seed, latest):
    rng = np.random.default_rng(seed)
    users, length = rng.integers(1, 4), rng.integers(1, 12)
    values = torch.from_numpy(rng.standard_normal((users, length, 3)))
    categories, mask = torch.from_numpy(rng.integers(0, 4, (users, length))), torch.from_numpy(rng.random((users, length)) < 0.8)
    table = build_sim_table(values, categories, mask, latest)
    wanted = torch.arange(6).expand(users, 6)
    means, log_counts = look_up_sim(table, wanted)
    for b in range(users):
        for category in range(6):
            mean, log_count = sim_by_loop(values[b].numpy(), categories[b].tolist(), mask[b].tolist(), category, latest)
            np.testing.assert_allclose(means[b, category].numpy(), mean, atol=1e-12)
            assert log_counts[b, category, 0].item() == pytest.approx(log_count)


def test_gradients_flow_through_sub_sequences_and_sums():
    values = torch.randn(1, 5, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False, True, True]])
    means, _ = look_up_sim(build_sim_table(values, torch.tensor([[1, 2, 1, 1, 3]]), mask, 9), torch.tensor([[1, 2]]))
    means.sum().backward()
    assert values.grad is not None
    assert values.grad[0, :, 0].tolist() == [0.5, 1.0, 0.0, 0.5, 0.0]
