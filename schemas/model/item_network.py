"""The item half compiled: features of items to stored rows. A row has the same bits on every machine and in every batch.

Torch itself cannot compute stored rows: a row's bits depend on its batch there; alone and among 4,096 it differs in 5-20% of rows even after fp16.

Here: the weights as the passes read them, and the fingerprint. Not here: the passes and their steps (schemas/kernels/item_rows.py). They take BLOCK rows at
a time, so that intermediate values stay in cache. There is no padding, so a few rows cost little.
Invariant: a row's bits depend on its own inputs and on the parameters alone. All sums are fp64. Their order does not depend on the place of a row or on the
processor. The result is rounded once, as torch rounds. Against torch's own fp64 the difference is about 2^-52 before a rounding step of 2^-11: no stored
number differs in the tests. Rows of different fingerprints must never mix in one version; it changes with this file's arithmetic, not with the machine.

Cost: 0.5 us an item of the default sizes with 165 inputs; torch in blocks of 256 takes 1.8.

Arrays: R rows, B of a block, X inputs, H widths of layers, D width, N bridges, E embedding width.
"""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.features import Feature, FeatureBlock, FeatureSchema, Scope
from schemas.kernels.float64_code import LANES
from schemas.kernels.item_rows import ItemArrays, ItemScratch, ItemWeights, RowPlaces, encode_items
from schemas.kernels.products import BLOCK, TILE_ROWS, pack_panels, pad_columns, padded
from schemas.kernels.vector_blocks import aligned
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC
from schemas.limits import BAG_VALUES_MAX
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features
from schemas.model.parameters import Parameters, parameter_shapes
from schemas.model.spec import ModelSpec

_ARITHMETIC = 1  # of this file and schemas/kernels/float64_code.py: another number where a row's bits may be others


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """vectors_RD float16 [R, D] and bridge_RN float16 [R, N], as stored."""

    vectors_RD: np.ndarray
    bridge_RN: np.ndarray


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
        encode_items(items, self._weights, scratch, RowPlaces(vectors, vectors_RD.strides[0], bridges, bridge_RN.strides[0]))


# --- weights ------------------------------------------------------------------------------------------------------------


class _Products:
    """Collects products of rows with matrices, and their weights side by side."""

    def __init__(self) -> None:
        self._products, self._pieces, self._size = list[list[int]](), list[np.ndarray](), 0

    def add(self, layer: int, source: int, target: int, linears: Sequence[tuple[np.ndarray, np.ndarray]], relu: bool) -> None:
        """Linear layers (weight [out, in], bias) of the same input, side by side, each padded for itself."""
        width = padded(len(linears[0][1]), LANES)
        matrix_KH, bias_H = np.zeros((linears[0][0].shape[1], width * len(linears))), np.zeros(width * len(linears))
        for place, (weight, bias) in enumerate(linears):
            columns = slice(place * width, place * width + len(bias))
            matrix_KH[:, columns], bias_H[columns] = weight.T, bias
        panels = pack_panels(matrix_KH, np.float64)
        self._products.append([layer, source, target, self._size, self._size + panels.size, len(matrix_KH), len(bias_H), int(relu)])
        self._pieces += [panels, bias_H]
        self._size += panels.size + bias_H.size

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
    norms, mask = np.zeros((2, 2, padded(spec.width, LANES))), np.zeros(padded(spec.width, LANES))
    for half, name in enumerate(("vector", "key")):
        norms[half, 0, : spec.width] = parameters[f"item_half.{name}_norm.weight"]
        norms[half, 1, : spec.width] = parameters[f"item_half.{name}_norm.bias"]
    mask[: spec.width] = 1.0
    bridges, starts = pad_columns(parameters["bea.bridges_ND"].T, LANES, np.float64), np.full(padded(spec.bridges, LANES), -np.inf)
    starts[: spec.bridges] = 0
    weights = ItemWeights(
        np.zeros((1, spec.embedding_width), np.float32) if table is None else np.ascontiguousarray(table),
        np.array(places.categorical_starts, np.int64),
        np.array(places.bag_starts, np.int64),
        products,
        values,
        norms,
        mask,
        pack_panels(bridges, np.float64),
        starts,
        spec.width,
        spec.bridges,
        np.float32(VALUE_ABS_MAX),
    )
    return weights, places.width, 2 * padded(max(*spec.item_hidden, spec.width, spec.bridges), LANES)


def _arrange_layers(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """The layers of both MLPs. The first ones read the same input, so they are one product; later ones are two, of the vector and of the key."""
    products, vector, key = _Products(), parameters.mlp("item_half.vector"), parameters.mlp("item_half.key")
    products.add(0, 0, 0, [vector[0], key[0]], len(vector) > 1)
    for layer in range(1, len(vector)):
        for half, linears in enumerate((vector, key)):
            narrow, wide = (padded(len(linears[at][1]), LANES) for at in (layer - 1, layer))
            products.add(layer, half * narrow, half * wide, [linears[layer]], layer + 1 < len(vector))
    return products.arrays()


# --- fingerprint --------------------------------------------------------------------------------------------------------


@functools.cache
def encoder_fingerprint() -> str:
    """Identifies the arithmetic behind the bits of a row: the number of this file's arithmetic, and a digest of the rows of a fixed model. The digest shows
    a difference even where the number agrees."""
    features = (
        Feature("a", Scope.ITEM, CATEGORICAL, buckets=61),
        Feature("b", Scope.ITEM, BAG, buckets=31),
        Feature("c", Scope.ITEM, NUMERIC),
        Feature("d", Scope.ITEM, EMBEDDING, width=37),
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
    """Takes the kernel from numba's cache, or compiles it, so that no later call waits for it."""
    encoder_fingerprint()
