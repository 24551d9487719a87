"""Call 1 on the CPU against the network's own user half on the same rows: every array of the state, for every shape of schema."""

import dataclasses
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.features import Scope, encode_features
from schemas.kernels.float32_code import LANES, soften_row, widen_row
from schemas.kernels.vector_blocks import address, aligned
from schemas.model.behaviour_codes import NO_CATEGORY
from schemas.model.feature_places import plan_features
from schemas.model.network import InFloat64
from serving.engine.call_one.history import join_history
from serving.engine.call_one.user_weights import EmbeddedFeatures
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import PROFILE, make_behaviours, make_version, named_states, reference_inputs

EPS = float(np.finfo(np.float32).eps)


@numba.njit
def softened(row: np.ndarray, scale: float) -> float:
    """`soften_row` of a whole row."""
    return soften_row(address(row), row.shape[0] // LANES, np.float32(scale))


@numba.njit
def widened(narrow: np.ndarray) -> np.ndarray:
    """`widen_row` of half-precision numbers given as uint16, and one place more, which stays 7."""
    wide = np.full(narrow.shape[0] + 1, 7, np.float32)
    widen_row(address(narrow), narrow.shape[0], address(wide))
    return wide


EXACT = ("simtier_BSW", "simtier_mask_BS", "sim.categories_BG", "din.count_B")


def wanted_arrays(version: Any, profile: Any, behaviours: Any) -> dict[str, np.ndarray]:
    """The reference's state in fp64, by name."""
    with torch.inference_mode(), InFloat64():
        states = version.network.user_states(reference_inputs(version, profile, behaviours))
    named = named_states(states)
    # Behaviours without a category have an entry of their own there.
    groups = max(1, int((named["sim.categories_BG"] != NO_CATEGORY).sum()))
    named |= {name: array[:, :groups] for name, array in named.items() if name.startswith("sim.")}
    signed = slice(None) if behaviours else slice(0)
    return named | {name: named[name][:, signed] for name in ("simtier_BSW", "simtier_mask_BS")}


def assert_equal_up_to_rounding(version: Any, found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """A sum of n products of numbers of about size 1 is off by at most n eps; LayerNorm and softmax keep sizes where they are."""
    longest = max(p.shape[-1] for p in version.network.parameters() if p.ndim == 2) + 150
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        if name in EXACT:
            assert np.array_equal(found[name], array), name
        else:
            assert np.abs(found[name] - array).max(initial=0) <= longest * EPS * max(1.0, np.abs(array).max(initial=0)), name


@pytest.mark.parametrize("name", SPECS)
def test_one_record_is_embedded_to_the_same_bits_as_many(name: str) -> None:
    spec, rng = SPECS[name], np.random.default_rng(1)
    for scope in (Scope.USER, Scope.CONTEXT):
        features = spec.schema.of(scope)
        rows = plan_features(features, 4).rows
        embedded = EmbeddedFeatures(features, 4, rng.random((rows, 4), np.float32) if rows else None)
        for value in ("c7", 3, 2.5, -1e300, float("nan"), None, ["a", "b"], True):
            record = {feature.name: value for feature in features[1:]}
            assert np.array_equal(embedded.embed_one(record), embedded.embed(encode_features(features, [record]))[0])


@pytest.mark.parametrize("name", SPECS)
def test_every_array_of_a_state_is_the_reference_networks_in_fp64(name: str) -> None:
    version = make_version(SPECS[name], 60)
    scorer = version.scorer()
    for length in (0, 1, 47, 48, 49, 150):
        behaviours = make_behaviours(version, length, seed=length)
        state = scorer.user_state(UserWork(PROFILE, behaviours))
        wanted = wanted_arrays(version, PROFILE, behaviours)
        assert_equal_up_to_rounding(version, state.arrays.named(), wanted)
        assert state.behaviours_without_row == sum(b.item_id not in set(version.ids) for b in behaviours)


@given(
    attended=st.integers(1, 130),
    hidden=st.sampled_from([(), (7,), (9, 33)]),
    width=st.sampled_from([1, 8, 17, 40]),
    length=st.integers(1, 140),
)
@settings(deadline=None, max_examples=12)
def test_attention_holds_for_any_width_depth_and_number_of_behaviours(
    attended: int, hidden: tuple[int, ...], width: int, length: int
) -> None:
    spec = dataclasses.replace(SPECS["no_sim"], attended_behaviours=attended, user_hidden=hidden, width=width)
    version = make_version(spec, 40)
    behaviours = make_behaviours(version, length)
    state = version.scorer().user_state(UserWork(PROFILE, behaviours))
    assert_equal_up_to_rounding(version, state.arrays.named(), wanted_arrays(version, PROFILE, behaviours))


def test_a_history_leaves_nothing_of_its_categories_behind_for_the_next() -> None:
    version = make_version(SPECS["full"], 60)
    scorer = version.scorer()
    work = UserWork(PROFILE, make_behaviours(version, 20))
    first = scorer.user_state(work).arrays.named()
    scorer.user_state(UserWork({}, make_behaviours(version, 40, seed=9)))
    assert all(np.array_equal(array, first[name]) for name, array in scorer.user_state(work).arrays.named().items())


def test_kinds_that_differ_and_kinds_that_do_not_are_coded_alike() -> None:
    version = make_version(SPECS["full"], 60)
    weights, behaviours = version.scorer().call_one.weights, make_behaviours(version, 9)
    mixed = join_history(weights, version.tables, behaviours).kind_L
    assert mixed.tolist() == [(1, 2, 0)[j % 3] for j in range(9)]
    assert join_history(weights, version.tables, behaviours[::3]).kind_L.tolist() == [1, 1, 1]


@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=70), st.floats(0.01, 2.0))
def test_a_softened_row_is_the_exponential_to_a_few_units_in_the_last_place(values: list[float], scale: float) -> None:
    padded = -(-len(values) // LANES) * LANES
    row = aligned((padded,))
    row[:] = -np.inf
    row[: len(values)] = values
    total = softened(row, scale)
    exact = np.exp(np.float32(scale).astype(float) * (np.array(values) - max(values)))
    assert np.allclose(row[: len(values)], exact, rtol=60 * EPS, atol=2e-38) and np.isclose(total, row.sum(dtype=float), rtol=1e-5)


@given(st.lists(st.floats(-60_000, 60_000, width=16), max_size=70))
def test_half_precision_numbers_are_widened_whatever_their_number(values: list[float]) -> None:
    narrow = np.array(values, np.float16)
    assert widened(narrow.view(np.uint16)).tolist() == [*narrow.astype(np.float32).tolist(), 7]
