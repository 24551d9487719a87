"""The cost of the models, counted and measured: the rows of Table 3, bridges and Full-Cross; and the time that grouping saves in training.

Table 3. Counted cost is the paper's b l d, with a signature counted in bytes: d_id = d_mm = 8 d_lsh. So signatures of 256 bits are compared with
embeddings of 256 numbers. Measured cost is the time on one core. Exact similarities use torch's fused attention, matrix products and a compiled count;
hashed ones the factored sum (schemas/model/din.py) and a compiled count of equal bits. All forms end in DIN's vector and the counts of the tiers. A server
counts hashed ones in half that time (serving/engine/call_two/tier_counts.py), and no exact form has a counterpart.

Bridges. The n user vectors are made once a request, and each candidate costs one product with its n weights. With Full-Cross, candidates are the bridges:
each attends to every row of U and passes through f itself.

Training. Grouped by request, the user half runs once per request and not once per impression. The same training step, with the same model and items, is
timed on both forms of the same impressions. Both learn from clicks alone: COPR needs pairs within a request, and an ungrouped request has one impression.

Arrays: C candidates (of a request: shown items), L behaviours, D width of vectors, X width of any code, K bits, W words of 64 bits, T tiers.
Also: P principal directions, G clusters or rows of U, N bridges; of training Q requests, X impressions.
Source: AIF, sections 4.1, 5.2.2 and 5.2.3, Table 3 and Figure 6.
"""

import dataclasses
import itertools
import math
import time
import timeit
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lab.evaluation.family.codes import CLUSTER_SPREAD, CLUSTERS, MOMENT_WIDTH
from lab.evaluation.family.head import cross_fully
from schemas.model.bea import BridgeEmbedding, join_bridges
from schemas.model.lsh import equal_bits_min
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.trainer import Learner, item_vectors

ROUNDS = 15
CANDIDATES, BEHAVIOURS, WIDTH, BITS = 500, 4_000, 256, 256  # of Table 3
_FIRST, _ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(5))
EDGES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
BRIDGE_CANDIDATES = 10_000
USER_ROWS = 9  # rows of U in the synthetic world: six facets, the price level, and the vectors of Eq. 2 and Eq. 3


def best_seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of the fastest of `ROUNDS` calls, after one that is not counted."""
    work()
    return min(timeit.repeat(work, number=1, repeat=ROUNDS))


# --- Table 3 -------------------------------------------------------------------------------------------------------------


def attention_din(query_CD: np.ndarray, key_LD: np.ndarray, value_LD: np.ndarray) -> np.ndarray:
    """DIN of learnt vectors: softmax attention over every behaviour, [C, D]."""
    query, key, value = (torch.from_numpy(of)[None, None] for of in (query_CD, key_LD, value_LD))
    return scaled_dot_product_attention(query, key, value)[0, 0].numpy()


def factored_din(codes_CX: np.ndarray, cross_XD: np.ndarray, scale: float) -> np.ndarray:
    """LSH-DIN of signs (`scale`: bits times behaviours), MM-DIN of unit embeddings (behaviours), by the sums of the user half, [C, D]."""
    return codes_CX @ cross_XD / scale


def cosine_tiers(unit_CD: np.ndarray, unit_LD: np.ndarray) -> np.ndarray:
    """SimTier of embeddings: counts at or above each edge, [C, T - 1]."""
    return count_cosines(unit_CD @ unit_LD.T, np.array([_cosine(edge) for edge in EDGES], np.float32))


@numba.njit(cache=True)
def count_cosines(similarity_CL: np.ndarray, edges_E: np.ndarray) -> np.ndarray:
    """How many behaviours are at or above each edge: int64 [C, E]."""
    counts_CE = np.zeros((len(similarity_CL), len(edges_E)), np.int64)
    for c in range(len(similarity_CL)):
        for e in range(len(edges_E)):
            edge, count = edges_E[e], np.int32(0)
            for j in range(similarity_CL.shape[1]):
                count += np.int32(similarity_CL[c, j] >= edge)
            counts_CE[c, e] = count
    return counts_CE


def cluster_tiers(codes_CP: np.ndarray, count_G: np.ndarray, mean_GP: np.ndarray) -> np.ndarray:
    """Counts expected at or above each edge from the clusters of the user half (family/codes.py), [C, T - 1].

    A logistic step is 1 / (1 + exp(-z)) with z = x / spread - edge / spread. So one exponential per mean cosine x serves all edges."""
    below_CG = np.exp(codes_CP @ mean_GP.T / -CLUSTER_SPREAD)
    return np.stack([1 / (1 + below_CG * math.exp(_cosine(edge) / CLUSTER_SPREAD)) @ count_G for edge in EDGES], axis=1)


def lsh_tiers(words_CW: np.ndarray, words_LW: np.ndarray) -> np.ndarray:
    """LSH-SimTier of BITS bits: counts of behaviours with at least each edge's equal bits, [C, T - 1]."""
    return count_signatures(words_CW, words_LW.reshape(-1), np.array(equal_bits_min(EDGES, BITS)))


