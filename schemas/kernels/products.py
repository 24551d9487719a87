"""Products of many rows with one matrix, in fp32 and fp64: the matrix is packed once, and one tile multiplies.

A sum begins at its start and adds its products one by one, in order, each rounded once. So its bits depend on its row and its column alone.

Measured for the first layer of the head (10^4 candidates, one thread of a Zen 5 core, default sizes): 2.5 ms; plain loops 8.2 to 11.3 ms; the library under
torch 5.4 ms.

Arrays: K depth, H columns, B rows of a block, P columns of a panel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from schemas.kernels.compiled import subkernel
from schemas.kernels.float32_code import LANES
from schemas.kernels.vector_blocks import (
    DOUBLE,
    FLOAT,
    VECTOR_BYTES,
    address,
    aligned,
    fused,
    instruction,
    load,
    loop,
    offset,
    splat,
    store,
)

TILE_ROWS = 6  # with two vectors a row: 12 sums, which fit the 16 registers of AVX2 too; wider tiles gain nothing here
BLOCK = 8 * TILE_ROWS  # rows that a pass takes together, so that they stay in the cache
_PANEL_BYTES = 2 * VECTOR_BYTES
_NUMBER_BYTES = {FLOAT: 4, DOUBLE: 8}
_ELEMENT: dict[Any, Any] = {types.float32: FLOAT, types.float64: DOUBLE}


# --- the form of a matrix -------------------------------------------------------------------------------------------------


def padded(width: int, multiple: int = LANES) -> int:
    """The next multiple."""
    return -(-width // multiple) * multiple


def pad_columns(matrix_KH: np.ndarray, multiple: int, dtype: Any = np.float32) -> np.ndarray:
    """The matrix with zero columns up to a multiple, on cache lines."""
    out = aligned((matrix_KH.shape[0], padded(matrix_KH.shape[1], multiple)), dtype)
    out[:, : matrix_KH.shape[1]] = matrix_KH
    return out


def pack_panels(matrix_KH: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """[K * padded H]: panels [K, P] of two vectors' columns, side by side in memory; the last has one vector's if that is enough."""
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    wide_KH = pad_columns(matrix_KH, lanes, dtype)
    out, (depth, width), panel = aligned((wide_KH.size,), dtype), wide_KH.shape, 2 * lanes
    panels, cut = width // panel, width // panel * panel
    out[: depth * cut].reshape(panels, depth, panel)[...] = wide_KH[:, :cut].reshape(depth, panels, panel).swapaxes(0, 1)
    out[depth * cut :] = wide_KH[:, cut:].ravel()
    return out


def unpack_panels(panels: np.ndarray, depth: int) -> np.ndarray:
    """float32 [K, padded H]: the inverse of `pack_panels` of float32 for K = `depth`."""
    wide_KH, at = np.empty((depth, panels.size // max(depth, 1)), np.float32), 0
    for first in range(0, wide_KH.shape[1], 2 * LANES):
        panel = wide_KH[:, first : first + 2 * LANES]
        panel[...] = panels[at : at + panel.size].reshape(panel.shape)
        at += panel.size
    return wide_KH


def pack_layers(linears: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Linear layers (weight [out, in], bias) side by side in one array: (layers int64 [layers, 4] = (panels at, bias at,
    depth, padded width), the array)."""
    layers, pieces, at = np.zeros((len(linears), 4), np.int64), [np.zeros(LANES, np.float32)], LANES
    for i, (weight, bias) in enumerate(linears):
        panels, start = pack_panels(weight.T), pad_columns(bias[None], LANES)[0]
        layers[i] = at, at + panels.size, weight.shape[1], len(start)
        pieces += [panels, start]
        at += panels.size + start.size
    return layers, np.concatenate(pieces)


# --- the product ----------------------------------------------------------------------------------------------------------


@instruction
def _number_bytes(_context, number):
    """Bytes of a float32 or float64."""

    def emit(_context, _builder, signature, _arguments):
        return ir.Constant(ir.IntType(64), _NUMBER_BYTES[_ELEMENT[signature.args[0]]])

    return types.int64(number), emit


