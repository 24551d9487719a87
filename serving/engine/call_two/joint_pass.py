"""Call 2 in one compiled pass. It gathers rows, joins them with the user and runs the head, block by block, so that a block stays in the cache.

    order        candidates of the user's own categories first: the other blocks leave the sub-sequences out, which would be products with zeros
    signatures   gathered for the whole share; SimTier counts one block of behaviours after the other, whose tables stay in the cache; left out, with DIN,
                 for a user without behaviours that have a signature: half of the work
    then for BLOCK candidates at a time:
    inputs_BX    columns of the rows, widened, times the user's tables (the legend is in version_weights.py); rows of the next block are prefetched between them
    first layer  base + context + inputs x (user_panels over joint_panels), ReLU
    rest         layer after layer; the last gives logits

Invariants: every function has one signature for all shapes of model, so neither a flip nor a request compiles. A part that a model lacks is an empty
array. A candidate's logits do not depend on its block beyond rounding.

Arrays: C candidates of the share, B of a block, X inputs, H hidden width, T tasks, D width, N bridges, Q words, W signature bytes, E edges.
"""

from typing import NamedTuple

import numpy as np

from schemas.kernels.bit_planes import EDGES_TOGETHER, SCRATCH_ROWS, TABLE_ROWS
from schemas.kernels.bit_planes import LANES as BEHAVIOUR_LANES
from schemas.kernels.compiled import inlined, int64, kernel, subkernel
from schemas.kernels.float32_code import SIGN_CHUNK, add_sign_rows, prefetch, widen_row
from schemas.kernels.products import BLOCK, multiply, padded, run_layers
from schemas.kernels.vector_blocks import address, aligned, apart
from serving.engine.call_two.tier_counts import build_word_table, take_beyond
from serving.engine.call_two.version_weights import VersionWeights
from serving.engine.tables.tables import Columns

_BYTES_TOGETHER = 2  # of a signature
_AHEAD = 16  # candidates prefetched ahead


class RequestUser(NamedTuple):
    """The user's tables of one request: `HeadTables`, and what the request adds.

    - context_H: the row of its context
    - sign_table: [chunks, 2 W, 16, SIGN_CHUNK], signs_KF by nibbles
    - log1p_L: log(1 + count) for every possible count
    - reads_long: whether DIN and SimTier are more than zeros
    """

    base_GH: np.ndarray
    context_H: np.ndarray
    user_panels: np.ndarray
    bea_panels: np.ndarray
    sim_GD: np.ndarray
    sign_table: np.ndarray
    sign_start_F: np.ndarray
    planes_ZQBL: np.ndarray
    valid_ZL: np.ndarray
    shift_ZL: np.ndarray
    log1p_L: np.ndarray
    length: int
    reads_long: bool


class Scratch(NamedTuple):
    """Scratch memory of one thread. places_C, row_C, entry_C: see `order_candidates`."""

    inputs_BX: np.ndarray
    first_BH: np.ndarray
    second_BH: np.ndarray
    joined_BD: np.ndarray
    zeros_D: np.ndarray
    signs_BF: np.ndarray
    places_C: np.ndarray
    row_C: np.ndarray
    entry_C: np.ndarray
    words_CQ: np.ndarray
    near_CE: np.ndarray
    tables_QXL: np.ndarray
    counters_XL: np.ndarray


def open_scratch(weights: VersionWeights, width: int, words: int, candidates: int) -> Scratch:
    """Scratch for shares of up to `candidates`."""
    widest = max([weights.first_width, *weights.layers[:, 3].tolist()])
    return Scratch(
        inputs_BX=aligned((BLOCK, padded(weights.inputs))),
        first_BH=aligned((BLOCK, widest)),
        second_BH=aligned((BLOCK, widest)),
        joined_BD=aligned((BLOCK, padded(width))),
        zeros_D=aligned((padded(width),)),
        signs_BF=aligned((BLOCK, padded(2 * width, SIGN_CHUNK))),
        places_C=np.zeros(candidates, np.int64),
        row_C=np.zeros(candidates, np.int64),
        entry_C=np.zeros(candidates, np.int64),
        words_CQ=aligned((candidates, words), np.uint64),
        near_CE=aligned((candidates, padded(len(weights.distance_max_E), EDGES_TOGETHER)), np.int32),
        tables_QXL=aligned((words, TABLE_ROWS, BEHAVIOUR_LANES), np.uint64),
        counters_XL=aligned((SCRATCH_ROWS, BEHAVIOUR_LANES), np.uint64),
    )


