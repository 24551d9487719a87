"""Stored item rows from features, compiled: the passes behind schemas/model/item_network.py, which arranges their weights and states their guarantees.

    inputs_BX    embeddings looked up, means of bags, numbers and vectors clipped, widened to fp64
    layers       both networks' first layers are one product; then layer by layer, the two side by side   Eq. 4
    LayerNorm, the vector rounded to fp16; the key times the bridges, softmax, rounded to fp16            Algorithm 1, line 3

Arrays: R rows, B of a block, X inputs, H widths of layers, D width, N bridges, E embedding width.
"""

from typing import NamedTuple

import numpy as np

from schemas.kernels.compiled import kernel, subkernel
from schemas.kernels.float64_code import LANES, layer_norm_row, round_numbers, softmax_row
from schemas.kernels.products import BLOCK, multiply
from schemas.kernels.vector_blocks import address

_NORM_EPSILON = 1e-5  # torch's LayerNorm
_NO_CUT = np.float32(np.inf)
_NUMBER_BYTES = 8
# Columns of `products`: which layer, columns where the input and the output begin, places of panels and bias in `values`, depth, width, whether ReLU follows.
_LAYER, _FROM, _TO, _PANELS, _BIAS, _DEPTH, _WIDTH, _RELU = range(8)


class ItemWeights(NamedTuple):
    """The item half of one version, as the kernels read it.

    `products` int64 [products, 8]: the matrix products in order, their columns named above; their weights lie in `values` float64. `norms` float64
    [2: vector, key; 2: scale, shift; D padded]; `mask` is 1 for the real ones of D. `bridges`: B of Algorithm 1 as panels; `bridge_starts`: their
    bias, 0 for each of N and -inf after it, so that the softmax gives the padding nothing.
    """

    table: np.ndarray
    categorical_starts: np.ndarray
    bag_starts: np.ndarray
    products: np.ndarray
    values: np.ndarray
    norms: np.ndarray
    mask: np.ndarray
    bridges: np.ndarray
    bridge_starts: np.ndarray
    width: int
    bridge_count: int
    value_abs_max: np.float32


class ItemArrays(NamedTuple):
    """The arrays of a FeatureBlock (schemas/features.py), contiguous."""

    categorical_RC: np.ndarray
    numeric_RN: np.ndarray
    bags_RBV: np.ndarray
    embeddings_RE: np.ndarray


class RowPlaces(NamedTuple):
    """Where the first row's vector and bridge weights go, as addresses, and how many bytes lie between two rows."""

    vectors: int
    vector_stride: int
    bridges: int
    bridge_stride: int


class ItemScratch(NamedTuple):
    """Memory of one block: its inputs, and the outputs of the layers, which alternate between the two halves of `hidden_2BH`."""

    inputs_BX: np.ndarray
    hidden_2BH: np.ndarray


@subkernel
def _widen(numbers_N: np.ndarray, most: np.float32, x_N: np.ndarray) -> None:
    """x_N = numbers, clipped to +-most; NaN stays NaN."""
    for n in range(numbers_N.shape[0]):
        x_N[n] = min(max(numbers_N[n], -most), most)


@subkernel
def _add_bag(weights: ItemWeights, buckets_V: np.ndarray, start: int, x_E: np.ndarray) -> None:
    """x_E = mean of the rows of a bag's buckets; zeros without any."""
    present = 0
    for e in range(x_E.shape[0]):
        x_E[e] = 0.0
    for bucket in buckets_V:
        if bucket > 0:
            row = min(start + bucket, weights.table.shape[0] - 1)
            for e in range(x_E.shape[0]):
                x_E[e] += np.float64(weights.table[row, e])
            present += 1
    for e in range(x_E.shape[0]):
        x_E[e] /= np.float64(max(present, 1))


