"""Products of many rows with one matrix in fp64, by the tiles of item_code.py. The matrix is packed once.

Invariant: a sum begins at its bias and adds its products in order, so its bits depend on its row and its column alone.

Arrays: K depth (inputs), H columns (outputs).
"""

import numpy as np

from schemas.model.compiled import part
from schemas.model.item_code import LANES, PANEL, multiply_half_tile, multiply_tile
from schemas.model.vector_blocks import TILE_ROWS

_NUMBER_BYTES = 8


def padded(width: int) -> int:
    """The next multiple of a vector's lanes."""
    return -(-width // LANES) * LANES


def pack_panels(matrix_KH: np.ndarray, bias_H: np.ndarray, past: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(panels, bias) as `multiply` reads them: PANEL columns side by side, panel after panel, the last of TILE_LANES if that is enough. Columns
    after H, up to whole vectors, have weights 0 and the bias `past`."""
    depth, width = matrix_KH.shape
    wide_KH, wide_H = np.zeros((depth, padded(width))), np.full(padded(width), past)
    wide_KH[:, :width], wide_H[:width] = matrix_KH, bias_H
    panels = [np.ascontiguousarray(wide_KH[:, first : first + PANEL]).ravel() for first in range(0, wide_KH.shape[1], PANEL)]
    return np.concatenate(panels), wide_H


@part
def multiply(
    rows: int, source: int, source_stride: int, panels: int, depth: int, width: int, starts: int, out: int, out_stride: int, least: float
) -> None:
    """out [rows, width] = max(least, starts + source x panels); rows are rounded up to whole tiles. Addresses, and strides in bytes."""
    for column in range(0, width, PANEL):
        panel, bias = panels + _NUMBER_BYTES * column * depth, starts + _NUMBER_BYTES * column
        for row in range(0, rows, TILE_ROWS):
            first, into = source + row * source_stride, out + row * out_stride + _NUMBER_BYTES * column
            if width - column >= PANEL:
                multiply_tile(first, source_stride, panel, depth, bias, 0, into, out_stride, least)
            else:
                multiply_half_tile(first, source_stride, panel, depth, bias, 0, into, out_stride, least)
