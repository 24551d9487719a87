"""The device scorer: its arithmetic on the CPU everywhere, and on a GPU where there is one."""

import functools
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from schemas.ids import encode_index_key
from schemas.index.layout import encode_increment, row_layout
from schemas.model.simtier import count_plainly
from serving.engine.devices.cuda import CudaScorer
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.devices.test_cpu import probability_tolerance
from tests.serving.engine.samples import CONTEXT, PROFILE, changes_of_pairs, make_behaviours, make_version, stamp

WITHOUT_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, WITHOUT_DEVICE])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPECS)
def test_the_device_scorer_gives_the_cpu_scorers_numbers_also_after_changes(name: str, device: str) -> None:
    version = make_version(SPECS[name])
    rows = version.row_numbers
    work = UserWork(PROFILE, make_behaviours(version, 30))
    on_cpu = version.scorer()
    wanted = [on_cpu.score(on_cpu.user_state(work), rows, CONTEXT)]
    other = make_version(SPECS[name])
    on_device = CudaScorer(other.parameters, 1, other.tables, device)
    found = [on_device.score(on_device.user_state(work), rows, CONTEXT)]
    pairs = [(encode_index_key(i), encode_increment(stamp(2), version.rows[at - 1])) for at, i in enumerate(version.ids[:20])]
    changes = changes_of_pairs(row_layout(version.spec), pairs)
    on_cpu.on_applied(version.tables.apply(changes))
    on_device.on_applied(other.tables.apply(changes))
    wanted.append(on_cpu.score(on_cpu.user_state(work), rows, CONTEXT))
    found.append(on_device.score(on_device.user_state(work), rows, CONTEXT))
    for (scores, probabilities), (wanted_scores, wanted_probabilities) in zip(found, wanted, strict=True):
        assert np.abs(probabilities - wanted_probabilities).max() <= 4 * probability_tolerance(version)
        assert np.allclose(scores, wanted_scores, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("device", DEVICES)
def test_no_candidate_is_an_empty_answer(device: str) -> None:
    version = make_version(SPECS["full"], 20)
    scorer = CudaScorer(version.parameters, 1, version.tables, device)
    scores, probabilities = scorer.score(scorer.user_state(UserWork()), np.zeros(0, np.int64), CONTEXT)
    assert (scores.shape, probabilities.shape) == ((0,), (0, 1))


@pytest.mark.parametrize("name", SPECS)
def test_call_two_on_a_device_touches_no_tensor_of_another(name: str) -> None:
    """Torch's device "meta" has shapes and no values; as on a GPU, an operation on tensors of two devices fails there."""
    version = make_version(SPECS[name], 20)
    scorer = CudaScorer(version.parameters, 1, version.tables, "meta")
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 9)))
    with torch.inference_mode():
        answer_CX = scorer.score_there(scorer.send_user(state, version.row_numbers, CONTEXT))
    assert answer_CX.device.type == "meta" and answer_CX.shape == (20, 1 + len(version.spec.tasks)) and answer_CX.dtype is torch.float32


@pytest.mark.cuda
@WITHOUT_DEVICE
def test_simtiers_kernel_is_used_on_the_device_and_exact_there() -> None:
    from tests.serving.engine.devices import tier_kernel_cases

    wrong = [name for name, agrees in tier_kernel_cases.find_differing("cuda") if not agrees]
    assert not wrong
    version = make_version(SPECS["full"])
    rows = version.row_numbers
    scorer = CudaScorer(version.parameters, 1, version.tables)
    assert scorer.tiers_by == "triton"
    state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 30)))
    fused = scorer.score(state, rows, CONTEXT)
    scorer.count_tiers = functools.partial(count_plainly, tier_edges=version.spec.tier_edges)
    for one, other in zip(fused, scorer.score(state, rows, CONTEXT), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.cuda
@WITHOUT_DEVICE
def test_simtiers_kernel_is_not_slower_than_plain_torch() -> None:
    from serving.engine.devices.tier_kernel import count_tiers, tier_limits
    from tests.serving.engine.devices.tier_kernel_cases import EDGES

    items, sequence = (torch.randint(256, (rows, 16), dtype=torch.uint8, device="cuda") for rows in (10_000, 1_000))
    limits = tier_limits(EDGES, 128).cuda()

    def plain() -> torch.Tensor:
        return count_plainly(items, sequence, EDGES)

    def fused() -> torch.Tensor:
        return count_tiers(items, sequence, limits)

    assert torch.equal(plain(), fused())
    assert _median_s(fused) <= _median_s(plain)


def _median_s(call: Callable[[], torch.Tensor]) -> float:
    """Of 50 calls, each to its end on the device."""
    taken = []
    for _ in range(50):
        started_s = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started_s)
    return statistics.median(taken)
