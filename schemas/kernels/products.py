"""Matrices in the form that the tiles of vector_code.py read: cut into panels one or two vectors wide, stored row after row; and products with them.

Arrays: K depth, H columns, B rows of a block.
"""

from collections.abc import Sequence

import numpy as np

from schemas.kernels.compiled import part
from schemas.kernels.float32_code import LANES, PANEL, multiply_half_tile, multiply_tile
from schemas.kernels.vector_blocks import TILE_ROWS, address, aligned

BLOCK = 8 * TILE_ROWS  # rows that a pass takes together, so that they stay in the cache


def padded(width: int, multiple: int = LANES) -> int:
    """The next multiple."""
    return -(-width // multiple) * multiple


def pad_columns(matrix_KH: np.ndarray, multiple: int) -> np.ndarray:
    """The matrix with zero columns up to a multiple, float32 on cache lines."""
    out = aligned((matrix_KH.shape[0], padded(matrix_KH.shape[1], multiple)))
    out[:, : matrix_KH.shape[1]] = matrix_KH
    return out


def pack_panels(matrix_KH: np.ndarray) -> np.ndarray:
    """float32 [K * padded H]: panels of PANEL columns [K, PANEL] one after another; the last has LANES columns if that is enough."""
    wide_KH = pad_columns(matrix_KH, LANES)
    out, (depth, width) = aligned((wide_KH.size,)), wide_KH.shape
    panels, cut = width // PANEL, width // PANEL * PANEL
    out[: depth * cut].reshape(panels, depth, PANEL)[...] = wide_KH[:, :cut].reshape(depth, panels, PANEL).swapaxes(0, 1)
    out[depth * cut :] = wide_KH[:, cut:].ravel()
    return out


def unpack_panels(panels: np.ndarray, depth: int) -> np.ndarray:
    """float32 [K, padded H]: the inverse of `pack_panels` for K = `depth`."""
    wide_KH, at = np.empty((depth, panels.size // max(depth, 1)), np.float32), 0
    for first in range(0, wide_KH.shape[1], PANEL):
        panel = wide_KH[:, first : first + PANEL]
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


@part
def multiply(
    rows: int,
    inputs: int,
    input_stride: int,
    panels: int,
    depth: int,
    width: int,
    start: int,
    start_stride: int,
    out_BH: np.ndarray,
    least: np.float32,
    stored: int = 0,
) -> None:
    """out [rows, width] = max(least, start + inputs x panels); `rows` are rounded up to whole tiles. `stored`: how deep the panels are, if deeper than what
    is read of them. The other ints are addresses and strides."""
    out, stride = address(out_BH), 4 * out_BH.shape[1]
    for column in range(0, width, PANEL):
        panel = panels + 4 * column * max(depth, stored)
        for row in range(0, rows, TILE_ROWS):
            source, first, into = inputs + row * input_stride, start + row * start_stride + 4 * column, out + row * stride + 4 * column
            if width - column >= PANEL:
                multiply_tile(source, input_stride, panel, depth, first, start_stride, into, stride, np.float32(least))
            else:
                multiply_half_tile(source, input_stride, panel, depth, first, start_stride, into, stride, np.float32(least))
