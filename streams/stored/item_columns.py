"""Columns of items for one model: what a FeatureSchema makes of raw features, as arrays.

Here: `ItemColumns`, and of these the plain columns, which need no network. They are made from mappings, by schemas/features.py, feature by feature, which is
the specification; or from stored texts, in compiled passes. Not here: the network, rows (streams/encoder.py).
Invariant: both ways give the same bits for every item whose text is what `encode_raw_features` writes. A text that is not plain (feature_texts.py) is decoded
and goes the first way.

Arrays: R items, F wanted features, Q realtime features, and those of FeatureBlock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from schemas.features import NUMBER_MAX, Feature, FeatureBlock, FeatureSchema, Kind, Scope, Transform, encode_features, encode_realtime
from schemas.limits import BAG_VALUES_MAX
from schemas.model.compiled import int64, kernel
from streams.stored.bucket_hash import Memory, find_bucket, new_memory, start_words
from streams.stored.feature_texts import BOOLEAN, LIST, TEXT, WHOLE, Cells, FeatureTexts, read_cells, read_number, skip_text

Raw = Mapping[str, Any]

_QUOTE, _COMMA, _MINUS, _ZERO, _NINE = (ord(c) for c in '",-09')


@dataclass(frozen=True, slots=True)
class PlainColumns:
    """What a row has without the network: category_R int64, the buckets of the SIM category (0 = missing); bid_R float64; realtime_RQ float32."""

    category_R: np.ndarray
    bid_R: np.ndarray
    realtime_RQ: np.ndarray


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """All of a row's columns: the inputs of the item half, and the plain ones."""

    inputs: FeatureBlock
    plain: PlainColumns


def encode_columns(schema: FeatureSchema, raw_features: Sequence[Raw], mm_RM: np.ndarray) -> ItemColumns:
    """All columns of R items, whose raw features are mappings or `FeatureTexts`. mm_RM: float32, their multimodal embeddings, zeros where one is missing."""
    if not isinstance(raw_features, FeatureTexts):
        vectors = {schema.multimodal: mm_RM} if schema.multimodal else {}
        return ItemColumns(encode_features(schema.item_half_inputs, raw_features, vectors), encode_plain_columns(schema, raw_features))
    reader = _Reader(schema, raw_features, sorted(f.name for f in schema.of(Scope.ITEM) if f.name != schema.multimodal))
    columns = ItemColumns(reader.inputs(mm_RM), reader.plain())
    left_R = np.flatnonzero(~reader.cells.plain_R)
    if len(left_R):
        others = encode_columns(schema, list(raw_features.take(left_R)), mm_RM[left_R])
        for name in FeatureBlock.__slots__:
            getattr(columns.inputs, name)[left_R] = getattr(others.inputs, name)
        _replace(columns.plain, left_R, others.plain)
    return columns


def encode_plain_columns(schema: FeatureSchema, raw_features: Sequence[Raw]) -> PlainColumns:
    """The plain columns of R items alone."""
    if not isinstance(raw_features, FeatureTexts):
        realtime = np.array([encode_realtime(schema, raw) for raw in raw_features], np.float32)
        return PlainColumns(
            np.array([schema.category_of(raw) for raw in raw_features], np.int64),
            np.array([schema.bid_of(raw) for raw in raw_features], np.float64),
            realtime.reshape(len(raw_features), len(schema.realtime_features)),
        )
    names = {schema.sim_category, schema.bid, *(f.name for f in schema.realtime_features)} - {None}
    reader = _Reader(schema, raw_features, sorted(name for name in names if name is not None))
    plain = reader.plain()
    left_R = np.flatnonzero(~reader.cells.plain_R)
    if len(left_R):
        _replace(plain, left_R, encode_plain_columns(schema, list(raw_features.take(left_R))))
    return plain


def _replace(columns: PlainColumns, places: np.ndarray, others: PlainColumns) -> None:
    columns.category_R[places], columns.bid_R[places], columns.realtime_RQ[places] = others.category_R, others.bid_R, others.realtime_RQ


