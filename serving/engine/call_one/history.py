"""A user's history: its join with one version's rows, and one compiled pass that projects each behaviour (Eq. 1) and adds it to the sums that are kept.

A behaviour whose item the version does not have keeps its hashed id, kind and features; its vector, category and signature are zeros (D1).

    newest behaviours first, BLOCK at a time; the rows of the next block are prefetched
    projection      rows of kind and category, already multiplied by W_seq, + [item id | features | vector] x W_seq by the tiles of call 2, times the gate
    attended        the latest projected behaviours, unchanged
    sums of DIN     by nibbles of the signature: for each nibble a behaviour is added to one of 16 rows, which is D x 2 W sums instead of D x 8 W
                    products; at the end `spread_nibbles` turns them into rows of single bits
    sub-sequences   sum and count of the latest of each category
    signatures      the latest ones, for SimTier

Cost: 0.1 ms for 1,000 behaviours of the default model. The kept sums do not grow with the history; only SimTier's signatures do.

Arrays: L behaviours, oldest first, B of a block, A attended, S for SimTier, G categories met, D width (padded), W signature bytes; X inputs of a projection,
F of them made of a behaviour's own features and its recency.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.features import Scope, encode_features
from schemas.kernels.compiled import inlined, int64, kernel, subkernel
from schemas.kernels.float32_code import LANES, prefetch, sum_rows, widen_row
from schemas.kernels.products import BLOCK, TILE_ROWS, multiply, padded
from schemas.kernels.vector_blocks import address, aligned
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.users import BehaviourEvent
from serving.engine.call_one.user_weights import HistoryWeights, UserWeights
from serving.engine.tables.changes import encode_ids
from serving.engine.tables.tables import Columns, Tables


class History(NamedTuple):
    """A history joined with one version's rows.

    - row_L: int64, the item's row, -1 = the version does not have it
    - kind_L, bucket_L: int64, buckets in the tables of kinds and of hashed item ids
    - features_LF: float32, the behaviour's own features and its recency
    - gate_L: float32, factor of its projection; empty if all are 1
    """

    row_L: np.ndarray
    kind_L: np.ndarray
    bucket_L: np.ndarray
    features_LF: np.ndarray
    gate_L: np.ndarray

    @property
    def missing(self) -> int:
        """How many behaviours have no row."""
        return int((self.row_L < 0).sum())


def join_history(weights: UserWeights, tables: Tables, events: Sequence[BehaviourEvent]) -> History:
    """Looks the events' items up in this version. `events` must end with the user's newest, or their recency would be another one's. Raises RejectedInput
    (`bad_id`)."""
    spec, length, columns = weights.spec, len(events), _columns_of(events)
    bucket_L = encode_item_buckets(spec, list(columns.item_ids)) if spec.item_id_buckets else np.zeros(length, np.int64)
    names, kinds_L = columns.kinds
    kind_L = np.array([encode_kind(spec, name) for name in names], np.int64)[kinds_L]
    behaviour, features_LF = spec.schema.of(Scope.BEHAVIOUR), np.zeros((length, 0), np.float32)
    if behaviour:
        features_LF = weights.behaviour_features.embed(encode_features(behaviour, columns.features or [{}] * length))
    newest = slice(BEHAVIOURS_PER_USER_MAX - length, None)
    if spec.recency:
        features_LF = np.concatenate([features_LF, weights.recency_LS[newest]], axis=1)
    return History(find_rows(tables, columns), kind_L, bucket_L, features_LF, weights.gate_L[newest])


def find_rows(tables: Tables, events: Sequence[BehaviourEvent]) -> np.ndarray:
    """int64 [L]: only the rows of the events' items."""
    return tables.find(encode_ids(_columns_of(events).item_ids, tables.layout.id_kind)) if len(events) else np.zeros(0, np.int64)


def _columns_of(events: Sequence[BehaviourEvent]) -> BehaviourColumns:
    if isinstance(events, BehaviourColumns):
        return events
    return EMPTY.append([(event.item_id, event.kind, event.time_ms, event.features) for event in events], len(events))


class HistorySums(NamedTuple):
    """The results of a pass.

    - attended_AD: the latest projected behaviours
    - sum_D, nibbles_NVD [2 W, 16, D]: sums of behaviours with a signature
    - counts: (how many these were, categories met)
    - signatures_SW, has_S: of the latest behaviours
    - categories_G, sums_GD, often_G: in the order in which the categories were met
    """

    attended_AD: np.ndarray
    sum_D: np.ndarray
    nibbles_NVD: np.ndarray
    signatures_SW: np.ndarray
    has_S: np.ndarray
    counts: np.ndarray
    categories_G: np.ndarray
    sums_GD: np.ndarray
    often_G: np.ndarray


