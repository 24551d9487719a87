"""The item half compiled: features of items to stored rows. A row has the same bits on every machine and in every batch.

Here: `ItemNetwork`, the one thing that computes stored rows: the build, the increment path and a replay all call it; and the fingerprint of its arithmetic.
Not here: what an item half computes (item_half.py and bea.py in torch, which are the specification and what is trained), the
instructions (schemas/kernels/float64_code.py).
Torch itself cannot compute stored rows: a row's bits depend on its batch there; alone and among 4,096 it differs in 5-20% of rows even after fp16.

    inputs_BX    embeddings looked up, means of bags, numbers and vectors clipped, widened to fp64       feature_places.py has their order
    layers       both networks' first layers are one product; then layer by layer, the two side by side   Eq. 4
    LayerNorm, the vector rounded to fp16; the key times the bridges, softmax, rounded to fp16            Algorithm 1, line 3

BLOCK rows at a time, so that what is in between stays in cache; there is no padding, so a few rows cost what a few rows cost.
Invariant: a row's bits depend on its own inputs and on the parameters alone. All sums are fp64 in an order that does not depend on the place of a row or on the
processor; the result is rounded once, as torch rounds. Against torch's own fp64 what is left is about 2^-52 in front of a rounding step of 2^-11: no stored
number differs in the tests. Rows of different fingerprints must never mix in one version; it changes with this file's arithmetic, not with the machine.

Cost: 0.5 us an item of the default sizes with 165 inputs; torch in blocks of 256 takes 1.8.

Arrays: R rows, B of a block, X inputs, H widths of layers, D width, N bridges, E embedding width.
"""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.features import Feature, FeatureBlock, FeatureSchema, Kind, Scope
from schemas.kernels.compiled import kernel, part
from schemas.kernels.float64_code import LANES, layer_norm_row, multiply, pack_panels, padded, round_numbers, softmax_row, widen_numbers
from schemas.kernels.vector_blocks import TILE_ROWS, address, aligned
from schemas.limits import BAG_VALUES_MAX
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features
from schemas.model.parameters import Parameters, parameter_shapes
from schemas.model.spec import ModelSpec

BLOCK = 8 * TILE_ROWS
_ARITHMETIC = 1  # of this file and schemas/kernels/float64_code.py: another number where a row's bits may be others
_NORM_EPSILON = 1e-5  # torch's LayerNorm
_VALUE_ABS_MAX = np.float32(VALUE_ABS_MAX)
_NO_CUT = np.float32(np.inf)
_NUMBER_BYTES = 8
# Columns of `products`: which layer, columns where the input and the output begin, places of panels and bias in `values`, depth, width, whether ReLU follows.
_LAYER, _FROM, _TO, _PANELS, _BIAS, _DEPTH, _WIDTH, _RELU = range(8)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """vectors_RD float16 [R, D] and bridge_RN float16 [R, N], as stored."""

    vectors_RD: np.ndarray
    bridge_RN: np.ndarray


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