class _Reader:
    """One block of texts, read for one schema."""

    def __init__(self, schema: FeatureSchema, texts: FeatureTexts, names: Sequence[str]) -> None:
        self._schema, self._texts = schema, texts
        self._place_of = {name: f for f, name in enumerate(names)}
        self.cells: Cells = read_cells(texts, names)
        self._known_buckets: dict[str, np.ndarray] = {}

    def inputs(self, mm_RM: np.ndarray) -> FeatureBlock:
        features, rows = self._schema.item_half_inputs, len(self._texts)
        by_kind = {kind: [f for f in features if f.kind is kind] for kind in Kind}
        block = FeatureBlock(
            np.zeros((rows, len(by_kind[Kind.CATEGORICAL])), np.int64),
            np.zeros((rows, len(by_kind[Kind.NUMERIC])), np.float32),
            np.zeros((rows, len(by_kind[Kind.BAG]), BAG_VALUES_MAX if by_kind[Kind.BAG] else 0), np.int64),
            np.zeros((rows, sum(f.width for f in by_kind[Kind.EMBEDDING])), np.float32),
        )
        for c, feature in enumerate(by_kind[Kind.CATEGORICAL]):
            block.categorical_RC[:, c] = self._buckets(feature)
        for n, feature in enumerate(by_kind[Kind.NUMERIC]):
            self._read_numbers(feature, block.numeric_RN[:, n])
        for b, feature in enumerate(by_kind[Kind.BAG]):
            self._read_bags(feature, block.bags_RBV[:, b])
        at = 0
        for feature in by_kind[Kind.EMBEDDING]:
            self._read_vectors(feature, mm_RM, block.embeddings_RE[:, at : at + feature.width])
            at += feature.width
        return block

    def plain(self) -> PlainColumns:
        return PlainColumns(self.category(), self.bid(), self.realtime())

    def category(self) -> np.ndarray:
        name = self._schema.sim_category
        return np.zeros(len(self._texts), np.int64) if name is None else self._buckets(self._schema.item(name))

    def bid(self) -> np.ndarray:
        name = self._schema.bid
        return np.ones(len(self._texts)) if name is None else self._schema.bids_in(self.cells.numbers_FR[self._place_of[name]])

    def realtime(self) -> np.ndarray:
        features = self._schema.realtime_features
        out_QR = np.empty((len(features), len(self._texts)), np.float32)
        for q, feature in enumerate(features):
            if feature.kind is Kind.NUMERIC:
                self._read_numbers(feature, out_QR[q])
            else:
                out_QR[q] = self._buckets(feature)
        return out_QR.T

    def _read_numbers(self, feature: Feature, out_R: np.ndarray) -> None:
        numbers_R, is_log = self.cells.numbers_FR[self._place_of[feature.name]], feature.transform == Transform.LOG1P
        _fill_numbers(numbers_R, float(feature.default), is_log, float(feature.mean), float(feature.scale), out_R)

    def _buckets(self, feature: Feature) -> np.ndarray:
        known = self._known_buckets.get(feature.name)
        if known is None:
            f, rows = self._place_of[feature.name], len(self._texts)
            known = self._known_buckets[feature.name] = np.zeros(rows, np.int64)
            of_truth = np.array([feature.bucket(False), feature.bucket(True)], np.int64)
            kinds, numbers, begins, ends = self._cells_of(f)
            start_8, memory = start_words(feature.salt), new_memory(rows)
            _fill_buckets(self._texts.text_T, kinds, numbers, begins, ends, feature.buckets, start_8, memory, of_truth, known)
        return known

    def _read_bags(self, feature: Feature, out_RV: np.ndarray) -> None:
        kinds, _, begins, ends = self._cells_of(self._place_of[feature.name])
        start_8, memory = start_words(feature.salt), new_memory(4 * len(self._texts))
        _fill_bags(
            self._texts.text_T, kinds, begins, ends, feature.buckets, start_8, memory, out_RV, self.cells.plain_R, np.zeros(1, np.uint64)
        )

    def _read_vectors(self, feature: Feature, mm_RM: np.ndarray, out_RE: np.ndarray) -> None:
        if feature.name == self._schema.multimodal:
            np.clip(mm_RM, -NUMBER_MAX, NUMBER_MAX, out=out_RE)
            return
        kinds, _, begins, ends = self._cells_of(self._place_of[feature.name])
        values_RE = np.zeros((len(self._texts), feature.width))
        _fill_vectors(self._texts.text_T, kinds, begins, ends, values_RE, self.cells.plain_R, np.zeros(1, np.uint64))
        np.clip(values_RE, -NUMBER_MAX, NUMBER_MAX, out=values_RE)
        out_RE[:] = values_RE

    def _cells_of(self, f: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        cells = self.cells
        return cells.kinds_FR[f], cells.numbers_FR[f], cells.begins_FR[f], cells.ends_FR[f]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill_numbers(numbers_R: np.ndarray, default: float, is_log: bool, mean: float, scale: float, out_R: np.ndarray) -> None:
    """`Feature.numbers_in` in one pass, rounded to float32: the same bits."""
    for r in range(numbers_R.shape[0]):
        x = numbers_R[r] if math.isfinite(numbers_R[r]) else default
        if is_log:
            x = math.copysign(math.log1p(abs(x)), x)
        out_R[r] = min(max((x - mean) / scale, -NUMBER_MAX), NUMBER_MAX)


@kernel
def _fill_buckets(
    text: np.ndarray,
    kinds_R: np.ndarray,
    numbers_R: np.ndarray,
    begins_R: np.ndarray,
    ends_R: np.ndarray,
    buckets: int,
    start_8: np.ndarray,
    memory: Memory,
    of_truth_2: np.ndarray,
    out_R: np.ndarray,
) -> None:
    """The bucket of a text or a whole number as it is printed, of true and false; 0 for anything else."""
    for r in range(kinds_R.shape[0]):
        if kinds_R[r] == TEXT or kinds_R[r] == WHOLE:
            out_R[r] = find_bucket(text, begins_R[r], ends_R[r] - begins_R[r], buckets, start_8, memory)
        elif kinds_R[r] == BOOLEAN:
            out_R[r] = of_truth_2[int64(numbers_R[r])]


@kernel
def _fill_bags(
    text: np.ndarray,
    kinds_R: np.ndarray,
    begins_R: np.ndarray,
    ends_R: np.ndarray,
    buckets: int,
    start_8: np.ndarray,
    memory: Memory,
    out_RV: np.ndarray,
    plain_R: np.ndarray,
    bits_1: np.ndarray,
) -> None:
    """The buckets of a list's first values as they are printed."""
    for r in range(kinds_R.shape[0]):
        if kinds_R[r] != LIST or not plain_R[r]:
            continue
        at, end, v = begins_R[r], ends_R[r], 0
        while at < end and v < out_RV.shape[1]:
            begin, value_end = at, at
            if text[at] == _QUOTE:
                begin = at + 1
                value_end = skip_text(text, begin, end)
                at = value_end + 1
            elif text[at] == _MINUS or _ZERO <= text[at] <= _NINE:
                value_end, _ = read_number(text, at, end, bits_1)
                at = value_end
            else:
                value_end = -1
            if value_end < 0 or (at < end and text[at] != _COMMA):
                plain_R[r] = False
                break
            out_RV[r, v] = find_bucket(text, begin, value_end - begin, buckets, start_8, memory)
            at, v = at + 1, v + 1


@kernel
def _fill_vectors(
    text: np.ndarray,
    kinds_R: np.ndarray,
    begins_R: np.ndarray,
    ends_R: np.ndarray,
    out_RE: np.ndarray,
    plain_R: np.ndarray,
    bits_1: np.ndarray,
) -> None:
    """Lists of exactly as many numbers as the vector is wide; zeros for other lists, and for what is none."""
    number_1 = bits_1.view(np.float64)
    width = out_RE.shape[1]
    for r in range(kinds_R.shape[0]):
        if kinds_R[r] != LIST or not plain_R[r]:
            continue
        at, end, e, good = begins_R[r], ends_R[r], 0, True
        while at < end:
            if not (text[at] == _MINUS or _ZERO <= text[at] <= _NINE):
                plain_R[r] = good = False  # a text makes it no vector, true makes it one: Python decides
                break
            at, _ = read_number(text, at, end, bits_1)
            if at < 0 or (at < end and text[at] != _COMMA):
                plain_R[r] = good = False
                break
            if e < width:
                out_RE[r, e] = number_1[0]
            at, e = at + 1, e + 1
        if not good or e != width:
            out_RE[r, :] = 0.0


def compile_columns() -> None:
    """Takes the kernels of this file, and the parts that they are made of, from numba's cache, or compiles them."""
    a, b = Feature("a", Scope.ITEM, Kind.CATEGORICAL, buckets=2), Feature("b", Scope.ITEM, Kind.BAG, buckets=2)
    schema = FeatureSchema((a, b, Feature("c", Scope.ITEM, Kind.EMBEDDING, width=1)))
    encode_columns(schema, FeatureTexts.join([b'{"a":1,"b":["x",0.5],"c":[1]}']), np.zeros((1, 0), np.float32))
    for out_R in (np.zeros(2, np.float32), np.zeros((2, 2), np.float32)[:, 0]):
        _fill_numbers(np.zeros(2), 0.0, False, 0.0, 1.0, out_R)