def build_sign_table(rows_KF: np.ndarray) -> np.ndarray:
    """[chunks, 2 W, 16, SIGN_CHUNK]: for each nibble of a signature and each of its values the signed sum of its four rows."""
    table = aligned((rows_KF.shape[1] // SIGN_CHUNK, rows_KF.shape[0] // 4, 16, SIGN_CHUNK))
    _fill_sign_table(rows_KF, table)
    return table


@kernel
def _fill_sign_table(rows_KF: np.ndarray, table: np.ndarray) -> None:
    for chunk in range(table.shape[0]):
        for nibble in range(table.shape[1]):
            for f in range(SIGN_CHUNK):
                at = chunk * SIGN_CHUNK + f
                a, b, c, d = rows_KF[4 * nibble, at], rows_KF[4 * nibble + 1, at], rows_KF[4 * nibble + 2, at], rows_KF[4 * nibble + 3, at]
                for value in range(4):  # most significant bit first, as packed
                    low = (c if value & 2 else -c) + (d if value & 1 else -d)
                    table[chunk, nibble, value, f] = low - a - b
                    table[chunk, nibble, value + 4, f] = low - a + b
                    table[chunk, nibble, value + 8, f] = low + a - b
                    table[chunk, nibble, value + 12, f] = low + a + b


@subkernel
def order_candidates(columns: Columns, weights: VersionWeights, row_C: np.ndarray, scratch: Scratch) -> int:
    """Puts the candidates of the user's own categories first. Returns how many these are.

    scratch.places_C = their places in row_C, scratch.row_C = their rows, scratch.entry_C = their entries in the user's tables, 0 = none.
    """
    category, entries = columns.category, weights.entry_of_category
    first, last = 0, row_C.shape[0]
    for i in range(row_C.shape[0]):
        if i + _AHEAD < row_C.shape[0]:
            prefetch(address(category) + 4 * row_C[i + _AHEAD])
        own, entry = category[row_C[i]], 0
        if 0 < own < entries.shape[0]:
            entry = entries[own]
        if entry > 0:
            at = first
            first += 1
        else:
            last -= 1
            at = last
        scratch.places_C[at], scratch.row_C[at], scratch.entry_C[at] = i, row_C[i], entry
    return first


@subkernel
def _gather_words(columns: Columns, row_C: np.ndarray, words_CQ: np.ndarray) -> None:
    """Signatures of the candidates as words, in the order of `pack_words`."""
    signature, width = columns.signature, columns.signature.shape[1]
    for i in range(row_C.shape[0]):
        if i + _AHEAD < row_C.shape[0]:
            prefetch(address(signature) + row_C[i + _AHEAD] * width)
        for q in range(words_CQ.shape[1]):
            word = np.uint64(0)
            for byte in range(min(8, width - 8 * q)):
                word |= np.uint64(signature[row_C[i], 8 * q + byte]) << np.uint64(8 * byte)
            words_CQ[i, q] = word


@subkernel
def count_tiers(columns: Columns, weights: VersionWeights, user: RequestUser, row_C: np.ndarray, scratch: Scratch) -> None:
    """scratch.near_CE = behaviours within each edge's limit, for each candidate of the share."""
    apart()  # and so is `take_beyond`: as parts of `score_part` the counts took half as long again
    words_CQ, near_CE = scratch.words_CQ[: row_C.shape[0]], scratch.near_CE[: row_C.shape[0]]
    _gather_words(columns, row_C, words_CQ)
    for i in range(near_CE.shape[0]):
        for e in range(near_CE.shape[1]):
            near_CE[i, e] = user.length
    for block in range(user.planes_ZQBL.shape[0]):
        for q in range(user.planes_ZQBL.shape[1]):
            build_word_table(user.planes_ZQBL[block, q], user.valid_ZL[block], scratch.tables_QXL[q])
        take_beyond(words_CQ, scratch.tables_QXL, weights.masks_EP, user.shift_ZL[block], scratch.counters_XL, near_CE)


@inlined
def prefetch_row(columns: Columns, row_B: np.ndarray, i: int) -> None:
    """Prefetches the row of place i of the next block, if it has one.

    Called between two candidates of this block. A core cannot wait for all rows of a block at once: that made the pass 4% longer.
    """
    if i >= row_B.shape[0]:
        return
    row, vector, bridge, realtime = row_B[i], columns.vector, columns.bridge, columns.realtime
    for at in range(0, 2 * vector.shape[1], 64):
        prefetch(address(vector) + 2 * row * vector.shape[1] + at)
    prefetch(address(bridge) + 2 * row * bridge.shape[1])
    for at in range(0, 4 * realtime.shape[1], 64):
        prefetch(address(realtime) + 4 * row * realtime.shape[1] + at)
    prefetch(address(columns.has_signature) + row)
    prefetch(address(columns.signature) + row * columns.signature.shape[1])


@inlined
def sum_signs(columns: Columns, user: RequestUser, row_B: np.ndarray, signs_BF: np.ndarray) -> None:
    """DIN and DIN_P of a block: sums of one row for each nibble of a signature. Two bytes of every candidate before the next two: the rows of four
    nibbles stay in the first cache, the whole table would not."""
    signature, width = address(columns.signature), columns.signature.shape[1]
    byte_bytes = 4 * 32 * SIGN_CHUNK
    for chunk in range(user.sign_table.shape[0]):
        table = address(user.sign_table) + chunk * width * byte_bytes
        skipped = 4 * SIGN_CHUNK * chunk
        for byte in range(0, width, _BYTES_TOGETHER):
            for i in range(row_B.shape[0]):
                sums = address(signs_BF) + 4 * i * signs_BF.shape[1] + skipped
                start = sums if byte > 0 else address(user.sign_start_F) + skipped
                count = min(_BYTES_TOGETHER, width - byte)
                add_sign_rows(signature + row_B[i] * width + byte, count, table + byte * byte_bytes, start, sums)


@inlined
def _widen_row(columns: Columns, row: int, x: np.ndarray) -> None:
    """I and w into a row of inputs."""
    width, bridges = columns.vector.shape[1], columns.bridge.shape[1]
    widen_row(address(columns.vector) + 2 * width * row, width, address(x))
    widen_row(address(columns.bridge) + 2 * bridges * row, bridges, address(x) + 4 * width)


@inlined
def _join_signs(has: int, width: int, signs_F: np.ndarray, at: int, x: np.ndarray) -> None:
    """DIN and DIN_P o I; zeros without a signature."""
    for d in range(width):
        x[at + d] = signs_F[d] if has else np.float32(0)
    for d in range(width):
        x[at + width + d] = signs_F[width + d] * x[d] if has else np.float32(0)


@inlined
def join_tiers(weights: VersionWeights, user: RequestUser, has: int, near_E: np.ndarray, at: int, x: np.ndarray) -> None:
    """SimTier's features: log1p(count), then count / l, tier by tier; zeros without a signature."""
    tiers = weights.distance_max_E.shape[0] + 1
    length = np.float32(max(1, user.length))
    above = user.length
    for t in range(tiers):
        reached = int64(0)
        if t + 1 < tiers and weights.distance_max_E[t] >= 0:
            reached = int64(near_E[t])
        count = above - reached
        x[at + t] = user.log1p_L[count] if has else np.float32(0)
        x[at + tiers + t] = np.float32(count) / length if has else np.float32(0)
        above = reached


@inlined
def join_realtime(columns: Columns, weights: VersionWeights, row: int, at: int, x: np.ndarray) -> None:
    """Numbers, clipped, then the rows of the table."""
    for column in weights.realtime_numeric:
        x[at] = min(max(columns.realtime[row, column], -weights.value_abs_max), weights.value_abs_max)
        at += 1
    for i in range(weights.realtime_categorical.shape[0]):
        bucket = int64(columns.realtime[row, weights.realtime_categorical[i]]) + weights.realtime_start[i]
        bucket = min(max(bucket, 0), weights.realtime_table.shape[0] - 1)  # clamped, so that nothing outside the table is read
        for e in range(weights.realtime_table.shape[1]):
            x[at] = weights.realtime_table[bucket, e]
            at += 1


@subkernel
def _gather_block(
    columns: Columns, weights: VersionWeights, user: RequestUser, row_B: np.ndarray, entry_B: np.ndarray, scratch: Scratch
) -> None:
    """I and w of a block, and the products of them alone: base rows where the first layer's sums start, and w bea_ND."""
    width, bridges, first_width = columns.vector.shape[1], columns.bridge.shape[1], weights.first_width
    for i in range(row_B.shape[0]):
        entry = entry_B[i]
        for h in range(first_width):
            scratch.first_BH[i, h] = user.base_GH[entry, h] + user.context_H[h]
        _widen_row(columns, row_B[i], scratch.inputs_BX[i])
    inputs, stride, joined = address(scratch.inputs_BX) + 4 * width, 4 * scratch.inputs_BX.shape[1], scratch.joined_BD
    zeros, linear = address(scratch.zeros_D), np.float32(-np.inf)
    rows, bea, out = row_B.shape[0], address(user.bea_panels), address(joined)
    multiply(rows, inputs, stride, bea, bridges, joined.shape[1], zeros, 0, out, 4 * joined.shape[1], linear)


@subkernel
def _join_block(
    columns: Columns,
    weights: VersionWeights,
    user: RequestUser,
    row_B: np.ndarray,
    entry_B: np.ndarray,
    near_BE: np.ndarray,
    next_B: np.ndarray,
    scratch: Scratch,
) -> None:
    """The joint parts of inputs_BX; sub-sequences only where an entry is above 0, and zeros in the rest of such a block. next_B: rows to prefetch."""
    width, at_bea = columns.vector.shape[1], columns.vector.shape[1] + columns.bridge.shape[1]
    has_sim, has_long = entry_B[0] > 0, weights.at_din >= 0 and user.reads_long
    if has_long:
        sum_signs(columns, user, row_B, scratch.signs_BF)
    for i in range(row_B.shape[0]):
        row, x = row_B[i], scratch.inputs_BX[i]
        prefetch_row(columns, next_B, i)
        for d in range(width):
            x[at_bea + d] = scratch.joined_BD[i, d] * x[d]
        if has_long:
            has = columns.has_signature[row]
            _join_signs(has, width, scratch.signs_BF[i], weights.at_din, x)
            join_tiers(weights, user, has, near_BE[i], weights.at_tiers, x)
        if has_sim:
            entry = entry_B[i]
            for d in range(width):
                x[weights.at_sim + d] = user.sim_GD[entry, d] * x[d]
        join_realtime(columns, weights, row, weights.at_realtime, x)


@subkernel
def _run_layers(columns: Columns, weights: VersionWeights, user: RequestUser, rows: int, has_sim: bool, scratch: Scratch) -> None:
    """The block's logits [BLOCK, padded tasks], in the array that the last of the layers wrote. What a block has nothing of is left out."""
    layers, linear, relu = weights.layers.shape[0], np.float32(-np.inf), np.float32(0)
    inputs, stride = address(scratch.inputs_BX), 4 * scratch.inputs_BX.shape[1]
    depth = columns.vector.shape[1] + columns.bridge.shape[1]
    at, at_stride, width = address(scratch.first_BH), 4 * scratch.first_BH.shape[1], weights.first_width
    multiply(rows, inputs, stride, address(user.user_panels), depth, width, at, at_stride, at, at_stride, linear)
    if has_sim:
        at_sim, sim = inputs + 4 * weights.at_sim, address(weights.sim_panels)
        multiply(rows, at_sim, stride, sim, columns.vector.shape[1], width, at, at_stride, at, at_stride, linear)
    joint, stored = address(weights.joint_panels), (weights.inputs if weights.at_sim < 0 else weights.at_sim) - depth
    used = stored if user.reads_long or weights.at_din < 0 else weights.at_din - depth
    least = relu if layers > 0 else linear
    multiply(rows, inputs + 4 * depth, stride, joint, used, width, at, at_stride, at, at_stride, least, stored)
    run_layers(weights.layers, weights.rest, layers, rows, scratch.first_BH, scratch.second_BH)


@kernel
def score_part(
    columns: Columns, weights: VersionWeights, user: RequestUser, row_C: np.ndarray, scratch: Scratch, logits_CT: np.ndarray
) -> None:
    """Logits float32 [C, T] of live rows. `scratch` belongs to one thread."""
    with_sim, count = order_candidates(columns, weights, row_C, scratch), row_C.shape[0]
    ordered_C = scratch.row_C[:count]
    if weights.at_tiers >= 0 and user.reads_long:
        count_tiers(columns, weights, user, ordered_C, scratch)
    for at in range(0, count, BLOCK):
        end = min(count, at + BLOCK)
        row_B, entry_B, next_B = ordered_C[at:end], scratch.entry_C[at:end], ordered_C[end : min(count, end + BLOCK)]
        _gather_block(columns, weights, user, row_B, entry_B, scratch)
        _join_block(columns, weights, user, row_B, entry_B, scratch.near_CE[at:end], next_B, scratch)
        _run_layers(columns, weights, user, end - at, at < with_sim, scratch)
        logits_BH = scratch.second_BH if weights.layers.shape[0] % 2 else scratch.first_BH
        for i in range(at, end):
            for t in range(logits_CT.shape[1]):
                logits_CT[scratch.places_C[i], t] = logits_BH[i - at, t]
