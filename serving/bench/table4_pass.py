"""The compiled pass of the rows of `aif bench table4`: call 2 of a model that has only some of AIF's parts.

Here: `score_row`, made of the engine's own building blocks (serving/engine/joint_pass.py), so that two rows differ in their parts and in nothing else.
Not here: which row has which parts (table4_rows.py). The row with all of AIF is computed by the engine itself.

Inputs of the first layer, X columns; a row has some of them (place -1: not this one):

    raw features | I [D] | w V [D] | DIN [D] | sub-sequence [D] | tiers [2 tiers] | given [G]

Arrays: C candidates of the share, B of a block, X inputs, H hidden width, D width, G columns that were computed before (torch's, for the direct form).
"""

from typing import NamedTuple

import numpy as np

from schemas.model.compiled import kernel, part
from schemas.model.vector_blocks import address
from serving.engine.joint_pass import (
    BLOCK,
    Columns,
    RequestUser,
    Scratch,
    count_tiers,
    join_realtime,
    join_tiers,
    multiply,
    prefetch_rows,
    run_later_layers,
    sum_signs,
)
from serving.engine.vector_code import widen
from serving.engine.version_weights import VersionWeights


class Places(NamedTuple):
    """The first column of each part among the inputs, -1 if the row does not have it; the number of inputs; the width D."""

    raw: int
    item: int
    bea: int
    din: int
    sim: int
    tiers: int
    given: int
    inputs: int
    width: int


@part
def _gather_row_block(
    columns: Columns, weights: VersionWeights, user: RequestUser, places: Places, slots_B: np.ndarray, scratch: Scratch
) -> None:
    """Fills the block's starts of the sums, the item's own columns, and w V."""
    for i in range(slots_B.shape[0]):
        category, entry = columns.category[slots_B[i]], 0
        if 0 < category < weights.entry_of_category.shape[0]:
            entry = weights.entry_of_category[category]
        scratch.entry_B[i] = entry
        for h in range(weights.first_width):
            scratch.first_BH[i, h] = user.base_GH[0, h] + user.context_H[h]
        for n in range(columns.bridge.shape[1]):
            scratch.second_BH[i, n] = widen(columns.bridge[slots_B[i], n])
        if places.item >= 0:
            for d in range(places.width):
                scratch.inputs_BX[i, places.item + d] = widen(columns.vector[slots_B[i], d])
    if places.bea >= 0:
        inputs, stride, joined = address(scratch.second_BH), 4 * scratch.second_BH.shape[1], scratch.joined_BD
        zeros, none = address(scratch.zeros_D), np.float32(-np.inf)
        bridges = columns.bridge.shape[1]
        multiply(slots_B.shape[0], inputs, stride, address(user.bea_panels), bridges, joined.shape[1], zeros, np.int64(0), joined, none)


@part
def _join_row_block(
    columns: Columns,
    weights: VersionWeights,
    user: RequestUser,
    places: Places,
    slots_B: np.ndarray,
    near_BE: np.ndarray,
    given_BG: np.ndarray,
    scratch: Scratch,
) -> None:
    """Fills the parts of inputs_BX that depend on user and item."""
    width = places.width
    if places.din >= 0:
        sum_signs(columns, user, slots_B, scratch.signs_BF)
    for i in range(slots_B.shape[0]):
        slot, x = slots_B[i], scratch.inputs_BX[i]
        has = columns.has_signature[slot]
        if places.bea >= 0:
            for d in range(width):
                x[places.bea + d] = scratch.joined_BD[i, d]
        if places.din >= 0:
            for d in range(width):
                x[places.din + d] = scratch.signs_BF[i, d] if has else np.float32(0)
        if places.tiers >= 0:
            join_tiers(weights, user, has, near_BE[i], places.tiers, x)
        if places.sim >= 0:
            for d in range(width):
                x[places.sim + d] = user.sim_GD[scratch.entry_B[i], d]
        if places.raw >= 0:
            join_realtime(columns, weights, slot, places.raw, x)
        if places.given >= 0:
            for g in range(given_BG.shape[1]):
                x[places.given + g] = given_BG[i, g]


@part
def _run_row_layers(weights: VersionWeights, places: Places, rows: int, scratch: Scratch) -> None:
    """Runs the layers; the block's logits [BLOCK, padded tasks] are in the array that the last layer wrote."""
    inputs, stride = address(scratch.inputs_BX), 4 * scratch.inputs_BX.shape[1]
    at, at_stride, joint = address(scratch.first_BH), 4 * scratch.first_BH.shape[1], address(weights.joint_panels)
    multiply(rows, inputs, stride, joint, places.inputs, weights.first_width, at, at_stride, scratch.first_BH, np.float32(0))
    run_later_layers(weights, rows, scratch)


@kernel
def score_row(
    columns: Columns,
    weights: VersionWeights,
    user: RequestUser,
    places: Places,
    slots_C: np.ndarray,
    given_CG: np.ndarray,
    scratch: Scratch,
    logits_CT: np.ndarray,
) -> None:
    """Writes the logits float32 [C, T] of the slots. `scratch` must belong to the calling thread alone."""
    if places.tiers >= 0:
        count_tiers(columns, weights, user, slots_C, scratch)
    for at in range(0, slots_C.shape[0], BLOCK):
        end = min(slots_C.shape[0], at + BLOCK)
        prefetch_rows(columns, slots_C[end : min(slots_C.shape[0], end + BLOCK)])
        _gather_row_block(columns, weights, user, places, slots_C[at:end], scratch)
        _join_row_block(columns, weights, user, places, slots_C[at:end], scratch.near_CE[at:end], given_CG[at:end], scratch)
        _run_row_layers(weights, places, end - at, scratch)
        logits_BH = scratch.second_BH if weights.layers.shape[0] % 2 else scratch.first_BH
        for i in range(at, end):
            for t in range(logits_CT.shape[1]):
                logits_CT[i, t] = logits_BH[i - at, t]
