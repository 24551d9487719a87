"""SimTier's counts on a GPU: one Triton kernel from packed signatures to each candidate's counts. No matrix of candidates x behaviours is ever written.

Exact: whole numbers all the way.

    program     TILE_C candidates, a thread each; it walks over the user's behaviours, TILE_S at a time, which all candidates share as they are stored
    distance    population count of the exclusive or, 32 bits at a time; what fills up the last tile is beyond every limit
    tiers       how many distances are within each tier's limit, in registers; less those within the next one's, once, at the end

It has been compiled for devices and run in Triton's interpreter, but never on a device. So nothing here is tuned or timed. `popcount` is written out because
the interpreter has none. Compiled for a device it becomes one instruction.

Arrays: C candidates, S behaviours, W bytes and Q words (of 32 bits) of a signature, N tiers.
Source: AIF, eq. (9).
"""

import functools
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from schemas.model.lsh import equal_bits_min
from schemas.model.simtier import count_plainly
from schemas.model.spec import ModelSpec
from serving.engine.call_two.tier_counts import plan_limits

CountTiers = Callable[[Tensor, Tensor], Tensor]

# One thread a candidate, as TILE_C = 32 WARPS. With 64 of them, 10^4 candidates are 157 programs, more than an H200's 132 multiprocessors. A thread holds
# TILE_S distances and its tiers in registers: 64 to 152 of 255 for devices of the generations 8.0, 9.0 and 10.0, up to these bounds. With 1,024 bits they
# overflow into memory, and compiling takes ten seconds.
TILE_C, TILE_S, WARPS = 64, 32, 2
WORDS_MAX, TIERS_MAX = 8, 32
_BEYOND = tl.constexpr(1 << 20)
_CHECKED = 100  # rows of each kind in the check, so that no last tile is full


@triton.jit
def popcount(words):  # type: ignore[no-untyped-def] # triton's own types
    """Bits that are 1 in each uint32."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    return ((((words + (words >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit(do_not_specialize=["candidates", "behaviours"])  # one compilation at load serves every request
def count_kernel(  # type: ignore[no-untyped-def] # triton's own types
    items_CQ,
    sequence_SQ,
    limits_N,
    counts_CN,
    candidates,
    behaviours,
    WORDS: tl.constexpr,
    TIERS: tl.constexpr,
    TIERS_PADDED: tl.constexpr,
    TILE_C: tl.constexpr,
    TILE_S: tl.constexpr,
):
    """counts_CN of TILE_C candidates. Threads lie along the last axis, so that both sums are within a thread."""
    c, n = tl.program_id(0).to(tl.int64) * TILE_C + tl.arange(0, TILE_C), tl.arange(0, TIERS_PADDED)
    limits = tl.load(limits_N + n, mask=n < TIERS, other=-1)
    within = tl.zeros((TIERS_PADDED, TILE_C), tl.int32)
    for first in range(0, behaviours, TILE_S):
        s = first + tl.arange(0, TILE_S)
        distance = tl.where((s < behaviours)[:, None], tl.zeros((TILE_S, TILE_C), tl.int32), _BEYOND)
        for q in tl.static_range(WORDS):
            item = tl.load(items_CQ + c * WORDS + q, mask=c < candidates, other=0).to(tl.uint32, bitcast=True)
            behaviour = tl.load(sequence_SQ + s * WORDS + q, mask=s < behaviours, other=0).to(tl.uint32, bitcast=True)
            distance += popcount(behaviour[:, None] ^ item[None, :])
        within += tl.sum((distance[None, :, :] <= limits[:, None, None]).to(tl.int32), axis=1)
    follows = (n[:, None] + 1 == n[None, :])[:, :, None]
    counts = within - tl.sum(tl.where(follows, within[None, :, :], 0), axis=1)
    tl.store(counts_CN + c[None, :] * TIERS + n[:, None], counts.to(tl.float32), mask=(c < candidates)[None, :] & (n < TIERS)[:, None])


def tier_limits(tier_edges: Sequence[float], bits: int) -> Tensor:
    """int32 [N]: the largest Hamming distance of each tier or of a higher one; every distance reaches tier 0."""
    limits = plan_limits(equal_bits_min(tier_edges, bits), bits).distance_max_E.tolist()
    return torch.tensor([bits, *limits], dtype=torch.int32)


def count_tiers(items_CW: Tensor, sequence_SW: Tensor, limits_N: Tensor) -> Tensor:
    """`simtier_counts` of one user: float32 [C, N], from packed signatures of candidates and behaviours. All tensors are on one device."""
    items_CQ, sequence_SQ, tiers = _words(items_CW), _words(sequence_SW), len(limits_N)
    counts_CN = torch.empty(len(items_CQ), tiers, device=limits_N.device)
    count_kernel[(triton.cdiv(len(items_CQ), TILE_C),)](
        items_CQ,
        sequence_SQ,
        limits_N,
        counts_CN,
        len(items_CQ),
        len(sequence_SQ),
        WORDS=items_CQ.shape[1],
        TIERS=tiers,
        TIERS_PADDED=triton.next_power_of_2(tiers),
        TILE_C=TILE_C,
        TILE_S=TILE_S,
        num_warps=WARPS,
        enable_fp_fusion=False,  # without a word here Triton warns
    )
    return counts_CN


def _words(signatures_RW: Tensor) -> Tensor:
    """int32 [R, Q] row after row, padded with zeros (equal on both sides, so they add no distance)."""
    rows, width = signatures_RW.shape
    padded = signatures_RW.new_zeros(rows, -(-width // 4) * 4)
    padded[:, :width] = signatures_RW
    return padded.view(torch.int32)


def open_tier_kernel(spec: ModelSpec, signatures_RW: Tensor) -> tuple[CountTiers | None, str]:
    """(`count_tiers` with the model's limits, "") or (None, why the plain form has to count). `signatures_RW`: rows of the model, on the device."""
    if spec.hash_bits > 32 * WORDS_MAX or spec.tiers > TIERS_MAX:
        at_most = f"at most {32 * WORDS_MAX} bits and {TIERS_MAX} tiers"
        return None, f"the kernel takes {at_most}, the model has {spec.hash_bits} and {spec.tiers}"
    count = functools.partial(count_tiers, limits_N=tier_limits(spec.tier_edges, spec.hash_bits).to(signatures_RW.device))
    try:
        differ = _count_different(count, signatures_RW[:_CHECKED].reshape(-1, spec.signature_bytes), spec.tier_edges)
    except Exception as error:  # no C compiler, an older device or driver: whatever it is, the plain form answers
        return None, f"the kernel does not run here: {type(error).__name__}: {str(error)[:200]}"
    return (None, f"{differ} of the kernel's counts differ from plain torch's") if differ else (count, "")


def _count_different(count: CountTiers, rows_RW: Tensor, tier_edges: Sequence[float]) -> int:
    """How many counts differ from the plain form's: signatures of the model and random ones, against others and themselves."""
    drawn_RW = torch.randint(256, (3 * _CHECKED, rows_RW.shape[1]), generator=torch.Generator().manual_seed(0)).to(rows_RW)
    items_CW, sequence_SW = torch.cat([rows_RW, drawn_RW[: 2 * _CHECKED]]), torch.cat([rows_RW[::2], drawn_RW[_CHECKED:]])
    return int((count(items_CW, sequence_SW) != count_plainly(items_CW, sequence_SW, tier_edges)).sum())