class ItemNetwork:
    """The item half of one version. Keeps no state between calls, so threads share it."""

    def __init__(self, parameters: Parameters) -> None:
        self.spec = parameters.spec
        self._weights, self._inputs, self._hidden = _arrange(parameters)

    def encode(self, block: FeatureBlock) -> EncodedRows:
        """Rows of the item half for R items (features: `schema.item_half_inputs`), R of any size."""
        rows = len(block)
        encoded = EncodedRows(np.zeros((rows, self.spec.width), np.float16), np.zeros((rows, self.spec.bridges), np.float16))
        self.encode_into(block, encoded.vectors_RD, encoded.bridge_RN)
        return encoded

    def encode_into(self, block: FeatureBlock, vectors_RD: np.ndarray, bridge_RN: np.ndarray) -> None:
        """The same, into float16 columns of the caller's: numbers of a row side by side, rows at any distance."""
        rows = len(block)
        if not rows:
            return
        taken = -(-min(rows, BLOCK) // TILE_ROWS) * TILE_ROWS
        scratch = ItemScratch(aligned((taken, self._inputs), np.float64), aligned((2, taken, self._hidden), np.float64))
        items = ItemArrays(*(np.ascontiguousarray(getattr(block, name)) for name in ItemArrays._fields))
        vectors, bridges = (column.__array_interface__["data"][0] for column in (vectors_RD, bridge_RN))
        _encode_items(items, self._weights, scratch, RowPlaces(vectors, vectors_RD.strides[0], bridges, bridge_RN.strides[0]))


# --- weights ------------------------------------------------------------------------------------------------------------


class _Products:
    """Collects products of rows with matrices, and their weights side by side."""

    def __init__(self) -> None:
        self._products, self._pieces, self._size = list[list[int]](), list[np.ndarray](), 0

    def add(self, layer: int, source: int, target: int, linears: Sequence[tuple[np.ndarray, np.ndarray]], relu: bool) -> None:
        """Linear layers (weight [out, in], bias) of the same input, side by side, each padded for itself."""
        width = padded(len(linears[0][1]))
        matrix_KH, bias_H = np.zeros((linears[0][0].shape[1], width * len(linears))), np.zeros(width * len(linears))
        for place, (weight, bias) in enumerate(linears):
            columns = slice(place * width, place * width + len(bias))
            matrix_KH[:, columns], bias_H[columns] = weight.T, bias
        panels, starts = pack_panels(matrix_KH, bias_H)
        self._products.append([layer, source, target, self._size, self._size + panels.size, len(matrix_KH), len(bias_H), int(relu)])
        self._pieces += [panels, starts]
        self._size += panels.size + starts.size

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        values = aligned((self._size,), np.float64)
        values[:] = np.concatenate(self._pieces)
        return np.array(self._products, np.int64), values


def _arrange(parameters: Parameters) -> tuple[ItemWeights, int, int]:
    """(weights, X of a row, the widest output of a layer of both MLPs together)."""
    spec = parameters.spec
    places = plan_features(spec.schema.item_half_inputs, spec.embedding_width)
    table = parameters.find("item_half.features.table")
    products, values = _arrange_layers(parameters)
    norms, mask = np.zeros((2, 2, padded(spec.width))), np.zeros(padded(spec.width))
    for half, name in enumerate(("vector", "key")):
        norms[half, 0, : spec.width] = parameters[f"item_half.{name}_norm.weight"]
        norms[half, 1, : spec.width] = parameters[f"item_half.{name}_norm.bias"]
    mask[: spec.width] = 1.0
    bridges, starts = pack_panels(parameters["bea.bridges_ND"].T, np.zeros(spec.bridges), -np.inf)
    weights = ItemWeights(
        np.zeros((1, spec.embedding_width), np.float32) if table is None else np.ascontiguousarray(table),
        np.array(places.categorical_starts, np.int64),
        np.array(places.bag_starts, np.int64),
        products,
        values,
        norms,
        mask,
        bridges,
        starts,
        spec.width,
        spec.bridges,
    )
    return weights, places.width, 2 * max(map(padded, (*spec.item_hidden, spec.width, spec.bridges)))


def _arrange_layers(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """The layers of both MLPs. The first ones read the same input, so they are one product; later ones are two, of the vector and of the key."""
    products, vector, key = _Products(), parameters.mlp("item_half.vector"), parameters.mlp("item_half.key")
    products.add(0, 0, 0, [vector[0], key[0]], len(vector) > 1)
    for layer in range(1, len(vector)):
        for half, linears in enumerate((vector, key)):
            narrow, wide = (padded(len(linears[at][1])) for at in (layer - 1, layer))
            products.add(layer, half * narrow, half * wide, [linears[layer]], layer + 1 < len(vector))
    return products.arrays()


# --- compiled -----------------------------------------------------------------------------------------------------------


@part
def _look_up(weights: ItemWeights, row: int, into: int) -> None:
    """Row `row` of the embedding table, widened into address `into`. A number outside the table reads its first or last row."""
    width = weights.table.shape[1]
    widen_numbers(address(weights.table) + 4 * width * min(max(row, 0), weights.table.shape[0] - 1), width, _NO_CUT, into)


@part
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


@part
def _gather_row(items: ItemArrays, weights: ItemWeights, row: int, x_X: np.ndarray) -> None:
    """x_X = the inputs of an item, in the order of feature_places.py."""
    width, at, into = weights.table.shape[1], 0, address(x_X)
    for c in range(items.categorical_RC.shape[1]):
        _look_up(weights, weights.categorical_starts[c] + items.categorical_RC[row, c], into + _NUMBER_BYTES * at)
        at += width
    for b in range(items.bags_RBV.shape[1]):
        _add_bag(weights, items.bags_RBV[row, b], weights.bag_starts[b], x_X[at : at + width])
        at += width
    numbers, values = items.numeric_RN.shape[1], items.embeddings_RE.shape[1]
    widen_numbers(address(items.numeric_RN) + 4 * numbers * row, numbers, _VALUE_ABS_MAX, into + _NUMBER_BYTES * at)
    widen_numbers(address(items.embeddings_RE) + 4 * values * row, values, _VALUE_ABS_MAX, into + _NUMBER_BYTES * (at + numbers))


@part
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
        multiply(rows, source, source_stride, panels, product[_DEPTH], product[_WIDTH], starts, out, stride, least)
    return hidden + (weights.products[-1, _LAYER] % 2) * turn


@part
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
    multiply(rows, found + half, stride, bridges, weights.width, wide, starts, other, stride, -np.inf)
    for i in range(rows):
        softmax_row(other + i * stride, wide // LANES, float(weights.width) ** 0.5)
        round_numbers(other + i * stride, weights.bridge_count, places.bridges + (start + i) * places.bridge_stride)


@kernel
def _encode_items(items: ItemArrays, weights: ItemWeights, scratch: ItemScratch, places: RowPlaces) -> None:
    for start in range(0, items.categorical_RC.shape[0], BLOCK):
        rows = min(BLOCK, items.categorical_RC.shape[0] - start)
        for i in range(rows):
            _gather_row(items, weights, start + i, scratch.inputs_BX[i])
        found = _run_layers(rows, weights, scratch)
        _finish_rows(start, rows, found, weights, scratch, places)


# --- fingerprint --------------------------------------------------------------------------------------------------------


@functools.cache
def encoder_fingerprint() -> str:
    """What the bits of a row depend on besides its inputs and the checkpoint: the arithmetic of this file, and a digest of rows of a fixed model, so that
    one that visibly differs is told apart even where the number agrees."""
    features = (
        Feature("a", Scope.ITEM, Kind.CATEGORICAL, buckets=61),
        Feature("b", Scope.ITEM, Kind.BAG, buckets=31),
        Feature("c", Scope.ITEM, Kind.NUMERIC),
        Feature("d", Scope.ITEM, Kind.EMBEDDING, width=37),
    )
    spec = ModelSpec(FeatureSchema(features), width=13, bridges=5, embedding_width=3, item_hidden=(29, 17), rank_by="click")
    rows, whole = 2 * BLOCK, itertools.count(1)
    arrays = {name: _fixed(next(whole), shape) for name, shape in parameter_shapes(spec).items()}
    places = [(np.arange(rows * count) * 7919 % buckets).reshape(rows, -1) for count, buckets in ((1, 61), (BAG_VALUES_MAX, 31))]
    block = FeatureBlock(places[0], _fixed(0, (rows, 1)), places[1][:, None, :], _fixed(next(whole), (rows, 37)))
    encoded = ItemNetwork(Parameters(spec, arrays)).encode(block)
    digest = hashlib.sha256(encoded.vectors_RD.tobytes() + encoded.bridge_RN.tobytes()).hexdigest()[:8]
    return f"network=compiled-{_ARITHMETIC};dtype=float64;bits={digest}"


def _fixed(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers between -1/2 and 1/2 that are the same everywhere."""
    whole = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 104_729)) * np.uint64(2_654_435_761) % np.uint64(65_521)
    return (whole / 65_521.0 - 0.5).astype(np.float32).reshape(shape)


def compile_item_network() -> None:
    """Takes the kernel from numba's cache, or compiles it: what is asked later never waits for it."""
    encoder_fingerprint()
