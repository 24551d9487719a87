"""Upserts of many items folded at once: stored features in, the components after the batch out, as bytes in one buffer.

Here: `fold_upserts`. Not here: the fold rule, which is core/item_state.py `fold_features`, one update at a time, and the specification; items that
deletes or embeddings touch too (core/item_change.py); rows (streams/upsert_rows.py).
Invariant: the bytes of a component are those of `encode_features_component(fold_features(...))`, and outcomes and steps are what ItemChange would say.

Arrays: U upserts in their order, I items that they touch, S steps that told something new of a live item, T bytes.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numba
import numpy as np

from streams.core.item_state import FEATURES_HEADER, FeaturesUpdate
from streams.stored.bucket_hash import WORK_WORDS, digest_64, start_words
from streams.stored.feature_texts import FeatureTexts
from streams.stored.item_block import ItemBlock, Joined, check_features, cut_joined_block, cut_orders, join_some
from streams.stored.upserts import Upserts

# What became of an update: it lost; it told what was known; it told something new of a live item; the item had no row before.
SUPERSEDED, REPEATED, CHANGED, APPEARED = range(4)
_HEAD = FEATURES_HEADER.size
_OFFSET_AT, _INDEX_AT, _CHANGED_AT, _DEAD_AT, _HASH_AT = 8, 16, 18, 36, 37  # in a header; its order begins at 0
_UNSALTED_8 = start_words(b"")
_loaded = threading.Event()


@dataclass(frozen=True, slots=True)
class ChangedTexts:
    """Steps between two live states that differ: places of their items, and the features before and after each."""

    items_S: np.ndarray
    before: FeatureTexts
    after: FeatureTexts


@dataclass(frozen=True, slots=True)
class FoldedUpserts:
    """outcomes_I uint8: the most that became of an item's upserts; `after`: the items as they are after the batch; components: features as they are
    to be stored; before: as they were stored, and the stored embeddings; applied: how many upserts were not superseded."""

    outcomes_I: np.ndarray
    after: ItemBlock
    components: Joined
    before: Joined
    embeddings: Joined
    steps: ChangedTexts
    applied: int

    def __len__(self) -> int:
        return len(self.outcomes_I)

    def places(self, outcome: int) -> np.ndarray:
        """Items of which this became."""
        return np.flatnonzero(self.outcomes_I == outcome)

    def hashes_before(self, places: np.ndarray) -> np.ndarray:
        """The input hashes uint64 of rows made before the batch, of items that were live."""
        hashes: np.ndarray = cut_orders(self.before.take(places), self.embeddings.take(places))["input_hash"]
        return hashes

    def stored(self) -> tuple[list[bytes], list[bytes]]:
        """Keys and components of every item whose component is another than before."""
        stored_I = self.outcomes_I != SUPERSEDED
        whole, components = self.components.bytes_T.tobytes(), self.components.take(stored_I)
        spans = zip(components.starts_R.tolist(), components.ends_R.tolist(), strict=True)
        return list(compress(self.after.keys, stored_I.tolist())), [whole[start:end] for start, end in spans]


def find_items(upserts: Upserts) -> tuple[list[bytes], np.ndarray]:
    """The keys of the items that upserts touch, and item_U, the place of each upsert's item among them."""
    keys = upserts.columns().keys
    items = list(dict.fromkeys(keys))
    if len(items) == len(keys):
        return items, np.arange(len(keys))
    place_of = {key: place for place, key in enumerate(items)}
    return items, np.fromiter(map(place_of.__getitem__, keys), np.int64, len(keys))


