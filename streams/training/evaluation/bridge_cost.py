"""The cost of Algorithm 1 per request by the number of bridges, and that of Full-Cross, which uses the candidates themselves as bridges.

Here: multiply-adds counted by hand, and the time of the modules that the models run, for one request, one thread, best of several rounds.
Not here: quality (tables.py). With bridges, the n user vectors are computed once per request and each candidate costs one product with its n
weights. With Full-Cross, each candidate attends to every row of U and passes through f itself.

Arrays: C candidates, G rows of U, D width, P bridge width, N bridges.  Source: AIF, sections 4.1 and 5.2.2, Figure 6.
"""

import dataclasses
import itertools

import torch

from schemas.model.bea import BridgeEmbedding, join_bridges
from schemas.model.spec import ModelSpec
from streams.training.evaluation.similarity_cost import best_seconds
from streams.training.family.head import cross_fully

CANDIDATES = 10_000
USER_ROWS = 9  # rows of U in the synthetic world: six facets, the price level, and the vectors of Eq. 2 and Eq. 3


@torch.no_grad()
def bridges_ms(spec: ModelSpec, bridges: int, candidates: int = CANDIDATES) -> float:
    """Milliseconds of lines 1, 2 and 4 of Algorithm 1 for one request. Line 3 is not included: the item half computes it nearline."""
    bea = BridgeEmbedding(dataclasses.replace(spec, bridges=bridges)).eval()
    rows_BGD, weights_BCN = torch.randn(1, USER_ROWS, spec.width), torch.rand(1, candidates, bridges)
    return 1_000 * best_seconds(lambda: join_bridges(weights_BCN, bea.user_vectors(rows_BGD)))


@torch.no_grad()
def full_cross_ms(spec: ModelSpec, candidates: int = CANDIDATES) -> float:
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
