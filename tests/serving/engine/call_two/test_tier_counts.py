"""Bit-sliced SimTier: exact counts for any width of a signature, any edges, any repetition."""

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kernels.bit_planes import EDGES_TOGETHER, SCRATCH_ROWS, TABLE_ROWS
from schemas.kernels.products import padded
from schemas.kernels.vector_blocks import aligned
from schemas.model.lsh import equal_bits_min
from schemas.model.simtier import simtier_reference
from serving.engine.call_two.tier_counts import BLOCK, LANES, arrange_behaviours, build_word_table, pack_words, plan_limits, take_beyond


def count_tiers(items_CW: np.ndarray, behaviours_SW: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    """int64 [C, N] by the compiled form."""
    bits, words = 8 * items_CW.shape[1], -(-items_CW.shape[1] // 8)
    limits, arranged = plan_limits(equal_bits_min(edges, bits), bits), arrange_behaviours(behaviours_SW)
    tables, counters = aligned((words, TABLE_ROWS, LANES), np.uint64), aligned((SCRATCH_ROWS, LANES), np.uint64)
    near_CE = np.full((len(items_CW), padded(len(edges), EDGES_TOGETHER)), arranged.length, np.int32)
    for block, planes_QBL in enumerate(arranged.planes_ZQBL):
        for q in range(words):
            build_word_table(planes_QBL[q], arranged.valid_ZL[block], tables[q])
        take_beyond(pack_words(items_CW), tables, limits.masks_EP, arranged.shift_ZL[block], counters, near_CE)
    near_CE = near_CE[:, : len(edges)]
    near_CE[:, limits.distance_max_E < 0] = 0
    reached = np.concatenate([np.full((len(items_CW), 1), arranged.length), near_CE, np.zeros((len(items_CW), 1), int)], axis=1)
    return reached[:, :-1] - reached[:, 1:]


@given(
    seed=st.integers(0, 999),
    candidates=st.integers(0, 9),
    sequence=st.integers(0, 700),
    width=st.sampled_from([1, 2, 7, 8, 11, 16, 17, 24, 64, 128]),
    different=st.sampled_from([1, 3, 60, 700]),
    edges=st.lists(st.floats(0.0, 1.25), min_size=1, max_size=11, unique=True).map(lambda e: tuple(sorted(e))),
)
def test_compiled_tier_counts_are_those_of_the_reference(
    seed: int, candidates: int, sequence: int, width: int, different: int, edges: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 256, (different, width), np.uint8)
    signatures = drawn[rng.integers(0, different, candidates + sequence)]
    signatures[: len(signatures) // 2] ^= rng.integers(0, 2, (len(signatures) // 2, width), np.uint8)
    items, behaviours = signatures[:candidates], signatures[candidates:]
    wanted = simtier_reference(items, behaviours, edges)
    assert np.array_equal(count_tiers(items, behaviours, edges), wanted)


def test_repeated_behaviours_share_a_block_and_are_counted_exactly() -> None:
    rng = np.random.default_rng(5)
    drawn = rng.integers(0, 256, (9, 16), np.uint8)
    items, behaviours = drawn[:4], drawn[rng.integers(0, 9, 1_500)]
    assert len(arrange_behaviours(behaviours).planes_ZQBL) == 1
    assert np.array_equal(count_tiers(items, behaviours, (0.5, 0.6, 1.0)), simtier_reference(items, behaviours, (0.5, 0.6, 1.0)))


def test_every_distance_from_equal_to_opposite_is_counted_in_its_own_tier() -> None:
    for width in (8, 16):
        bits = 8 * width
        behaviours = np.packbits(np.tri(bits + 1, bits, -1, dtype=np.uint8), axis=1)
        edges = tuple((bits - d) / bits for d in range(bits, -1, -8))
        assert np.array_equal(
            count_tiers(np.zeros((1, width), np.uint8), behaviours, edges),
            simtier_reference(np.zeros((1, width), np.uint8), behaviours, edges),
        )


def test_equal_signatures_are_counted_once_where_that_saves_a_block() -> None:
    repeated = np.repeat(np.arange(200, dtype=np.uint8)[:, None], 64, axis=0)
    arranged = arrange_behaviours(repeated)
    assert len(repeated) > 20 * BLOCK and len(arranged.planes_ZQBL) == 1 and arranged.length == len(repeated)
    assert np.array_equal(count_tiers(repeated[:5], repeated, (0.5, 1.0)), simtier_reference(repeated[:5], repeated, (0.5, 1.0)))


_PLAIN = """
import numpy as np
from schemas.model.simtier import simtier_reference
from serving.engine.call_two import tier_counts
from tests.serving.engine.call_two.test_tier_counts import count_tiers
rng = np.random.default_rng(7)
for width, edges in ((8, (0.25, 0.5, 0.75)), (16, (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 1.0)), (128, (0.49, 0.5, 1.1))):
    drawn = rng.integers(0, 256, (700, width), np.uint8)
    items, behaviours = drawn[:9], drawn[rng.integers(0, 700, 900)]
    assert np.array_equal(count_tiers(items, behaviours, edges), simtier_reference(items, behaviours, edges)), (width, edges)
print("equal")
"""


def test_the_form_for_smaller_vectors_counts_the_same(tmp_path: Path) -> None:
    """Where this machine has AVX-512, which then the other tests compile for."""
    features = llvmlite.binding.get_host_cpu_features()
    if not features.get("avx512bw"):
        pytest.skip("this machine has no AVX-512, so the other tests are of this form")
    plain = ",".join(f"{'+' if on and 'avx512' not in name else '-'}{name}" for name, on in features.items())
    environment = os.environ | {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": plain, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", _PLAIN], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.stdout.strip() == "equal", found.stderr
