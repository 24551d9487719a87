"""`aif bench device`: the engine alone with a CUDA device, from ids to the top 100, compared with its own compiled pass on the CPU.

Also `python -m lab.serving.device`, which needs torch, NumPy, numba and safetensors: it measures on a machine that has a device and nothing else of ours.
"""

import json
import sys
from functools import partial

import numpy as np
import torch

from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.serving.world import CONTEXT, PROFILE, Plan, RankWorld, compare_scores, engine_case, open_rank_world, time_in_turns
from schemas.errors import Misconfigured
from schemas.model.parameters import parameters_of
from serving.engine.devices.cuda import CudaScorer
from serving.engine.work import UserWork

DEVICE = read_bench("bench device")
CANDIDATES = (1_000, 10_000, 100_000)
_LENGTH = 1_000  # behaviours
_USERS = 4  # whose answers are compared
_ON_DEVICE = 2  # the version that the device answers; the world's own is the CPU's


def measure_device(items: int, plan: Plan, device: str = "cuda") -> Figures:
    """All figures. Raises Misconfigured (`no_cuda`) where torch finds no device. `device`: any of torch's."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Misconfigured("no_cuda", "torch finds no CUDA device here; `aif bench rank` measures the engine on a CPU")
    with open_rank_world(items) as world:
        scorer = CudaScorer(parameters_of(world.network), _ON_DEVICE, world.tables, device)
        world.engine.admit(world.resident(scorer, _ON_DEVICE)).result()
        name = torch.cuda.get_device_name() if device == "cuda" else device
        config = {"items": items, "candidates": list(plan.candidates), "calls": plan.turns * plan.calls}
        figures = Figures(DEVICE, config | {"device": name, "tiers_by": scorer.tiers_by})
        _measure(world, scorer, plan, figures)
        _compare(world, scorer, figures)
    return figures


def _measure(world: RankWorld, scorer: CudaScorer, plan: Plan, figures: Figures) -> None:
    work = UserWork(PROFILE, world.history(_LENGTH))
    states = {"cuda": scorer.user_state(work), "cpu": world.scorer.user_state(work)}
    for candidates in plan.candidates:
        cases = {name: engine_case(world, state, world.requests(candidates)) for name, state in states.items()}
        taken = time_in_turns(cases, plan.turns, plan.calls_of(candidates))
        figures.add(f"cuda_p50_ms_{candidates}", np.median(taken["cuda"]))
        figures.add(f"cuda_p99_ms_{candidates}", np.percentile(taken["cuda"], 99))
        figures.add(f"cpu_p50_ms_{candidates}", np.median(taken["cpu"]))


def _compare(world: RankWorld, scorer: CudaScorer, figures: Figures) -> None:
    compared = []
    for _ in range(_USERS):
        state = scorer.user_state(UserWork(PROFILE, world.history(_LENGTH)))
        row_C = world.rng.choice(len(world.ids), min(10_000, len(world.ids)), replace=False)
        ours, theirs = (world.engine.run(partial(one.score, state, row_C, CONTEXT)).result()[0] for one in (scorer, world.scorer))
        compared.append(compare_scores(ours, theirs))
    differences, overlaps = zip(*compared, strict=True)
    figures.add("cuda_difference_max", max(differences))
    figures.add("cuda_overlap", float(np.mean(overlaps)))


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(measure_device(1_000_000, Plan(CANDIDATES, 12, 100)).as_dict(), indent=2) + "\n")
    except Misconfigured as error:
        sys.exit(str(error))
