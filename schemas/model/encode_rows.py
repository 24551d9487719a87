"""Stored item rows in torch: the reference of item_network.py, and how a network in training makes rows of its items.

Here: the item half in fp64, rounded. Not here: the rows of an index (item_network.py, the only thing that computes them), what an item half is
(item_half.py).

A row's bits depend on its batch here: alone and in a batch of 4,096 it differs in 5-20% of rows even after rounding fp32 results to fp16, and with an odd
number of inputs and fewer than 16 outputs a math library rounds by the row's place (199 of 256 rows differed). So rows are computed in blocks of exactly
ENCODE_BLOCK_ROWS, padded with zero rows; tables are read in fp32 (copies, exact), everything after them is fp64, and the result is rounded once, to fp16.
What is left of the order of sums is about 2^-52, against a rounding step of 2^-11.

Arrays: R rows, D width, N bridges.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.features import FeatureBlock
from schemas.limits import ENCODE_BLOCK_ROWS
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.item_network import EncodedRows
from schemas.model.network import AifNetwork


@torch.inference_mode()
def encode_rows(network: AifNetwork, block: FeatureBlock) -> EncodedRows:
    """Rows of the item half for R items (features: `schema.item_half_inputs`), R of any size, in blocks of exactly 256."""
    items, rows = FeatureTensors.from_block(block), len(block)
    device = next(network.parameters()).device
    parts = [_encode_block(network, _cut(items, at, device)) for at in range(0, rows, ENCODE_BLOCK_ROWS)]
    if not parts:
        return EncodedRows(np.zeros((0, network.spec.width), np.float16), np.zeros((0, network.spec.bridges), np.float16))
    vectors, bridges = (torch.cat(columns)[:rows].cpu().numpy() for columns in zip(*parts, strict=True))
    return EncodedRows(vectors, bridges)


def _cut(items: FeatureTensors, at: int, device: torch.device) -> FeatureTensors:
    """Rows [at, at + 256), padded with zero rows to exactly 256."""

    def pad(t: Tensor) -> Tensor:
        rows = t[at : at + ENCODE_BLOCK_ROWS]
        return F.pad(rows, [0, 0] * (t.ndim - 1) + [0, ENCODE_BLOCK_ROWS - len(rows)]).to(device)

    return map_tensors(items, pad)


def _encode_block(network: AifNetwork, items: FeatureTensors) -> tuple[Tensor, Tensor]:
    vectors_RD, bridge_RN = network.item_rows(items, torch.float64)
    return vectors_RD.half(), bridge_RN.half()
