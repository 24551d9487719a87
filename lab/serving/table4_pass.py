"""The compiled pass of the rows of `aif bench table4`: call 2 of a model that has only some of AIF's parts.

The row with all of AIF is computed by the engine itself.

Inputs of the first layer, X columns; a row has some of them (place -1: not this one):

    raw features | I [D] | w V [D] | DIN [D] | tiers [2 tiers] | given [G] | sub-sequence [D]

Arrays: C candidates of the share, B of a block, X inputs, H hidden width, D width, G columns that were computed before (torch's, for the direct form).
"""

from typing import NamedTuple

import numpy as np

from schemas.kernels.compiled import kernel, subkernel
from schemas.kernels.float32_code import widen
from schemas.kernels.products import BLOCK, multiply, run_layers
from schemas.kernels.vector_blocks import address
from serving.engine.call_two.joint_pass import (
    RequestUser,
    Scratch,
    count_tiers,
    join_realtime,
    join_tiers,
    order_candidates,
    prefetch_row,
    sum_signs,
)
from serving.engine.call_two.version_weights import VersionWeights
from serving.engine.tables.tables import Columns


class Places(NamedTuple):
    """The first column of each part among the inputs, -1 if the row does not have it; the number of inputs; the width D."""

    raw: int
    item: int
    bea: int
    din: int
    tiers: int
    given: int
    sim: int
    inputs: int
    width: int


@subkernel
def _gather_row_block(
    columns: Columns, weights: VersionWeights, user: RequestUser, places: Places, row_B: np.ndarray, scratch: Scratch
) -> None:
    """Fills the block's starts of the sums, the item's own columns, and w V."""
    for i in range(row_B.shape[0]):
        for h in range(weights.first_width):
            scratch.first_BH[i, h] = user.base_GH[0, h] + user.context_H[h]
        for n in range(columns.bridge.shape[1]):
            scratch.second_BH[i, n] = widen(columns.bridge[row_B[i], n])
        if places.item >= 0:
            for d in range(places.width):
                scratch.inputs_BX[i, places.item + d] = widen(columns.vector[row_B[i], d])
    if places.bea >= 0:
        inputs, stride, joined = address(scratch.second_BH), 4 * scratch.second_BH.shape[1], scratch.joined_BD
        zeros, none = address(scratch.zeros_D), np.float32(-np.inf)
        rows, bridges, bea, out = row_B.shape[0], columns.bridge.shape[1], address(user.bea_panels), address(joined)
        multiply(rows, inputs, stride, bea, bridges, joined.shape[1], zeros, 0, out, 4 * joined.shape[1], none)


@subkernel
def _join_row_block(
    columns: Columns,
    weights: VersionWeights,
    user: RequestUser,
    places: Places,
    row_B: np.ndarray,
    entry_B: np.ndarray,
    near_BE: np.ndarray,
    places_B: np.ndarray,
    given_CG: np.ndarray,
    next_B: np.ndarray,
    scratch: Scratch,
) -> None:
    """Fills the parts of inputs_BX that depend on user and item. next_B: rows to prefetch, as in the engine's pass."""
    width, has_sim = places.width, entry_B[0] > 0
    if places.din >= 0:
        sum_signs(columns, user, row_B, scratch.signs_BF)
    for i in range(row_B.shape[0]):
        row, x = row_B[i], scratch.inputs_BX[i]
        prefetch_row(columns, next_B, i)
        has = columns.has_signature[row]
        if places.bea >= 0:
            for d in range(width):
                x[places.bea + d] = scratch.joined_BD[i, d]
        if places.din >= 0:
            for d in range(width):
                x[places.din + d] = scratch.signs_BF[i, d] if has else np.float32(0)
        if places.tiers >= 0:
            join_tiers(weights, user, has, near_BE[i], places.tiers, x)
        if has_sim:
            entry = entry_B[i]
            for d in range(width):
                x[places.sim + d] = user.sim_GD[entry, d]
        if places.raw >= 0:
            join_realtime(columns, weights, row, places.raw, x)
        if places.given >= 0:
            for g in range(given_CG.shape[1]):
                x[places.given + g] = given_CG[places_B[i], g]


@subkernel
def _run_row_layers(weights: VersionWeights, places: Places, rows: int, has_sim: bool, scratch: Scratch) -> None:
    """Runs the layers; the block's logits [BLOCK, padded tasks] are in the array that the last layer wrote. Sub-sequences as in the engine's pass."""
    inputs, stride = address(scratch.inputs_BX), 4 * scratch.inputs_BX.shape[1]
    at, at_stride, joint = address(scratch.first_BH), 4 * scratch.first_BH.shape[1], address(weights.joint_panels)
    used = places.inputs if has_sim or places.sim < 0 else places.sim
    width, least = weights.first_width, np.float32(0)
    multiply(rows, inputs, stride, joint, used, width, at, at_stride, at, at_stride, least, places.inputs)
    run_layers(weights.layers, weights.rest, weights.layers.shape[0], rows, scratch.first_BH, scratch.second_BH)


@kernel
def score_row(
    columns: Columns,
    weights: VersionWeights,
    user: RequestUser,
    places: Places,
    row_C: np.ndarray,
    given_CG: np.ndarray,
    scratch: Scratch,
    logits_CT: np.ndarray,
) -> None:
    """Writes the logits float32 [C, T] of the rows. `scratch` must belong to the calling thread alone."""
    with_sim, count = order_candidates(columns, weights, row_C, scratch), row_C.shape[0]
    ordered_C = scratch.row_C[:count]
    if places.tiers >= 0:
        count_tiers(columns, weights, user, ordered_C, scratch)
    for at in range(0, count, BLOCK):
        end = min(count, at + BLOCK)
        next_B = ordered_C[end : min(count, end + BLOCK)]
        row_B, entry_B, places_B = ordered_C[at:end], scratch.entry_C[at:end], scratch.places_C[at:end]
        _gather_row_block(columns, weights, user, places, row_B, scratch)
        _join_row_block(columns, weights, user, places, row_B, entry_B, scratch.near_CE[at:end], places_B, given_CG, next_B, scratch)
        _run_row_layers(weights, places, end - at, at < with_sim, scratch)
        logits_BH = scratch.second_BH if weights.layers.shape[0] % 2 else scratch.first_BH
        for i in range(at, end):
            for t in range(logits_CT.shape[1]):
                logits_CT[places_B[i - at], t] = logits_BH[i - at, t]
