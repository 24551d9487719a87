"""The cost of the rows of Table 3, counted as the paper does and measured: DIN and SimTier over vectors, factored cosine, and signatures.

Here: each form computed for C candidates and L behaviours of one user on one thread, best of several rounds. Not here: quality (tables.py).
Counted cost is the paper's b l d, with a signature counted in bytes: d_id = d_mm = 8 d_lsh, so signatures of 256 bits are compared with embeddings
of 256 numbers. Measured cost is the time of the fastest form known to us on one core: matrix products for exact similarities, the factored sum
(schemas/model/din.py) and a compiled count of equal bits for hashed ones. All forms end in DIN's vector and the counts of the tiers.

Arrays: C candidates, L behaviours, D width of vectors (both kinds), K bits, Q words of 64 bits, N tiers, P principal directions, G clusters.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from schemas.model.compiled import int64
from schemas.model.lsh import equal_bits_min
from streams.training.family.cluster_moments import CLUSTER_SPREAD, CLUSTERS
from streams.training.family.codes import MOMENT_WIDTH

ROUNDS = 15
BEHAVIOURS = 4_000
_EDGES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class CostCase:
    """The operands for one user: candidates and behaviours as learnt vectors, as unit embeddings, as signs and as packed words; float32 or uint64."""

    query_CD: np.ndarray
    key_LD: np.ndarray
    value_LD: np.ndarray
    unit_CD: np.ndarray
    unit_LD: np.ndarray
    signs_CK: np.ndarray
    cross_KD: np.ndarray
    words_CQ: np.ndarray
    words_LQ: np.ndarray
    bits: int


def make_case(candidates: int = 500, behaviours: int = BEHAVIOURS, width: int = 256, bits: int = 256) -> CostCase:
    """Random operands, because the times do not depend on values. S^T V of the factored form is made here, as call 1 makes it: it is not timed."""
    rng = np.random.default_rng(0)

    def drawn(rows: int) -> np.ndarray:
        return rng.standard_normal((rows, width)).astype(np.float32)

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    bits_CK, bits_LK = rng.random((candidates, bits)) < 0.5, rng.random((behaviours, bits)) < 0.5
    value_LD = drawn(behaviours)
    signs_LK = (2.0 * bits_LK - 1).astype(np.float32)
    words_CQ, words_LQ = (np.packbits(b, axis=1).view(np.uint64) for b in (bits_CK, bits_LK))
    vectors = (drawn(candidates), drawn(behaviours), value_LD, unit(drawn(candidates)), unit(drawn(behaviours)))
    return CostCase(*vectors, (2.0 * bits_CK - 1).astype(np.float32), signs_LK.T @ value_LD, words_CQ, words_LQ, bits)


def attention_din(case: CostCase) -> np.ndarray:
    """DIN of learnt vectors: softmax attention over every behaviour, [C, D]."""
    scores_CL = case.query_CD @ case.key_LD.T / math.sqrt(case.query_CD.shape[1])
    scores_CL = np.exp(scores_CL - scores_CL.max(axis=1, keepdims=True))
    return (scores_CL / scores_CL.sum(axis=1, keepdims=True)) @ case.value_LD


def cosine_tiers(case: CostCase) -> np.ndarray:
    """SimTier of embeddings: counts at or above each edge, [C, N - 1]."""
    similarity_CL = case.unit_CD @ case.unit_LD.T
    return np.stack([(similarity_CL >= _cosine(edge)).sum(axis=1) for edge in _EDGES], axis=1)


def _cosine(edge: float) -> float:
    """What a share of equal bits stands for."""
    return math.cos(math.pi * (1 - edge))


def factored_lsh_din(case: CostCase) -> np.ndarray:
    """LSH-DIN by the sums of the user half, [C, D]."""
    return case.signs_CK @ case.cross_KD / (case.bits * len(case.words_LQ))


def factored_cosine_din(case: CostCase, cross_DD: np.ndarray) -> np.ndarray:
    """MM-DIN by the same factoring, [C, D]."""
    return case.unit_CD @ cross_DD / len(case.unit_LD)


def cluster_tiers(codes_CP: np.ndarray, count_G: np.ndarray, mean_GP: np.ndarray) -> np.ndarray:
    """Counts expected at or above each edge from the clusters of the user half (family/cluster_moments.py), [C, N - 1].

    A logistic step is 1 / (1 + exp(-z)) with z = (x - edge) / spread = x / spread - edge / spread, so one exponential per mean cosine x serves
    all edges."""
    below_CG = np.exp(codes_CP @ mean_GP.T / -CLUSTER_SPREAD)
    return np.stack([1 / (1 + below_CG * math.exp(_cosine(edge) / CLUSTER_SPREAD)) @ count_G for edge in _EDGES], axis=1)


def lsh_tiers(case: CostCase) -> np.ndarray:
    """LSH-SimTier: counts of behaviours with at least each edge's equal bits, [C, N - 1]."""
    return pool_counts(count_equal_bits(case.words_CQ, case.words_LQ), equal_bits_min(_EDGES, case.bits))