def _cosine(edge: float) -> float:
    """The cosine that a share of equal bits stands for."""
    return math.cos(math.pi * (1 - edge))


@numba.njit(cache=True)
def count_signatures(words_CW: np.ndarray, words_X: np.ndarray, least_E: np.ndarray) -> np.ndarray:
    """How many behaviours have at least each number of equal bits: int64 [C, E]. `words_X`: the words of all behaviours in a row.

    The words are written out, because a loop over them becomes vector code that takes twice as long. Indices are unsigned, because the compiler tests
    whether a signed one counts from the end."""
    counts_CE, of_distance_K = np.zeros((len(words_CW), len(least_E)), np.int64), np.zeros(BITS + 1, np.int64)
    for c in range(len(words_CW)):
        a0, a1, a2, a3 = words_CW[c, 0], words_CW[c, 1], words_CW[c, 2], words_CW[c, 3]
        of_distance_K[:] = 0
        for j in range(_FIRST, np.uint64(len(words_X)), _FOUR):
            b0, b1, b2, b3 = words_X[j], words_X[j + _ONE], words_X[j + _TWO], words_X[j + _THREE]
            of_distance_K[_ones(a0 ^ b0) + _ones(a1 ^ b1) + _ones(a2 ^ b2) + _ones(a3 ^ b3)] += 1
        for e in range(len(least_E)):
            counts_CE[c, e] = of_distance_K[: BITS + 1 - least_E[e]].sum()
    return counts_CE