def _make_tile(vectors: int) -> Callable[..., Any]:
    """`_emit_tile` as an instruction, for numbers of the type of `least`."""

    def multiply(_context, rows, row_stride, panel, depth, start, start_stride, out, out_stride, least):
        def emit(context, builder, signature, arguments):
            _emit_tile(builder, _ELEMENT[signature.args[-1]], vectors, arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, least), emit

    return instruction(multiply)


def _emit_tile(builder: Any, element: Any, vectors: int, arguments: Sequence[Any]) -> None:
    """out [TILE_ROWS, P] = max(least, start + rows [TILE_ROWS, K] x panel [K, P]) with P = `vectors` vectors; depth K >= 1.

    `arguments`: rows, row_stride, panel, depth, start, start_stride, out, out_stride, least (0 = ReLU, -inf = none). A start stride of 0 is one row (a bias)
    for all. Each sum begins at its start and adds its products one by one, in order, each rounded once: its bits depend on its row and its column alone.
    """
    rows, row_stride, panel, depth, start, start_stride, out, out_stride, least = arguments
    number = _NUMBER_BYTES[element]
    lanes, size = VECTOR_BYTES // number, VECTOR_BYTES
    numbers = ir.VectorType(element, lanes)
    cells = [(row, vector) for row in range(TILE_ROWS) for vector in range(vectors)]
    starts = [load(builder, offset(builder, start, row, start_stride), numbers, size * vector) for row, vector in cells]
    row_at = [offset(builder, rows, row, row_stride) for row in range(TILE_ROWS)]

    def add_products(k: Any, sums: list[Any]) -> list[Any]:
        at = offset(builder, panel, k, vectors * size)
        weights = [load(builder, at, numbers, size * vector) for vector in range(vectors)]
        inputs = [splat(builder, load(builder, offset(builder, one, k, number), element), lanes) for one in row_at]
        return [fused(builder, inputs[row], weights[vector], one) for (row, vector), one in zip(cells, sums, strict=True)]

    lowest = splat(builder, least, lanes)
    for (row, vector), total in zip(cells, loop(builder, depth, starts, add_products), strict=True):
        kept = builder.select(builder.fcmp_unordered(">", total, lowest), total, lowest)  # NaN stays NaN
        store(builder, kept, offset(builder, out, row, out_stride), size * vector)


_multiply_tile, _multiply_half_tile = _make_tile(2), _make_tile(1)


@subkernel
def multiply(
    rows: int,
    source: int,
    source_stride: int,
    panels: int,
    depth: int,
    width: int,
    start: int,
    start_stride: int,
    out: int,
    out_stride: int,
    least: "float | np.floating[Any]",
    stored: int = 0,
) -> None:
    """out [rows, width] = max(least, start + source x panels) in the precision of `least` (0 = ReLU, -inf = none); depth K >= 1.

    Ints are addresses, and strides in bytes. A start stride of 0 is one row (a bias) for all. Rows are rounded up to whole tiles, which are read and
    written. `stored`: depth of the panels, if only their first K rows are read.
    """
    number = _number_bytes(least)
    for at in range(0, width * number, _PANEL_BYTES):
        panel = panels + at * max(depth, stored)
        for row in range(0, rows, TILE_ROWS):
            inputs, first, into = source + row * source_stride, start + row * start_stride + at, out + row * out_stride + at
            if width * number - at >= _PANEL_BYTES:
                _multiply_tile(inputs, source_stride, panel, depth, first, start_stride, into, out_stride, least)
            else:
                _multiply_half_tile(inputs, source_stride, panel, depth, first, start_stride, into, out_stride, least)


@subkernel
def run_layers(layers: np.ndarray, values: np.ndarray, count: int, rows: int, here: np.ndarray, there: np.ndarray) -> None:
    """Runs the first `count` layers of `pack_layers` in float32; all have ReLU but the last of `layers`, which is linear.

    Inputs [rows, width] lie in `here`. Outputs alternate: the first layer's lie in `there`, the second's in `here`.
    """
    stride, start = 4 * here.shape[1], address(values)
    for layer in range(count):
        least = np.float32(0) if layer + 1 < layers.shape[0] else np.float32(-np.inf)
        panels, bias = start + 4 * layers[layer, 0], start + 4 * layers[layer, 1]
        multiply(rows, address(here), stride, panels, layers[layer, 2], layers[layer, 3], bias, 0, address(there), stride, least)
        here, there = there, here
