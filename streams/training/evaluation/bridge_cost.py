"""What Algorithm 1 costs at ranking time by its number of bridges, and what Full-Cross costs, where the candidates are the bridges.

Here: one user's part counted and measured for many candidates, the same modules that the models run, best of some rounds on one thread.
Not here: quality (tables.py). With bridges, the user half's n vectors are made once per request and a candidate adds n numbers of weights;
with Full-Cross every candidate attends to every row of U and goes through f itself.

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
USER_ROWS = 9  # of the world: six facets, the price level, two attended vectors


@torch.no_grad()
def bridges_ms(spec: ModelSpec, bridges: int, candidates: int = CANDIDATES, user_rows: int = USER_ROWS) -> float:
    """Milliseconds of lines 1, 2 and 4 for one request; line 3 is the item half's, nearline."""
    bea = BridgeEmbedding(dataclasses.replace(spec, bridges=bridges)).eval()
    rows_BGD, weights_BCN = torch.randn(1, user_rows, spec.width), torch.rand(1, candidates, bridges)
    return 1_000 * best_seconds(lambda: join_bridges(weights_BCN, bea.user_vectors(rows_BGD)))


@torch.no_grad()
def full_cross_ms(spec: ModelSpec, candidates: int = CANDIDATES, user_rows: int = USER_ROWS) -> float:
    """Milliseconds of Full-Cross for one request."""
    bea = BridgeEmbedding(spec).eval()
    rows_BGD, keys_BCD = torch.randn(1, user_rows, spec.width), torch.randn(1, candidates, spec.width)
    return 1_000 * best_seconds(lambda: cross_fully(bea, keys_BCD, rows_BGD))


def counted_bridges(spec: ModelSpec, bridges: int) -> int:
    """Multiply-adds that a candidate adds with bridges: line 4."""
    return bridges * spec.bridge_width


def counted_full_cross(spec: ModelSpec, user_rows: int = USER_ROWS) -> int:
    """Multiply-adds of a candidate with Full-Cross: attention to the rows of U, then f."""
    layers = (spec.width, *spec.bridge_hidden, spec.bridge_width)
    return 2 * user_rows * spec.width + sum(a * b for a, b in itertools.pairwise(layers))