@numba.njit
def _ones(x: Any) -> Any:
    """Bits of a uint64 that are 1, by halving: the compiler knows this form and makes one instruction of it."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


def measure_costs(candidates: int = CANDIDATES, behaviours: int = BEHAVIOURS) -> dict[str, float]:
    """Seconds of each row of Table 3 for one user, by the variant's name: the sum of those of its two modules.

    Operands are random, because times do not depend on values. What call 1 makes once per user (sums, means) is not timed.
    """
    rng = np.random.default_rng(0)
    query_CD, key_LD, value_LD = (rng.standard_normal((rows, WIDTH)).astype(np.float32) for rows in (candidates, behaviours, behaviours))
    unit_CD, unit_LD = (of / np.linalg.norm(of, axis=1, keepdims=True) for of in (query_CD, key_LD))
    bits_CK, bits_LK = (rng.random((rows, BITS)) < 0.5 for rows in (candidates, behaviours))
    signs_CK, signs_LK = (np.where(bits, np.float32(1), np.float32(-1)) for bits in (bits_CK, bits_LK))
    words_CW, words_LW = (np.packbits(bits, axis=1).view(np.uint64) for bits in (bits_CK, bits_LK))
    signs_KD, unit_DD = signs_LK.T @ value_LD, unit_LD.T @ value_LD
    narrow_CP, mean_GP = unit_CD[:, :MOMENT_WIDTH], unit_LD[:CLUSTERS, :MOMENT_WIDTH]
    count_G = np.full(len(mean_GP), behaviours / len(mean_GP), np.float32)
    din = {
        "exact": best_seconds(lambda: attention_din(query_CD, key_LD, value_LD)),
        "lsh": best_seconds(lambda: factored_din(signs_CK, signs_KD, BITS * behaviours)),
        "mm": best_seconds(lambda: factored_din(unit_CD, unit_DD, behaviours)),
    }
    tiers = {
        "exact": best_seconds(lambda: cosine_tiers(unit_CD, unit_LD)),
        "lsh": best_seconds(lambda: lsh_tiers(words_CW, words_LW)),
        "moments": best_seconds(lambda: cluster_tiers(narrow_CP, count_G, mean_GP)),
    }
    return {
        "din_simtier": din["exact"] + tiers["exact"],
        "lsh_din_simtier": din["lsh"] + tiers["exact"],
        "din_lsh_simtier": din["exact"] + tiers["lsh"],
        "mm_din_simtier": din["mm"] + tiers["exact"],
        "lsh_256": din["lsh"] + tiers["lsh"],
        "mm_din_moments": din["mm"] + tiers["moments"],
    }


def counted_costs() -> dict[str, float]:
    """The paper's count for one pair of candidate and behaviour, by the variant's name. The unit is one number of a vector; 8 bits of a signature
    are one too. The cost of moments is paid once per candidate and divided by its pairs; the paper counts no cost of factored sums."""
    hashed, moments = BITS / 8, CLUSTERS * (MOMENT_WIDTH + len(EDGES))
    return {
        "din_simtier": 2.0 * WIDTH,
        "lsh_din_simtier": hashed + WIDTH,
        "din_lsh_simtier": WIDTH + hashed,
        "mm_din_simtier": float(WIDTH),
        "lsh_256": hashed,
        "mm_din_moments": moments / BEHAVIOURS,
    }


# --- bridges -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def bridges_ms(spec: ModelSpec, bridges: int, candidates: int = BRIDGE_CANDIDATES) -> float:
    """Milliseconds of lines 1, 2 and 4 of Algorithm 1 for one request. Line 3 is not included: the item half computes it nearline."""
    bea = BridgeEmbedding(dataclasses.replace(spec, bridges=bridges)).eval()
    rows_BGD, weights_BCN = torch.randn(1, USER_ROWS, spec.width), torch.rand(1, candidates, bridges)
    return 1_000 * best_seconds(lambda: join_bridges(weights_BCN, bea.user_vectors(rows_BGD)))


@torch.no_grad()
def full_cross_ms(spec: ModelSpec, candidates: int = BRIDGE_CANDIDATES) -> float:
    """Milliseconds of Full-Cross for one request."""
    bea = BridgeEmbedding(spec).eval()
    rows_BGD, keys_BCD = torch.randn(1, USER_ROWS, spec.width), torch.randn(1, candidates, spec.width)
    return 1_000 * best_seconds(lambda: cross_fully(bea, keys_BCD, rows_BGD))


def counted_bridges(spec: ModelSpec, bridges: int) -> int:
    """Multiply-adds of one candidate with bridges: line 4 of Algorithm 1."""
    return bridges * spec.bridge_width


def counted_full_cross(spec: ModelSpec) -> int:
    """Multiply-adds of one candidate with Full-Cross: attention over the rows of U, then the layers of f."""
    layers = (spec.width, *spec.bridge_hidden, spec.bridge_width)
    return 2 * USER_ROWS * spec.width + sum(a * b for a, b in itertools.pairwise(layers))


# --- training ------------------------------------------------------------------------------------------------------------


def ungroup(data: TrainingSet) -> TrainingSet:
    """The same impressions, each as a request of its own (C = 1) with its own copy of the user."""
    request_X, column_X = np.nonzero(data.row_QC != NOT_AN_ITEM)
    of_items = ("row_QC", "bid_QC", "teacher_QC", "clicked_QC", "outcomes_QCT")
    picked = {name: getattr(data, name)[request_X, column_X][:, None] for name in of_items}
    return dataclasses.replace(data.take(request_X), **picked)


def examples_per_second(network: AifNetwork, data: TrainingSet, requests: int, steps: int) -> float:
    """Impressions learnt per second of processor time: the median over `steps` steps, after one that is not counted. Changes the network's weights.

    Processor time, because other processes on the machine must not change the figure.
    """
    learner = Learner(network, TrainChoices(1e-4, copr=0.0))
    vectors_RD, chance, rates = item_vectors(network, data), np.random.default_rng(0), []
    for _ in range(1 + steps):
        started = time.process_time()
        learnt = learner.take_step(data, chance.choice(len(data), min(requests, len(data)), replace=False), vectors_RD, 1.0)
        rates.append(int(learnt.mask_BC.sum()) / (time.process_time() - started))
    return float(np.median(rates[1:]))


def grouped_speedup(network: AifNetwork, data: TrainingSet, requests: int = 32, steps: int = 8) -> float:
    """Examples per second of request-grouped batches over those of batches with as many single impressions."""
    shown = max(1, round(float((data.row_QC != NOT_AN_ITEM).sum(axis=1).mean())))
    grouped = examples_per_second(network, data, requests, steps)
    single = examples_per_second(network, ungroup(data), requests * shown, steps)
    return grouped / single