class HistoryScratch(NamedTuple):
    """Scratch memory of one pass. entry_of_category int32: row of a category's sums + 1; 0 = not met yet."""

    inputs_BX: np.ndarray
    starts_BD: np.ndarray
    projected_BD: np.ndarray
    entry_of_category: np.ndarray


def open_history_scratch(weights: UserWeights) -> HistoryScratch:
    """Scratch memory for a history of any length."""
    width = weights.width_padded
    return HistoryScratch(
        inputs_BX=aligned((BLOCK, padded(weights.history.inputs))),
        starts_BD=aligned((BLOCK, width)),
        projected_BD=aligned((BLOCK, width)),
        entry_of_category=np.zeros(weights.categories, np.int32),
    )


def open_sums(weights: UserWeights, length: int, attended: int, signatures: int) -> HistorySums:
    """Zeros for a pass over `length` behaviours. `attended`, `signatures`: how many of the latest are attended to, or kept with their signatures."""
    width, groups, bytes_W = weights.width_padded, min(length, weights.categories), weights.spec.signature_bytes
    return HistorySums(
        attended_AD=aligned((padded(attended, TILE_ROWS), width))[:attended],  # tiles are read whole
        sum_D=aligned((width,)),
        nibbles_NVD=aligned((2 * bytes_W, 16, width)),
        signatures_SW=np.zeros((signatures, bytes_W), np.uint8),
        has_S=np.zeros(signatures, np.uint8),
        counts=np.zeros(2, np.int64),
        categories_G=np.zeros(groups, np.int64),
        sums_GD=aligned((groups, width)),
        often_G=np.zeros(groups, np.int64),
    )


@inlined
def _row_of(table: np.ndarray, row: int) -> int:
    """The address of a row. The number is clamped, so that nothing outside the table is read."""
    return address(table) + 4 * table.shape[1] * min(max(row, 0), table.shape[0] - 1)


@inlined
def _add_to(total: int, vector: int, vectors: int) -> None:
    """Adds one row to another, both given by addresses."""
    sum_rows(total, vector, vectors, total)


@subkernel
def _ask_for_rows(columns: Columns, row_L: np.ndarray, start: int, end: int) -> None:
    vector, signature = columns.vector, columns.signature
    for j in range(start, end):
        row = row_L[j]
        if row >= 0:
            for at in range(0, 2 * vector.shape[1], 64):
                prefetch(address(vector) + 2 * row * vector.shape[1] + at)
            prefetch(address(signature) + row * signature.shape[1])
            prefetch(address(columns.category) + 4 * row)
            prefetch(address(columns.has_signature) + row)


@subkernel
def _gather_block(columns: Columns, weights: HistoryWeights, history: History, start: int, end: int, scratch: HistoryScratch) -> None:
    """Starts of the sums, and inputs, of the behaviours from `start` to `end`."""
    width, features, ids = weights.width, history.features_LF.shape[1], weights.items.shape[1]
    vectors, starts_BD, inputs_BX = scratch.starts_BD.shape[1] // LANES, scratch.starts_BD, scratch.inputs_BX
    for j in range(start, end):
        row, i = history.row_L[j], j - start
        category = int64(columns.category[row]) if row >= 0 else int64(0)
        kind = _row_of(weights.kinds, history.kind_L[j])
        sum_rows(kind, _row_of(weights.categories, category), vectors, address(starts_BD) + 4 * i * starts_BD.shape[1])
        item = min(max(history.bucket_L[j], 0), weights.items.shape[0] - 1)
        for e in range(ids):
            inputs_BX[i, e] = weights.items[item, e]
        for f in range(features):
            inputs_BX[i, ids + f] = history.features_LF[j, f]
        if row >= 0:
            widen_row(address(columns.vector) + 2 * width * row, width, address(inputs_BX) + 4 * (i * inputs_BX.shape[1] + ids + features))
        else:
            for d in range(width):
                inputs_BX[i, ids + features + d] = np.float32(0)