def pool_counts(counts_CB: np.ndarray, minima: tuple[int, ...]) -> np.ndarray:
    """At least so many equal bits, from the histogram over numbers of equal bits: [C, len(minima)]."""
    at_least_CB = np.cumsum(counts_CB[:, ::-1], axis=1)[:, ::-1]
    return at_least_CB[:, list(minima)]


@numba.njit(cache=True)
def count_equal_bits(words_CQ: np.ndarray, words_LQ: np.ndarray) -> np.ndarray:
    """How many behaviours have each number of equal bits with each candidate: int64 [C, 64 Q + 1]. The count of a word is by halving."""
    candidates, words = words_CQ.shape
    bits = 64 * words
    counts_CB = np.zeros((candidates, bits + 1), np.int64)
    for c in range(candidates):
        for j in range(words_LQ.shape[0]):
            different = 0
            for q in range(words):
                x = words_CQ[c, q] ^ words_LQ[j, q]
                x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
                x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
                x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
                different += int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
            counts_CB[c, bits - different] += 1
    return counts_CB


def measure_costs(case: CostCase) -> dict[str, float]:
    """Seconds of each row of Table 3 for one user, by the variant's name: the sum of those of its two modules."""
    cross_DD = case.unit_LD.T @ case.value_LD
    narrow_CP, mean_GP = case.unit_CD[:, :MOMENT_WIDTH], case.unit_LD[:CLUSTERS, :MOMENT_WIDTH]
    count_G = np.full(len(mean_GP), len(case.unit_LD) / len(mean_GP), np.float32)
    seconds = {
        "attention": best_seconds(lambda: attention_din(case)),
        "cosine_tiers": best_seconds(lambda: cosine_tiers(case)),
        "lsh_din": best_seconds(lambda: factored_lsh_din(case)),
        "cosine_din": best_seconds(lambda: factored_cosine_din(case, cross_DD)),
        "lsh_tiers": best_seconds(lambda: lsh_tiers(case)),
        "moments": best_seconds(lambda: cluster_tiers(narrow_CP, count_G, mean_GP)),
    }
    return {
        "din_simtier": seconds["attention"] + seconds["cosine_tiers"],
        "lsh_din_simtier": seconds["lsh_din"] + seconds["cosine_tiers"],
        "din_lsh_simtier": seconds["attention"] + seconds["lsh_tiers"],
        "mm_din_simtier": seconds["cosine_din"] + seconds["cosine_tiers"],
        "lsh_256": seconds["lsh_din"] + seconds["lsh_tiers"],
        "mm_din_moments": seconds["cosine_din"] + seconds["moments"],
    }


def counted_costs(width: int, bits: int) -> dict[str, float]:
    """The paper's count for one pair of candidate and behaviour, by the variant's name. The unit is one number of a vector; 8 bits of a signature
    are one too. The cost of moments is paid once per candidate and divided by its pairs; the paper counts no cost of factored sums."""
    hashed, moments = bits / 8, CLUSTERS * (MOMENT_WIDTH + len(_EDGES))
    return {
        "din_simtier": 2.0 * width,
        "lsh_din_simtier": hashed + width,
        "din_lsh_simtier": width + hashed,
        "mm_din_simtier": float(width),
        "lsh_256": hashed,
        "mm_din_moments": moments / BEHAVIOURS,
    }


def best_seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of the fastest of `ROUNDS` calls, after one that is not counted."""
    work()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