@subkernel
def _gather_row(items: ItemArrays, weights: ItemWeights, row: int, x_X: np.ndarray) -> None:
    """x_X = the inputs of an item, in the order of feature_places.py."""
    width, at = weights.table.shape[1], 0
    for c in range(items.categorical_RC.shape[1]):
        entry = weights.categorical_starts[c] + items.categorical_RC[row, c]
        entry = min(max(entry, 0), weights.table.shape[0] - 1)  # so that nothing outside the table is read
        _widen(weights.table[entry], _NO_CUT, x_X[at : at + width])
        at += width
    for b in range(items.bags_RBV.shape[1]):
        _add_bag(weights, items.bags_RBV[row, b], weights.bag_starts[b], x_X[at : at + width])
        at += width
    numbers, values = items.numeric_RN.shape[1], items.embeddings_RE.shape[1]
    _widen(items.numeric_RN[row], weights.value_abs_max, x_X[at : at + numbers])
    _widen(items.embeddings_RE[row], weights.value_abs_max, x_X[at + numbers : at + numbers + values])


@subkernel
def _run_layers(rows: int, weights: ItemWeights, scratch: ItemScratch) -> int:
    """Both MLPs over a block. Returns the address of their outputs: in each row the vector's, then the key's."""
    stride, input_stride = _NUMBER_BYTES * scratch.hidden_2BH.shape[2], _NUMBER_BYTES * scratch.inputs_BX.shape[1]
    values, hidden, turn = address(weights.values), address(scratch.hidden_2BH), scratch.hidden_2BH.shape[1] * stride
    for p in range(weights.products.shape[0]):
        product = weights.products[p]
        source, source_stride = address(scratch.inputs_BX), input_stride
        if product[_LAYER] > 0:
            source, source_stride = hidden + (1 - product[_LAYER] % 2) * turn, stride
        source += _NUMBER_BYTES * product[_FROM]
        out = hidden + (product[_LAYER] % 2) * turn + _NUMBER_BYTES * product[_TO]
        panels, starts = values + _NUMBER_BYTES * product[_PANELS], values + _NUMBER_BYTES * product[_BIAS]
        least = 0.0 if product[_RELU] else -np.inf
        multiply(rows, source, source_stride, panels, product[_DEPTH], product[_WIDTH], starts, 0, out, stride, least)
    return hidden + (weights.products[-1, _LAYER] % 2) * turn


@subkernel
def _finish_rows(start: int, rows: int, found: int, weights: ItemWeights, scratch: ItemScratch, places: RowPlaces) -> None:
    """LayerNorm of both outputs of a block at address `found`; vectors and bridge weights, rounded to fp16, into the caller's columns (`places`)."""
    half, stride = _NUMBER_BYTES * weights.mask.shape[0], _NUMBER_BYTES * scratch.hidden_2BH.shape[2]
    vectors, mask, norms = weights.mask.shape[0] // LANES, address(weights.mask), address(weights.norms)
    for i in range(rows):
        for side in range(2):
            scale = norms + 2 * side * half
            layer_norm_row(found + i * stride + side * half, vectors, float(weights.width), _NORM_EPSILON, mask, scale, scale + half)
        round_numbers(found + i * stride, weights.width, places.vectors + (start + i) * places.vector_stride)
    hidden, wide = address(scratch.hidden_2BH), weights.bridge_starts.shape[0]
    other = hidden if found != hidden else hidden + scratch.hidden_2BH.shape[1] * stride
    bridges, starts = address(weights.bridges), address(weights.bridge_starts)
    multiply(rows, found + half, stride, bridges, weights.width, wide, starts, 0, other, stride, -np.inf)
    for i in range(rows):
        softmax_row(other + i * stride, wide // LANES, float(weights.width) ** 0.5)
        round_numbers(other + i * stride, weights.bridge_count, places.bridges + (start + i) * places.bridge_stride)


@kernel
def encode_items(items: ItemArrays, weights: ItemWeights, scratch: ItemScratch, places: RowPlaces) -> None:
    """Encodes R >= 0 items into `places`."""
    for start in range(0, items.categorical_RC.shape[0], BLOCK):
        rows = min(BLOCK, items.categorical_RC.shape[0] - start)
        for i in range(rows):
            _gather_row(items, weights, start + i, scratch.inputs_BX[i])
        found = _run_layers(rows, weights, scratch)
        _finish_rows(start, rows, found, weights, scratch, places)
