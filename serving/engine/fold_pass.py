"""The fold of a user half through the head's first layer, in one compiled pass: in NumPy it is forty steps on tiny arrays, each with code of its own.

Here: `fold_user`, which fills a user's tables. Not here: what the tables are and who keeps them (folded_user.py).
The loops are plain, as in user_vectors.py: what a request pays for is the code that it touches, because rankings have emptied the caches before.

Arrays: U values of user_U, D width, P bridge width, N bridges, G categories, H first hidden width (padded), K bits, F = 2 D columns of signs (padded).
"""

from typing import NamedTuple

import numpy as np

from schemas.model.compiled import kernel, part
from serving.engine.user_arrays import UserArrays
from serving.engine.vector_code import PANEL


class FoldWeights(NamedTuple):
    """The head's weights that multiply a user's values: of a segment [width, H], of a projection [width, D]. What a model does not have is empty.
    `centred`: the form of DIN (schemas/model/din.py)."""

    user_UH: np.ndarray
    bias_H: np.ndarray
    item_DH: np.ndarray
    user_x_DH: np.ndarray
    project_user_UD: np.ndarray
    bea_PH: np.ndarray
    project_bea_PD: np.ndarray
    sim_DH: np.ndarray
    project_sim_DD: np.ndarray
    gain: np.float32
    project_din_DD: np.ndarray
    centred: bool


class FoldInput(NamedTuple):
    """The arrays of `UserArrays` that the pass reads; means_GD and log_counts_G without rows where a model has no sub-sequences."""

    user_U: np.ndarray
    bridges_NP: np.ndarray
    din_sum_D: np.ndarray
    din_cross_KD: np.ndarray
    din_count: np.float32
    means_GD: np.ndarray
    log_counts_G: np.ndarray


class FoldedTables(NamedTuple):
    """The tables of `FoldedUser`, whose legend they follow; zeros until the pass has filled them."""

    base_GH: np.ndarray
    user_panels: np.ndarray
    bea_panels: np.ndarray
    sim_GD: np.ndarray
    signs_KF: np.ndarray
    sign_start_F: np.ndarray


def fold_input(arrays: UserArrays, has_sim: bool) -> FoldInput:
    """The pass's view of a user half."""
    groups = len(arrays.log_counts_G) if has_sim else 0
    cross, count = arrays.din_cross_KD, np.float32(arrays.din_count)
    return FoldInput(
        arrays.user_U, arrays.bridges_NP, arrays.din_sum_D, cross, count, arrays.means_GD[:groups], arrays.log_counts_G[:groups]
    )


@part
def _add_product(values_I: np.ndarray, weights_IO: np.ndarray, out_O: np.ndarray) -> None:
    """out_O += values_I weights_IO, of as many rows as there are values."""
    for i in range(values_I.shape[0]):
        for o in range(weights_IO.shape[1]):
            out_O[o] += values_I[i] * weights_IO[i, o]


@part
def _add_to_panels(values_I: np.ndarray, weights_IO: np.ndarray, row: int, depth: int, columns: int, panels: np.ndarray) -> None:
    """The same for a row of a matrix of `depth` rows and so many columns, whole vectors, in the form of `pack_panels`."""
    for first in range(0, columns, PANEL):
        wide = min(PANEL, columns - first)
        at, end = first * depth + row * wide, min(wide, weights_IO.shape[1] - first)
        for i in range(values_I.shape[0]):
            for j in range(end):
                panels[at + j] += values_I[i] * weights_IO[i, first + j]


@part
def _fold_vectors(user: FoldInput, weights: FoldWeights, user_x_D: np.ndarray, out: FoldedTables) -> None:
    """What multiplies an item's vector I and its weights w, and what w is multiplied by to be w V."""
    (width, hidden), bridges = weights.item_DH.shape, user.bridges_NP.shape[0]
    depth, columns = width + bridges, out.bea_panels.shape[0] // bridges
    _add_product(user.user_U, weights.project_user_UD, user_x_D)
    for d in range(width):
        for first in range(0, hidden, PANEL):
            wide = min(PANEL, hidden - first)
            at = first * depth + d * wide
            for j in range(wide):
                out.user_panels[at + j] = weights.item_DH[d, first + j] + weights.user_x_DH[d, first + j] * user_x_D[d]
    for n in range(bridges):
        _add_to_panels(user.bridges_NP[n], weights.bea_PH, width + n, depth, hidden, out.user_panels)
        _add_to_panels(user.bridges_NP[n], weights.project_bea_PD, n, bridges, columns, out.bea_panels)


@part
def _fold_categories(user: FoldInput, weights: FoldWeights, out: FoldedTables) -> None:
    """First the row for categories that are not in the history, then one row per category of the history."""
    groups, hidden = user.means_GD.shape[0], weights.bias_H.shape[0]
    for h in range(hidden):
        out.base_GH[0, h] = weights.bias_H[h]
    _add_product(user.user_U, weights.user_UH, out.base_GH[0])
    for g in range(groups):
        last_H = weights.sim_DH[user.means_GD.shape[1]]
        for h in range(hidden):
            out.base_GH[g + 1, h] = out.base_GH[0, h] + user.log_counts_G[g] * last_H[h]
        _add_product(user.means_GD[g], weights.sim_DH, out.base_GH[g + 1])
        _add_product(user.means_GD[g], weights.project_sim_DD, out.sim_GD[g + 1])


@part
def _fold_signs(user: FoldInput, weights: FoldWeights, out: FoldedTables) -> None:
    """DIN with its gain, and its projection, as sums of signs: rows [K, F] and start [F] (schemas/model/din.py, `din_affine`)."""
    bits, width = user.din_cross_KD.shape
    rows = np.float32(bits) * max(user.din_count, np.float32(1)) if weights.centred else np.float32(2 * bits)
    for k in range(bits):
        for d in range(width):
            out.signs_KF[k, d] = user.din_cross_KD[k, d] * (weights.gain / rows)
        _add_product(out.signs_KF[k, :width], weights.project_din_DD, out.signs_KF[k, width : 2 * width])
    if not weights.centred:
        for d in range(width):
            out.sign_start_F[d] = user.din_sum_D[d] * (weights.gain / np.float32(2))
        _add_product(out.sign_start_F[:width], weights.project_din_DD, out.sign_start_F[width : 2 * width])


@kernel
def fold_user(user: FoldInput, weights: FoldWeights, user_x_D: np.ndarray, out: FoldedTables) -> None:
    """Fills `out`; user_x_D is scratch, zeros. Cost: (N P + G D) H + K D D products."""
    _fold_vectors(user, weights, user_x_D, out)
    _fold_categories(user, weights, out)
    if weights.project_din_DD.shape[0] > 0:
        _fold_signs(user, weights, out)