@subkernel
def _add_signed(
    columns: Columns, history: History, start: int, end: int, first_signed: int, projected_BD: np.ndarray, sums: HistorySums
) -> None:
    """Signatures of a block to those that are kept, and its vectors to the sums of their signatures' nibbles."""
    signature, length, width = columns.signature, history.row_L.shape[0], sums.sum_D.shape[0]
    vectors, row_bytes, first_kept = width // LANES, 4 * width, length - sums.signatures_SW.shape[0]
    for j in range(start, end):
        row = history.row_L[j]
        if row >= 0 and columns.has_signature[row] != 0:
            if j >= first_kept:
                sums.has_S[j - first_kept] = 1
                for byte in range(signature.shape[1]):
                    sums.signatures_SW[j - first_kept, byte] = signature[row, byte]
            if j >= first_signed:
                vector, nibble = address(projected_BD) + row_bytes * (j - start), address(sums.nibbles_NVD)
                _add_to(address(sums.sum_D), vector, vectors)
                sums.counts[0] += 1
                for byte in range(signature.shape[1]):
                    value = int64(signature[row, byte])
                    _add_to(nibble + (value >> 4) * row_bytes, vector, vectors)
                    _add_to(nibble + (16 + (value & 15)) * row_bytes, vector, vectors)
                    nibble += 32 * row_bytes


@subkernel
def _add_to_categories(
    columns: Columns, history: History, start: int, end: int, latest: int, projected_BD: np.ndarray, entries: np.ndarray, sums: HistorySums
) -> None:
    """Vectors of a block, newest first, to their categories' sub-sequences, where they are among the latest of these."""
    width = sums.sum_D.shape[0]
    for j in range(end - 1, start - 1, -1):
        row = history.row_L[j]
        category = int64(columns.category[row]) if row >= 0 else int64(0)
        if 0 < category < entries.shape[0]:
            entry = int64(entries[category]) - 1
            if entry < 0:
                entry = sums.counts[1]
                sums.counts[1] += 1
                entries[category] = entry + 1
                sums.categories_G[entry] = category
            if sums.often_G[entry] < latest:
                sums.often_G[entry] += 1
                total, vector = address(sums.sums_GD) + 4 * entry * width, address(projected_BD) + 4 * width * (j - start)
                _add_to(total, vector, width // LANES)


@kernel
def read_history(
    columns: Columns, weights: HistoryWeights, history: History, first_signed: int, latest: int, scratch: HistoryScratch, sums: HistorySums
) -> None:
    """Fills `sums`. DIN sums begin at behaviour `first_signed`; sub-sequences hold the `latest` of each category, 0 = none are made."""
    length, width = history.row_L.shape[0], scratch.projected_BD.shape[1]
    inputs, stride, w_seq = address(scratch.inputs_BX), 4 * scratch.inputs_BX.shape[1], address(weights.w_seq)
    projected, starts, none, first_attended = (
        address(scratch.projected_BD),
        address(scratch.starts_BD),
        np.float32(-np.inf),
        length - sums.attended_AD.shape[0],
    )
    _ask_for_rows(columns, history.row_L, max(0, length - BLOCK), length)
    for end in range(length, 0, -BLOCK):
        start = max(0, end - BLOCK)
        _ask_for_rows(columns, history.row_L, max(0, start - BLOCK), start)
        _gather_block(columns, weights, history, start, end, scratch)
        multiply(end - start, inputs, stride, w_seq, weights.inputs, width, starts, 4 * width, projected, 4 * width, none)
        if history.gate_L.shape[0] > 0:
            for j in range(start, end):
                for d in range(width):
                    scratch.projected_BD[j - start, d] *= history.gate_L[j]
        for j in range(max(start, first_attended), end):
            for d in range(width):
                sums.attended_AD[j - first_attended, d] = scratch.projected_BD[j - start, d]
        if columns.signature.shape[1] > 0:
            _add_signed(columns, history, start, end, first_signed, scratch.projected_BD, sums)
        if latest > 0:
            _add_to_categories(columns, history, start, end, latest, scratch.projected_BD, scratch.entry_of_category, sums)


@kernel
def spread_nibbles(nibbles_NVD: np.ndarray, cross_KD: np.ndarray) -> None:
    """cross_KD = S^T V: for each bit, most significant first, the sums of nibbles that have it less those that do not."""
    for nibble in range(nibbles_NVD.shape[0]):
        for value in range(16):
            row = nibbles_NVD[nibble, value]
            for bit in range(4):
                sign = np.float32(1) if value & (8 >> bit) else np.float32(-1)
                for d in range(cross_KD.shape[1]):
                    cross_KD[4 * nibble + bit, d] += sign * row[d]