def fold_upserts(
    upserts: Upserts, items: list[bytes], item_U: np.ndarray, features: Sequence[bytes | None], embeddings: Sequence[bytes | None]
) -> FoldedUpserts:
    """Folds upserts, in their order, into items, given with their components as they are stored. Raises Corrupted."""
    before, stored_embeddings = join_some(features), join_some(embeddings)
    check_features(before)
    _, orders_U3, raw = upserts.columns()
    count = len(upserts)
    arena_T = np.empty(len(before.bytes_T) + int((raw.ends_R - raw.starts_R).sum()) + _HEAD * count, np.uint8)
    arena_T[: len(before.bytes_T)] = before.bytes_T
    starts_I, ends_I, outcomes_I = before.starts_R.copy(), before.ends_R.copy(), np.zeros(len(items), np.uint8)
    steps_U5 = np.empty((count, 5), np.int64)
    at = len(before.bytes_T)
    steps, applied = _fold(arena_T, at, item_U, *raw, orders_U3, _UNSALTED_8, starts_I, ends_I, outcomes_I, steps_U5)
    arena_T.flags.writeable = False  # as buffers from stored bytes are: a kernel is compiled for either kind
    items_S, *spans = np.ascontiguousarray(steps_U5[:steps].T)
    changed = ChangedTexts(items_S, FeatureTexts(arena_T, spans[0], spans[1]), FeatureTexts(arena_T, spans[2], spans[3]))
    components = Joined(arena_T, starts_I, ends_I)
    after = cut_joined_block(items, components, stored_embeddings)
    return FoldedUpserts(outcomes_I, after, components, before, stored_embeddings, changed, applied)


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
    arena_T: np.ndarray,
    at: int,
    item_U: np.ndarray,
    raw_T: np.ndarray,
    raw_starts_U: np.ndarray,
    raw_ends_U: np.ndarray,
    orders_U3: np.ndarray,
    start_8: np.ndarray,
    starts_I: np.ndarray,
    ends_I: np.ndarray,
    outcomes_I: np.ndarray,
    steps_U5: np.ndarray,
) -> tuple[int, int]:
    """(steps, upserts applied). starts_I, ends_I: the component of each item in the arena, whose free part begins at `at`."""
    steps, applied, work = 0, 0, np.empty(WORK_WORDS, np.uint64)
    for u in range(item_U.shape[0]):
        item, raw, raw_end = item_U[u], raw_starts_U[u], raw_ends_U[u]
        start, end = starts_I[item], ends_I[item]
        if start >= 0 and not _is_newer(orders_U3[u], arena_T, start):
            continue
        is_live = start >= 0 and arena_T[start + _DEAD_AT] == 0
        applied, starts_I[item] = applied + 1, at
        if is_live and _are_equal(arena_T, start + _HEAD, end, raw_T, raw, raw_end):
            outcome = REPEATED
            _copy(arena_T, start, end, arena_T, at)
            _write_order(arena_T, at, orders_U3[u])
            at += end - start
        else:
            outcome = CHANGED if is_live else APPEARED
            _write_order(arena_T, at, orders_U3[u])
            _write_order(arena_T, at + _CHANGED_AT, orders_U3[u])
            arena_T[at + _DEAD_AT] = 0
            _write_whole(arena_T, at + _HASH_AT, 8, np.int64(digest_64(raw_T, raw, raw_end - raw, start_8, work)))
            text = at + _HEAD
            at = _copy(raw_T, raw, raw_end, arena_T, text)
            if is_live:
                steps_U5[steps, 0] = item
                steps_U5[steps, 1], steps_U5[steps, 2], steps_U5[steps, 3], steps_U5[steps, 4] = start + _HEAD, end, text, at
                steps += 1
        ends_I[item] = at
        if outcome > outcomes_I[item]:
            outcomes_I[item] = outcome
    return steps, applied


def compile_fold() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    upserts = Upserts.of([FeaturesUpdate(b"", 1, 0, 0, False, b"{}")])
    fold_upserts(upserts, *find_items(upserts), [None], [None])
    _loaded.set()


def is_fold_loaded() -> bool:
    """Whether nobody waits for a compiler who folds."""
    return _loaded.is_set()
