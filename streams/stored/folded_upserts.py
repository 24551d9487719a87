"""Upserts of many items folded at once: stored features in, the components after the batch out, as bytes in one buffer.

Here: `fold_upserts`. Not here: the fold rule, which is core/item_state.py `fold_features`, one update at a time, and the specification; items that a batch
touches more than once, deletes, embeddings (core/item_change.py); rows (streams/upsert_rows.py).
Invariant: the bytes of a component are those of `encode_features_component(fold_features(...))`, and an outcome is what ItemChange would say of the one step.

Arrays: R items, each with one upsert; T bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from streams.core.item_state import FEATURES_HEADER, FeaturesUpdate
from streams.stored.bucket_hash import WORK_WORDS, digest_64, start_words
from streams.stored.feature_texts import FeatureTexts
from streams.stored.item_block import ItemBlock, Joined, check_features, cut_joined_block, cut_orders, join_some, join_stored

# What became of an update: it lost; it told what was known; it told something new of a live item; the item had no row before.
SUPERSEDED, REPEATED, CHANGED, APPEARED = range(4)
_HEAD = FEATURES_HEADER.size
_OFFSET_AT, _INDEX_AT, _CHANGED_AT, _DEAD_AT, _HASH_AT = 8, 16, 18, 36, 37  # in a header; its order begins at 0
_UNSALTED_8 = start_words(b"")


@dataclass(frozen=True, slots=True)
class FoldedUpserts:
    """outcomes_R uint8; `after`: the items as they are after the batch; components: features as they are to be stored; before: as they were
    stored, and the stored embeddings."""

    outcomes_R: np.ndarray
    after: ItemBlock
    components: Joined
    before: Joined
    embeddings: Joined

    def __len__(self) -> int:
        return len(self.outcomes_R)

    def places(self, outcome: int) -> np.ndarray:
        """Where this became of the update."""
        return np.flatnonzero(self.outcomes_R == outcome)

    def texts_before(self, places: np.ndarray) -> FeatureTexts:
        """The features as they were, of items that were there."""
        return FeatureTexts(self.before.bytes_T, self.before.starts_R[places] + _HEAD, self.before.ends_R[places])

    def hashes_before(self, places: np.ndarray) -> np.ndarray:
        """The input hashes uint64 of rows made before the batch, of items that were live."""
        hashes: np.ndarray = cut_orders(self.before.take(places), self.embeddings.take(places))["input_hash"]
        return hashes

    def stored(self) -> list[tuple[bytes, bytes]]:
        """(key, component) of every item whose component is another than before."""
        whole, keys = self.components.bytes_T.tobytes(), self.after.keys
        ends = zip(keys, self.components.starts_R.tolist(), self.components.ends_R.tolist(), self.outcomes_R.tolist(), strict=True)
        return [(key, whole[start:end]) for key, start, end, outcome in ends if outcome != SUPERSEDED]


def fold_upserts(updates: Sequence[FeaturesUpdate], features: Sequence[bytes | None], embeddings: Sequence[bytes | None]) -> FoldedUpserts:
    """Folds one upsert into each item, given with its components as they are stored. Raises Corrupted."""
    before, raw = join_some(features), join_stored([update.raw for update in updates])
    check_features(before)
    orders_R3 = np.array([(update.version, update.offset, update.index) for update in updates], np.int64).reshape(-1, 3)
    rows = len(updates)
    after_T = np.empty(len(before.bytes_T) + len(raw.bytes_T) + _HEAD * rows, np.uint8)
    starts_R, ends_R, outcomes_R = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.uint8)
    _fold(*before, *raw, orders_R3, _UNSALTED_8, after_T, starts_R, ends_R, outcomes_R)
    after_T.flags.writeable = False  # as buffers from stored bytes are: a kernel is compiled for either kind
    components, stored_embeddings = Joined(after_T, starts_R, ends_R), join_some(embeddings)
    after = cut_joined_block([update.key for update in updates], components, stored_embeddings)
    return FoldedUpserts(outcomes_R, after, components, before, stored_embeddings)


_kernel = numba.njit(nogil=True, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_kernel
def _read_whole(text: np.ndarray, at: int, size: int) -> int:
    """A whole number of `size` bytes, little end first."""
    whole = np.uint64(0)
    for i in range(size):
        whole |= np.uint64(text[at + i]) << np.uint64(8 * i)
    return np.int64(whole)


@_kernel
def _write_whole(out: np.ndarray, at: int, size: int, whole: int) -> None:
    for i in range(size):
        out[at + i] = np.uint8((np.uint64(whole) >> np.uint64(8 * i)) & np.uint64(255))


@_kernel
def _write_order(out: np.ndarray, at: int, order_3: np.ndarray) -> None:
    _write_whole(out, at, 8, order_3[0])
    _write_whole(out, at + _OFFSET_AT, 8, order_3[1])
    _write_whole(out, at + _INDEX_AT, 2, order_3[2])


@_kernel
def _is_newer(order_3: np.ndarray, text: np.ndarray, at: int) -> bool:
    """Whether an order is above that of the component at `at`."""
    version, offset = _read_whole(text, at, 8), _read_whole(text, at + _OFFSET_AT, 8)
    if order_3[0] != version:
        return order_3[0] > version
    if order_3[1] != offset:
        return order_3[1] > offset
    return order_3[2] > _read_whole(text, at + _INDEX_AT, 2)


@_kernel
def _copy(source: np.ndarray, begin: int, end: int, out: np.ndarray, at: int) -> int:
    """Where it ends in `out`."""
    for i in range(end - begin):
        out[at + i] = source[begin + i]
    return at + end - begin


@_kernel
def _are_equal(a: np.ndarray, begin_a: int, end_a: int, b: np.ndarray, begin_b: int, end_b: int) -> bool:
    if end_a - begin_a != end_b - begin_b:
        return False
    same = 0
    while same < end_a - begin_a and a[begin_a + same] == b[begin_b + same]:
        same += 1
    return same == end_a - begin_a


@numba.njit(nogil=True, cache=True)
def _fold(
    before_T: np.ndarray,
    starts_R: np.ndarray,
    ends_R: np.ndarray,
    raw_T: np.ndarray,
    raw_starts_R: np.ndarray,
    raw_ends_R: np.ndarray,
    orders_R3: np.ndarray,
    start_8: np.ndarray,
    after_T: np.ndarray,
    after_starts_R: np.ndarray,
    after_ends_R: np.ndarray,
    outcomes_R: np.ndarray,
) -> None:
    at, work = 0, np.empty(WORK_WORDS, np.uint64)
    for r in range(starts_R.shape[0]):
        start, end, raw, raw_end = starts_R[r], ends_R[r], raw_starts_R[r], raw_ends_R[r]
        after_starts_R[r] = at
        is_live = start >= 0 and before_T[start + _DEAD_AT] == 0
        if start >= 0 and not _is_newer(orders_R3[r], before_T, start):
            outcomes_R[r] = SUPERSEDED
            at = _copy(before_T, start, end, after_T, at)
        elif is_live and _are_equal(before_T, start + _HEAD, end, raw_T, raw, raw_end):
            outcomes_R[r] = REPEATED
            _copy(before_T, start, end, after_T, at)
            _write_order(after_T, at, orders_R3[r])
            at += end - start
        else:
            outcomes_R[r] = CHANGED if is_live else APPEARED
            _write_order(after_T, at, orders_R3[r])
            _write_order(after_T, at + _CHANGED_AT, orders_R3[r])
            after_T[at + _DEAD_AT] = 0
            _write_whole(after_T, at + _HASH_AT, 8, np.int64(digest_64(raw_T, raw, raw_end - raw, start_8, work)))
            at = _copy(raw_T, raw, raw_end, after_T, at + _HEAD)
        after_ends_R[r] = at


def compile_fold() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    fold_upserts([FeaturesUpdate(b"", 1, 0, 0, False, b"{}")], [None], [None])
