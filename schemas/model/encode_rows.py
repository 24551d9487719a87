"""The one function that computes stored item rows: the build, the increment path and a replay all call `encode_rows`.

Here: blocks, rounding, and the fingerprint of the arithmetic. Not here: what an item half computes (item_half.py).

A row's bits depend on its batch: alone and in a batch of 4,096 it differs in 5-20% of rows even after rounding fp32 results to fp16. A fixed
shape is not enough either: with an odd number of inputs and fewer than 16 outputs a math library rounds by the row's place in the block (199
of 256 rows differed). So every row is encoded in a block of exactly ENCODE_BLOCK_ROWS rows, padded with zero rows; tables are read in fp32
(copies, exact), everything after them is computed in fp64, and the result is rounded once, to fp16. What is left of the order of sums is
about 2^-52, against a rounding step of 2^-11: one stored number in 10^12 could differ, and none was seen to.
Invariant: the bits of a row do not depend on the other rows, on its place in the block, or on the number of threads. Rows of different
fingerprints (torch's build, the CPU's instruction set) must never mix in one version.

Arrays: R rows, D width, N bridges.
"""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.features import FeatureBlock
from schemas.limits import ENCODE_BLOCK_ROWS
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.network import AifNetwork


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """vectors_RD float16 [R, D] and bridge_RN float16 [R, N], as stored."""

    vectors_RD: np.ndarray
    bridge_RN: np.ndarray


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


@functools.cache
def encoder_fingerprint(device: str = "cpu") -> str:
    """What the bits of a row depend on besides its inputs: torch's build, CPU capability, device, type, block, a digest of arithmetic.

    The digest is of a fixed block through a product, LayerNorm and softmax, rounded as rows are: an arithmetic that visibly differs is told apart
    even where the names agree.
    """
    capability = torch.backends.cpu.get_cpu_capability() if device == "cpu" else torch.cuda.get_device_name(device)
    facts = (f"torch={torch.__version__}", f"cpu={capability}", f"device={device}", "dtype=float64", f"block={ENCODE_BLOCK_ROWS}")
    return ";".join((*facts, f"bits={_arithmetic_digest(device)}")).replace(" ", "_")


@torch.inference_mode()
def _arithmetic_digest(device: str) -> str:
    def fixed(rows: int, columns: int) -> Tensor:
        whole = (np.arange(rows * columns, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(65521)
        return torch.from_numpy((whole / 65521.0 - 0.5).reshape(rows, columns)).to(device)

    hidden = torch.relu(fixed(ENCODE_BLOCK_ROWS, 96) @ fixed(96, 64))
    out = torch.softmax(F.layer_norm(hidden @ fixed(64, 32), (32,)), dim=-1)
    return hashlib.sha256(out.half().cpu().numpy().tobytes()).hexdigest()[:8]
