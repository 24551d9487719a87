"""What SimTier's kernel is held to, on any device: `python -m tests.serving.engine.devices.tier_kernel_cases` does it on the CPU, in Triton's interpreter.

The interpreter is chosen when triton is imported (TRITON_INTERPRET=1), so it has a process of its own. Prints how many cases agree; exit code 1 and the
names of the others if one does not.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from schemas.model.simtier import count_plainly
from schemas.model.spec import ModelSpec
from serving.engine.devices import tier_kernel
from serving.engine.devices.cuda import CudaScorer
from serving.engine.devices.tier_kernel import TILE_C, TILE_S, CountTiers, count_tiers, open_tier_kernel, tier_limits
from serving.engine.work import UserWork
from tests.schemas.model.samples import FULL, SPECS
from tests.serving.engine.call_two.test_tier_counts import count_tiers as count_compiled
from tests.serving.engine.samples import CONTEXT, PROFILE, make_behaviours, make_version

EDGES = ModelSpec(FULL).tier_edges
EQUAL_TIERS = tuple(t / 8 for t in range(1, 8))


class Case(NamedTuple):
    """items_CW, sequence_SW: uint8."""

    name: str
    items_CW: np.ndarray
    sequence_SW: np.ndarray
    edges: tuple[float, ...]


def make_cases() -> Iterator[Case]:
    """Every size at a tile's end, with two tiles of the other side; every width; every number of tiers; signatures that reach the outermost tiers only."""
    for candidates in (0, 1, TILE_C - 1, TILE_C, TILE_C + 1, 2 * TILE_C + 1):
        yield _random(8, candidates, TILE_S + 1, EDGES)
    for behaviours in (0, 1, TILE_S - 1, TILE_S, 3 * TILE_S + 1):
        yield _random(8, TILE_C + 1, behaviours, EDGES)
    for width in (1, 4, 7, 8, 16, 24, 32):
        yield _random(width, TILE_C + 1, TILE_S + 1, EDGES)
    for width in (1, 16):
        for edges in (EQUAL_TIERS, (0.0,), (1.0,), (0.4999, 0.5), tuple(t / 31 for t in range(1, 32))):
            yield _random(width, TILE_C + 1, TILE_S + 1, edges)
    for width in (4, 16, 32):
        one = _random(width, TILE_C + 1, TILE_S + 1, EDGES)
        row = one.items_CW[:1]
        equal = np.repeat(row, TILE_S + 1, axis=0)
        yield one._replace(name=f"{width} bytes, all equal", items_CW=np.repeat(row, TILE_C + 1, axis=0), sequence_SW=equal)
        yield one._replace(name=f"{width} bytes, all opposite", items_CW=np.repeat(~row, TILE_C + 1, axis=0), sequence_SW=equal)
        yield _each_distance(8 * width)


def _random(width: int, candidates: int, behaviours: int, edges: tuple[float, ...]) -> Case:
    """Signatures near and far from each other."""
    rng = np.random.default_rng([width, candidates, behaviours])
    drawn = rng.integers(0, 256, (7, width), np.uint8)[rng.integers(0, 7, candidates + behaviours)]
    drawn ^= rng.integers(0, 256, drawn.shape, np.uint8) & rng.integers(0, 256, drawn.shape, np.uint8)
    name = f"{width} bytes, {len(edges) + 1} tiers, {candidates} candidates, {behaviours} behaviours"
    return Case(name, drawn[:candidates], drawn[candidates:], edges)


def _each_distance(bits: int) -> Case:
    """One behaviour at each distance of the candidate, so that an edge that is off by one moves a count."""
    sequence = np.packbits(np.tri(bits + 1, bits, -1, dtype=np.uint8), axis=1)
    return Case(f"{bits} bits, each distance", np.zeros((1, bits // 8), np.uint8), sequence, EDGES)


def find_differing(device: str) -> Iterator[tuple[str, bool]]:
    """(case, whether the kernel's counts are both those of plain torch and those of the CPU's compiled form)."""
    for case in make_cases():
        limits = tier_limits(case.edges, 8 * case.items_CW.shape[1]).to(device)
        signatures = [torch.from_numpy(one).to(device) for one in (case.items_CW, case.sequence_SW)]
        counts, compiled = count_tiers(*signatures, limits), count_compiled(case.items_CW, case.sequence_SW, case.edges)
        yield case.name, torch.equal(counts, count_plainly(*signatures, case.edges)) and np.array_equal(counts.cpu().numpy(), compiled)


def check_answers() -> Iterator[tuple[str, bool]]:
    """(spec, whether the scorer's answer is the same to the last bit with the kernel's counts), for each that compares signatures."""
    opened: dict[
        tuple[int, tuple[float, ...]], tuple[CountTiers | None, str]
    ] = {}  # the kernel checks itself when it is opened: once for each shape
    for name, spec in SPECS.items():
        if not spec.signature_bytes:
            continue
        version = make_version(spec, TILE_C + 6)
        rows = version.row_numbers
        scorer = CudaScorer(version.parameters, 1, version.tables, "cpu")
        state = scorer.user_state(UserWork(PROFILE, make_behaviours(version, 30)))
        wanted = scorer.score(state, rows, CONTEXT)
        shape = spec.hash_bits, tuple(spec.tier_edges)
        if shape not in opened:
            opened[shape] = open_tier_kernel(spec, torch.from_numpy(version.tables.columns["signature"].copy()))
        kernel, why = opened[shape]
        scorer.count_tiers = kernel or scorer.count_tiers
        found = scorer.score(state, rows, CONTEXT)
        agree = all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
        yield f"answer of {name} {why}", agree and not why


def check_refusals() -> Iterator[tuple[str, bool]]:
    """(the fault, whether the kernel is refused and the reason says so)."""
    version = make_version(SPECS["full"], TILE_C + 6)
    signatures, limits = torch.from_numpy(version.tables.columns["signature"].copy()), tier_kernel.tier_limits

    def reason(spec: ModelSpec = version.spec) -> str:
        count, why = open_tier_kernel(spec, signatures)
        return why if count is None else ""

    yield "too many bits", "264" in reason(dataclasses.replace(version.spec, hash_bits=264))
    tier_kernel.tier_limits = lambda edges, bits: limits(edges, bits) - 1
    yield "an edge off by one", "differ" in reason()
    tier_kernel.tier_limits, tier_kernel.count_tiers = limits, lambda *tensors, limits_N: 1 // 0
    yield "a launch that raises", "does not run here: ZeroDivisionError" in reason()
    tier_kernel.count_tiers = count_tiers


def main() -> int:
    """The interpreter's run."""
    checked = [*find_differing("cpu"), *check_answers(), *check_refusals()]
    wrong = [name for name, agrees in checked if not agrees]
    sys.stdout.write("\n".join([f"{len(checked) - len(wrong)} of {len(checked)} agree", *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
