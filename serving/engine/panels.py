"""Matrices in the form that the tiles of vector_code.py read: cut into panels one or two vectors wide, stored row after row.

Arrays: K depth, H columns.
"""

import numpy as np

from schemas.model.vector_blocks import aligned
from serving.engine.vector_code import LANES, PANEL


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
