"""The CPU scorer against the network's reference form, on the same stored rows, for every shape of schema."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.model.hamming import equal_bits_min, hamming_histogram, pool_histogram
from serving.engine.changes import encode_ids
from serving.engine.cpu import CpuScorer
from serving.engine.similarity import distances_max, pack_words, write_tiers
from serving.engine.user_state import join_behaviours
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, candidate_rows, make_behaviours, make_version, reference_inputs


def probability_tolerance(version: Version) -> float:
    """Two orders of summation in fp32 differ by at most (terms of the longest sum) x eps x (size of its partial sums, about 1 after the LayerNorms)
    in a logit; a sigmoid's slope is at most 1/4, the other three quarters are for the layers before it."""
    return float(np.finfo(np.float32).eps) * max(p.shape[-1] for p in version.network.head.parameters() if p.ndim == 2)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [0, 1, 40])
def test_probabilities_and_scores_are_those_of_the_reference_network_on_the_same_rows(name: str, length: int) -> None:
    version = make_version(SPECS[name])
    scorer, behaviours = CpuScorer(version.network, 1, version.tables), make_behaviours(version, length)
    profile = PROFILE if length else {}
    state = scorer.user_state(UserWork(profile, behaviours))
    scores, probabilities = scorer.score(state, version.tables.find(encode_ids(version.ids, version.spec.schema.id_kind)), CONTEXT)
    with torch.inference_mode():
        states = version.network.user_states(reference_inputs(version, profile, behaviours))
        rows = candidate_rows(version.spec, version.rows)
        wanted_scores, wanted = version.network.scores(version.network.joint_logits(states, rows), rows.bid_BC)
    tolerance = probability_tolerance(version)
    assert np.abs(probabilities - wanted[0].numpy()).max() <= tolerance
    assert np.abs(scores - wanted_scores[0].numpy()).max() <= tolerance * float(version.rows["bid"].max())


@pytest.mark.parametrize("name", SPECS)
def test_the_join_with_slot_rows_is_the_plain_builder_on_the_same_rows(name: str) -> None:
    version = make_version(SPECS[name])
    behaviours = make_behaviours(version, 30)
    joined, missing = join_behaviours(version.spec, version.tables, behaviours)
    wanted = reference_inputs(version, PROFILE, behaviours).behaviours
    assert missing == sum(b.item_id not in set(version.ids) for b in behaviours)
    for field in ("item_bucket_BL", "kind_BL", "category_BL", "vectors_BLD", "signatures_BLW", "has_signature_BL", "mask_BL"):
        assert torch.equal(getattr(joined, field), getattr(wanted, field)), field
    assert torch.equal(joined.features.numeric, wanted.features.numeric)


@given(seed=st.integers(0, 999), candidates=st.integers(0, 9), sequence=st.integers(0, 40), width=st.sampled_from([1, 2, 8, 11, 16, 17]))
def test_compiled_tier_counts_are_the_pooled_hamming_histogram(seed: int, candidates: int, sequence: int, width: int) -> None:
    rng, edges = np.random.default_rng(seed), (0.45, 0.5, 0.55, 0.6, 0.8, 1.0)
    drawn = rng.integers(0, 256, (7, width), np.uint8)
    signatures = drawn[rng.integers(0, 7, candidates + sequence)]
    items, behaviours = signatures[:candidates], signatures[candidates:]
    has, out = np.arange(candidates) % 5 != 4, np.empty((candidates, 2 * len(edges) + 2), np.float32)
    different, often = np.unique(pack_words(behaviours), axis=0, return_counts=True)
    words, logs = np.ascontiguousarray(different.T), np.log1p(np.arange(sequence + 1, dtype=np.float32))
    limits = distances_max(equal_bits_min(edges, 8 * width), 8 * width)
    write_tiers(pack_words(items), has.astype(np.uint8), words, often.astype(np.int32), limits, logs, out)
    counts = pool_histogram(hamming_histogram(items, behaviours), edges) * has[:, None]
    assert np.array_equal(out[:, : len(edges) + 1], logs[counts])
    assert np.array_equal(out[:, len(edges) + 1 :], (counts / np.float32(max(sequence, 1))).astype(np.float32))


def test_the_cut_into_blocks_does_not_change_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    version = make_version(SPECS["full"])
    scorer, slots = CpuScorer(version.network, 1, version.tables), np.arange(300)[::-1].copy()
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 20)))
    whole, _ = scorer.score(state, slots, CONTEXT)
    monkeypatch.setattr("serving.engine.cpu.BLOCK", 64)
    cut, probabilities = scorer.score(state, slots, CONTEXT)
    assert np.allclose(whole, cut, rtol=1e-6) and probabilities.shape == (300, 1)
